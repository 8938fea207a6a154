"""Checks of arguments: whole numbers, seconds and names. A wrong one is refused in the call that it was given to."""

from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsIndex


class IllegalStateError(RuntimeError):
    """A call that the state of the client excludes: poll() without a subscription, subscribe() after assign()."""


def whole(value: SupportsIndex, what: str, least: int | None = 0) -> int:
    """A whole number of at least `least`. TypeError for anything else, 0.5 and True included; ValueError if smaller."""
    if type(value) is not int:
        if isinstance(value, bool) or not isinstance(value, SupportsIndex):
            unit = " of milliseconds" if what.endswith("_ms") else ""
            raise TypeError(f"{what} is a whole number{unit}, not {value!r}")
        value = value.__index__()
    if least is not None and value < least:
        raise ValueError(f"{what} is {least} or more, not {value}")
    return value


def seconds(value: float | None, what: str = "timeout_s") -> float | None:
    """Seconds; None means no limit. TypeError if it is no number, ValueError if it is negative."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} is a number of seconds, not {value!r}")
    if not value >= 0:
        raise ValueError(f"{what} is 0 or more, not {value}")
    return value


def name(value: str, what: str) -> str:
    """A name. TypeError if it is no str."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is a str, not {type(value).__name__}")
    return value


def names(values: Iterable[str], what: str) -> list[str]:
    """Several names. TypeError for a single str, whose letters would be taken for names."""
    if isinstance(values, str | bytes):
        raise TypeError(f"{what} is a list of names, like [{values!r}], and not one name")
    return [name(value, f"each of {what}") for value in values]


def texts(values: Mapping[str, str], what: str) -> Mapping[str, str]:
    """Names with their values. TypeError for a value that is no str."""
    for key, value in values.items():
        name(key, f"a name in {what}")
        if not isinstance(value, str):
            raise TypeError(f"{what} has text for {key}, like {str(value)!r}, and not {value!r}")
    return values


def bootstrap(servers: str | Sequence[str]) -> str:
    """Addresses, one or several, joined by commas."""
    return servers if isinstance(servers, str) else ",".join(names(servers, "bootstrap_servers"))
