"""Run a file as a cell of a notebook, where `await` stands alone: `python tests/docs/cell.py FILE`."""

import ast
import asyncio
import inspect
import sys
from pathlib import Path


async def run(source: str) -> None:
    """Run the source in this event loop."""
    code = compile(source, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    made = eval(code, {"__name__": "__main__"})
    if inspect.isawaitable(made):
        await made


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]).read_text()))
