"""Defines settings: name, type, default and range, and the parsing of values.

Names, types, defaults, and the numbers of types and sources (of DescribeConfigs) are Kafka's.
"""

import re
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from pybroker.errors import INVALID_CONFIG, INVALID_REQUEST, KafkaError

Value = bool | int | float | str | tuple[str, ...] | None
"""A typed value: LIST is a tuple, None is "not set"."""


class Type(IntEnum):
    """The type of a setting, numbered as in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Source(IntEnum):
    """The source of a value, numbered as in DescribeConfigs; the smallest number that has a value wins. The last one is
    for log levels only."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6


BITS = {Type.SHORT: 16, Type.INT: 32, Type.LONG: 64}
INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1
SHOWN_MAX = 100
INTEGER = re.compile(r"[+-]?[0-9]+")  # int() would also accept 1_000 and the digits of other scripts
NOUNS = {
    Type.BOOLEAN: "true or false",
    Type.STRING: "text",
    Type.SHORT: "an integer",
    Type.INT: "an integer",
    Type.LONG: "an integer",
    Type.DOUBLE: "a number",
    Type.LIST: "a comma-separated list",
}


class ConfigError(KafkaError):
    """A setting's value is not allowed; the message is one sentence for the operator."""

    def __init__(self, message: str) -> None:
        super().__init__(INVALID_CONFIG, message)
        self.args = (message,)
        self.warnings: Sequence[str] = ()
        """Warnings about other settings, such as unknown names."""


class NotDynamic(ConfigError):
    """A setting that cannot change while the broker runs, with Kafka's error code."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = INVALID_REQUEST


class Range(NamedTuple):
    """Numbers from low to high, inclusive, and `also` if given; high None is the type's largest number."""

    low: float
    high: float | None = None
    also: int | None = None


class Choice(NamedTuple):
    """Allows one of these words; for a LIST, any number of them."""

    words: tuple[str, ...]


class Shape(NamedTuple):
    """Allows text for which `check` raises no ValueError; `text` describes it."""

    text: str
    check: Callable[[str], object]


WITHOUT_EFFECT: Final = "Without effect"
"""The beginning of the text of settings that have no effect here."""
OF_THE_AUTHORIZER: Final = frozenset({"super.users", "allow.everyone.if.no.acl.found"})


class Setting(NamedTuple):
    """One setting. `default` is text, as in a file; None for "not set". `synonyms` is for topic settings."""

    name: str
    type: Type
    default: str | None
    doc: str
    valid: Range | Choice | Shape | None = None
    dynamic: bool = False
    """True if the value can change while the broker runs."""
    synonyms: tuple[tuple[str, int], ...] = ()
    """(broker setting, factor to the topic's unit) for the topic's default; the first one that is set wins."""

    @property
    def sensitive(self) -> bool:
        return self.type is Type.PASSWORD

    @property
    def hidden(self) -> bool:
        """True if DescribeConfigs shows no value: for passwords, and for settings that only Kafka's authorizer defines
        (Kafka treats a setting that its own table does not have as a secret)."""
        return self.sensitive or self.name in OF_THE_AUTHORIZER

    @property
    def without_effect(self) -> bool:
        """True if the setting is accepted because Kafka has it, but has no effect here."""
        return self.doc.startswith(WITHOUT_EFFECT)

    @property
    def allowed(self) -> str:
        """The allowed values, as words that complete "it takes ..."."""
        noun = NOUNS.get(self.type, "text")
        valid = self.valid
        if isinstance(valid, Shape):
            return valid.text
        if isinstance(valid, Choice):
            words = [word for word in valid.words if word]
            lead = f"{noun} out of " if self.type is Type.LIST else "one of " if len(words) > 1 else "only "
            if "" in valid.words:
                return ", ".join(words) + ", or nothing"
            return lead + ", ".join(words)
        low, high = self.bounds()
        if low is None or (valid is None and high == LONG_MAX):
            return noun if low is None else f"{noun} of 64 bits"
        text = f"{noun} of at least {low}" if high in (None, LONG_MAX) else f"{noun} from {low} to {high}"
        also = valid.also if isinstance(valid, Range) else None
        return text if also is None else f"{also} or {text}"

    def bounds(self) -> tuple[float | None, float | None]:
        """The smallest and largest number allowed; (None, None) without limits, or if this is not a number."""
        bits = BITS.get(self.type)
        low = -(1 << (bits - 1)) if bits else None
        high = (1 << (bits - 1)) - 1 if bits else None
        if isinstance(self.valid, Range):
            return self.valid.low, high if self.valid.high is None else self.valid.high
        if isinstance(self.valid, Choice) and bits:
            numbers = [int(word) for word in self.valid.words]
            return min(numbers), max(numbers)
        return low, high

    def parse(self, text: str, where: str) -> Value:
        """Return the typed value of a text. Raises ConfigError; `where` is the place that has the text."""
        try:
            text.encode()  # an argument of the command line may not be UTF-8
            value = self._read(text.strip())
            self._check(value)
        except ValueError:
            said = "" if self.sensitive else f" = {shown(text)}"
            raise ConfigError(f"{self.name}{said} ({where}) is not allowed: it takes {self.allowed}") from None
        return value

    def _read(self, text: str) -> Value:
        if self.type is Type.BOOLEAN:
            return bool(("false", "true").index(text.lower()))
        if self.type in BITS:
            if not INTEGER.fullmatch(text):
                raise ValueError
            return int(text)
        if self.type is Type.DOUBLE:
            return float(text)
        if self.type is Type.LIST:
            return tuple(re.split(r"\s*,\s*", text)) if text else ()
        return text

    def _check(self, value: Value) -> None:
        if isinstance(self.valid, Shape):
            self.valid.check(str(as_text(value)))
        elif isinstance(self.valid, Choice):
            given = value if isinstance(value, tuple) else (as_text(value),)
            if not {*given} <= {*self.valid.words}:
                raise ValueError
        elif isinstance(value, int | float):
            low, high = self.bounds()
            also = isinstance(self.valid, Range) and value == self.valid.also
            if not also and not ((low is None or value >= low) and (high is None or value <= high)):
                raise ValueError


def shown(text: str) -> str:
    """Quote a given text and cut it, as an error message must fit into a response."""
    return repr(text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "...")


def as_text(value: Value) -> str | None:
    """Return a typed value as DescribeConfigs shows it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(value).upper().replace("E+", "E")  # as Java writes it
    return ",".join(value) if isinstance(value, tuple) else str(value)


class Synonym(NamedTuple):
    """One place that has a value for a setting."""

    name: str
    value: str | None
    source: Source


class DescribedConfig(NamedTuple):
    """One setting in a DescribeConfigs response; the first synonym is the one that applies."""

    name: str
    value: str | None
    source: Source
    read_only: bool
    sensitive: bool
    type: Type
    documentation: str
    synonyms: tuple[Synonym, ...]


def table(*settings: Setting) -> dict[str, Setting]:
    return {setting.name: setting for setting in settings}
