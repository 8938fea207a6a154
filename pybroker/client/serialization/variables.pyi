"""Type variables of keys and values: bytes are read, bytes or text are sent, unless a program gives other formats."""

from typing_extensions import TypeVar

Key = TypeVar("Key", default=bytes)
Value = TypeVar("Value", default=bytes)
GivenKey = TypeVar("GivenKey", default=bytes | str)
GivenValue = TypeVar("GivenValue", default=bytes | str)
GivenIn = TypeVar("GivenIn", contravariant=True)
MadeOut = TypeVar("MadeOut", covariant=True)
