"""All message classes by name: `from pybroker.protocol.messages import MetadataResponse`.

`MetadataResponse(brokers=[MetadataResponse.Brokers(node_id=0, host="h", port=9092)])`: keyword arguments with the
definitions' defaults, attributes of the same names, and a nested class for each nested struct, named like its field in
CamelCase. A class is created at its first use, so importing this module takes no time; type checkers and editors read
the stubs in this directory, which tools/messages.py writes.
"""

from pybroker.protocol.definitions import TEXTS
from pybroker.protocol.message import Message, message

__all__ = ["Message", "message"]


def __getattr__(name: str) -> type[Message]:
    if name not in TEXTS:
        raise AttributeError(f"there is no message named {name}")
    made = globals()[name] = message(name)
    return made


def __dir__() -> list[str]:
    return sorted([*__all__, *TEXTS])
