"""What a setting is: its name, type, default and range, and how a value given as text is read.

Names, types, defaults and numbers of types and sources are Kafka's (those of DescribeConfigs).
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
    """The place that a value comes from, numbered as in DescribeConfigs; the smallest number that has a value wins. The
    last one is of log levels alone."""

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
INTEGER = re.compile(r"[+-]?[0-9]+")  # int() would also take 1_000 and the digits of every script
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
    """A setting cannot take its value; the message is one sentence for the person who set it."""

    def __init__(self, message: str) -> None:
        super().__init__(INVALID_CONFIG, message)
        self.args = (message,)
        self.warnings: Sequence[str] = ()
        """What was said of other settings before this one, such as names that are none."""


class NotDynamic(ConfigError):
    """A setting that a running broker does not take, by Kafka's code."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = INVALID_REQUEST


class Range(NamedTuple):
    """Numbers from low to high, both included, and perhaps one more; high None is the type's largest."""

    low: float
    high: float | None = None
    also: int | None = None


class Choice(NamedTuple):
    """One of these words; for a LIST, any number of them."""

    words: tuple[str, ...]


class Shape(NamedTuple):
    """Text for which `check` raises no ValueError; `text` says what it takes."""

    text: str
    check: Callable[[str], object]


WITHOUT_EFFECT: Final = "Without effect"
"""The beginning of the text of a setting that is taken, and changes nothing here."""
OF_THE_AUTHORIZER: Final = frozenset({"super.users", "allow.everyone.if.no.acl.found"})


class Setting(NamedTuple):
    """One setting. `default` is text as in a file, None for "not set"; `synonyms` is for topic settings."""

    name: str
    type: Type
    default: str | None
    doc: str
    valid: Range | Choice | Shape | None = None
    dynamic: bool = False
    """The broker takes a new value while it runs."""
    synonyms: tuple[tuple[str, int], ...] = ()
    """Broker settings that give a topic its default, first one set wins, and the factor to the topic's unit."""

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
        """True if the setting is taken because Kafka has it, and changes nothing here."""
        return self.doc.startswith(WITHOUT_EFFECT)

    @property
    def allowed(self) -> str:
        """What the setting takes, as words that complete "it takes ..."."""
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
        """The smallest and largest number allowed; (None, None) for what is not a number or has no limit."""
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
        """The typed value of a text; ConfigError if it is not allowed. `where` names the place that has the text."""
        try:
            text.encode()  # what came as an argument may be no UTF-8
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
    """A text that somebody gave, quoted and cut: an error message must fit into an answer of the protocol."""
    return repr(text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "...")


def as_text(value: Value) -> str | None:
    """A typed value as DescribeConfigs shows it."""
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


class Entry(NamedTuple):
    """One line of a DescribeConfigs answer; the synonyms begin with the one that won."""

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
