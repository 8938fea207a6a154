"""The principal of a client certificate: its subject as Java writes it (RFC 2253), and ssl.principal.mapping.rules.

ACLs name the exact subject, so this is the text of Java's X500Principal with its oddities: it knows only nine keywords,
values of other types are hexadecimal, and a BMPString is decoded as UTF-8.
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from pybroker.config.settings import shown

KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_TEXTS: Final = (0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E)
"""Tags of strings: UTF8, Printable, T61, IA5, General, BMP."""
_SEQUENCE, _SET, _OID = 0x30, 0x31, 0x06
_ESCAPED: Final = re.compile(r'[,=+<>#;"\\]')


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate (DER), as Java writes it. ValueError if it cannot be read."""
    from cryptography import x509  # its import is too slow for a start

    return distinguished_name(x509.load_der_x509_certificate(certificate).subject.public_bytes())


def distinguished_name(der: bytes) -> str:
    """A Name (DER, RFC 5280) as Java's X500Principal.getName(RFC2253). ValueError if it is malformed."""
    names = []
    for each in _items(_only(der, _SEQUENCE)):
        attributes = [_attribute(item) for item in _items(_content(each, _SET))]
        names.append("+".join(attributes))
    return ",".join(reversed(names))


def _attribute(item: tuple[int, bytes, bytes]) -> str:
    kind, value = _items(_content(item, _SEQUENCE))
    oid = _oid(_content(kind, _OID))
    tag, content, whole = value
    if oid not in KEYWORDS or tag not in _TEXTS:
        return f"{KEYWORDS.get(oid, oid)}=#{whole.hex()}"
    return f"{KEYWORDS[oid]}={_escape(content.decode(errors='replace'))}"


def _escape(text: str) -> str:
    inner = text.strip(" ")
    lead = len(text) - len(text.lstrip(" "))
    trail = len(text) - lead - len(inner)
    inner = _ESCAPED.sub(r"\\\g<0>", inner).replace("\0", r"\00")
    return r"\ " * lead + inner + r"\ " * trail


def _items(der: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """The elements of a constructed value: tag, content, and the whole."""
    at = 0
    while at < len(der):
        if at + 2 > len(der):
            raise ValueError("a value ends before its length")
        tag, length, start = der[at], der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, start = int.from_bytes(der[start : start + size], "big"), start + size
        if start + length > len(der):
            raise ValueError("a value is longer than the one around it")
        yield tag, der[start : start + length], der[at : start + length]
        at = start + length


def _content(item: tuple[int, bytes, bytes], tag: int) -> bytes:
    if item[0] != tag:
        raise ValueError(f"a value of tag {item[0]} instead of {tag}")
    return item[1]


def _only(der: bytes, tag: int) -> bytes:
    (item,) = _items(der)
    return _content(item, tag)


def _oid(content: bytes) -> str:
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise ValueError("an empty object identifier")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


# -- the rules ---------------------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """One rule: a subject that its pattern (None: any) matches as a whole becomes the replacement."""

    pattern: re.Pattern[str] | None
    replacement: str
    case: str
    """L for lower, U for upper, or empty."""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        text = self.pattern.sub(self._replaced, name)  # as Java's replaceAll, which matches .* again at the end
        return text.lower() if self.case == "L" else text.upper() if self.case == "U" else text

    def _replaced(self, found: re.Match[str]) -> str:
        return _PART.sub(lambda part: part[1] or _group(found, part[2]), self.replacement)


_PART: Final = re.compile(r"\\(.)|\$(\d*)", re.DOTALL | re.ASCII)
"""The parts of a replacement that are not literal: an escaped character, and a group."""
_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|\Z)", re.DOTALL)


def _group(found: re.Match[str], digits: str) -> str:
    """The value of $0 (the whole match), $1, $2 and so on, with as many digits as form an existing group's number."""
    size = max(size for size in (1, 2, 3) if int(digits[:size]) <= found.re.groups)
    return (found[int(digits[:size])] or "") + digits[size:]


def _check_groups(pattern: re.Pattern[str], replacement: str) -> None:
    """Raise ValueError for a group that the pattern lacks: Kafka accepts such a rule, and refuses clients it matches.
    """
    for part in _PART.finditer(replacement):
        if part[1] is None and not (part[2] and int(part[2][0]) <= pattern.groups):
            has = f"the pattern {shown(pattern.pattern)} has {pattern.groups} groups"
            raise ValueError(f"{part[0]} in the replacement {shown(replacement)} is not a group: {has}")


def parse_rules(text: str) -> tuple[Rule, ...]:
    """The rules of ssl.principal.mapping.rules, like RULE:^CN=(.*?),.*$/$1/L,DEFAULT (KIP-371). ValueError."""
    rules, at = [], 0
    while at < len(text.rstrip()):
        found = _RULE.match(text, at)
        if found is None:
            words = "write RULE:pattern/replacement/ or DEFAULT"
            raise ValueError(f"{shown(text[at:].strip())} does not begin with a rule: {words}")
        if found[1]:
            rules.append(Rule(None, "", ""))
        else:
            try:
                with warnings.catch_warnings(action="error", category=FutureWarning):  # [a&&b], which only Java knows
                    pattern = re.compile(found[2].replace("\\/", "/"), re.ASCII)  # as Java's \\w and (?i)
            except (re.error, FutureWarning) as problem:
                raise ValueError(f"the pattern {shown(found[2])} cannot be used: {problem}") from None
            _check_groups(pattern, found[3])
            rules.append(Rule(pattern, found[3], found[4]))
        at = found.end()
    return tuple(rules) or (Rule(None, "", ""),)


def principal_name(rules: Sequence[Rule], subject: str) -> str:
    """The name that the first matching rule makes of a subject. ValueError if no rule matches."""
    for rule in rules:
        name = rule.apply(subject)
        if name is not None:
            return name
    raise ValueError(f"no rule of ssl.principal.mapping.rules matches {shown(subject)}")
