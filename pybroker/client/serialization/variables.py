"""Type variables of keys and values. Their defaults, which Python 3.11 does not have, are in the stub beside."""

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
GivenKey = TypeVar("GivenKey")
GivenValue = TypeVar("GivenValue")
GivenIn = TypeVar("GivenIn", contravariant=True)
MadeOut = TypeVar("MadeOut", covariant=True)
