"""Figures: the cost of a loop, the figure to compare it with, and the table at the end of a run.

The machine is shared and noisy, so loops that are compared run in turns (A B A B ...) and each is judged by its best
round: noise only ever adds. Figures of two runs are never compared.
"""

from __future__ import annotations

import gc
import mmap
import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

Body = Callable[[], Callable[[], object] | None]
Loop = Callable[[], AbstractContextManager[Body]]

FIGURES: list[Figure] = []
"""The figures of this run so far."""


@dataclass(frozen=True)
class Figure:
    """One line of the table; `met` is None for a figure without a target."""

    what: str
    payload: str
    value: str
    beside: str
    share: str = ""
    met: bool | None = None


def show(what: str, payload: str, value: str, beside: str, share: str = "", met: bool | None = None) -> None:
    """Print a figure at once, and keep it for the table; a missed target fails its benchmark."""
    figure = Figure(what, payload, value, beside, share, met)
    FIGURES.append(figure)
    print(f"\n  {what}, {payload}: {value}; beside {beside}; {share}{verdict(figure)}", flush=True)
    if met is False:
        pytest.fail(f"{what}, {payload}: {share}", pytrace=False)


def verdict(figure: Figure) -> str:
    return {None: "", True: " met", False: " MISSED"}[figure.met]


def warm_memory(size: int) -> None:
    """Touch this many bytes of the machine's free memory. The host of a virtual machine takes free memory back, and a
    page that it took costs ten times as much, which would hide the broker's cost."""
    mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


@dataclass
class Costs:
    """The rounds of one loop: wall time, and the processor time of every thread of this process."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    @property
    def wall_best_s(self) -> float:
        return min(self.wall_s)

    @property
    def cpu_best_s(self) -> float:
        return min(self.cpu_s)


class Rounds:
    """Loops that run in turns, the last of them through pytest-benchmark, which keeps its own table.

    A loop is a context manager: only the function that it yields is timed, not the code around the `yield`. Wall time
    ends when the function returns. Its result, if any, is called to wait for the loop's other threads, and then
    processor time ends. The first round warms up and is not counted.
    """

    def __init__(self, loops: Mapping[str, Loop]) -> None:
        *self.others, self.measured = loops
        self.loops = loops
        self.costs = {name: Costs() for name in loops}
        self._stack = ExitStack()
        self._cpu_s = 0.0
        self._behind: Callable[[], object] | None = None

    def __getitem__(self, name: str) -> Costs:
        return self.costs[name]

    def run(self, benchmark: Any, rounds: int) -> Rounds:
        """`benchmark` is pytest-benchmark's fixture."""
        benchmark.pedantic(self._time, setup=self._before, teardown=self._after, rounds=rounds, warmup_rounds=1)
        for costs in self.costs.values():
            del costs.wall_s[:-rounds], costs.cpu_s[:-rounds]
        return self

    def _before(self) -> tuple[tuple[str, Body], dict[str, Any]]:
        for name in self.others:
            with self.loops[name]() as body:
                gc.collect()  # as pytest-benchmark does before the loop that it times
                self._time(name, body)
                self._wait(name)
        body = self._stack.enter_context(self.loops[self.measured]())
        return (self.measured, body), {}

    def _time(self, name: str, body: Body) -> None:
        self._cpu_s, start_s = time.process_time(), time.perf_counter()
        self._behind = body()
        self.costs[name].wall_s.append(time.perf_counter() - start_s)

    def _wait(self, name: str) -> None:
        if self._behind is not None:
            self._behind()
        self.costs[name].cpu_s.append(time.process_time() - self._cpu_s)

    def _after(self, *_: object, **__: object) -> None:
        self._wait(self.measured)
        self._stack.close()


@cache
def machine(directory: Path) -> str:
    """Return processor, cores, kernel, file system and load, for every figure of this run."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")), "?")
    load = os.getloadavg()[0]
    return (
        f"{model}, {os.cpu_count()} cores, Linux {platform.release()}, {file_system(directory)}, "
        f"Python {platform.python_version()}, load {load:.1f} at the start"
    )


def file_system(directory: Path) -> str:
    """Return the type of a directory's file system."""
    best, kind = "", "?"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, name, *_ = line.split()
        if f"{directory.resolve()}/".startswith(mount.rstrip("/") + "/") and len(mount) >= len(best):
            best, kind = mount, name
    return kind


def table() -> list[str]:
    """Return the figures of this run, in columns."""
    rows = [("what", "payload", "figure", "beside", "against the target")]
    rows += [(f.what, f.payload, f.value, f.beside, f.share + verdict(f)) for f in FIGURES]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows]
