"""What stands at an address where a ZooKeeper is to be, in words for a person."""

import contextlib
import re
import socket
from typing import Final

from pybroker.errors import system_words
from pybroker.model import HostPort

ASK_WHY_S: Final = 1.0


def found_at(at: HostPort, seen: int) -> str:
    """What is there, for whoever has seen a zxid of it."""
    try:
        asking = socket.create_connection(at, ASK_WHY_S)
    except TimeoutError:
        return f"{at} does not answer"
    except OSError as problem:
        return f"{at}: {system_words(problem)}"
    said = ""
    with asking, contextlib.suppress(OSError):
        asking.sendall(b"srvr")
        said = asking.makefile("rb").read(4096).decode(errors="replace")
    zxid = re.search(r"^Zxid: 0x([0-9a-f]{1,16})", said, re.MULTILINE)
    if zxid is None:
        return f"{at} accepts connections, and does not answer as a ZooKeeper that serves"
    if int(zxid[1], 16) < seen:
        return f"{at} knows less than was seen there before: it has lost its data, or is another ZooKeeper"
    return f"{at} serves"
