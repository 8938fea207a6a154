"""The texts of principals and hosts in ACLs."""

from __future__ import annotations

import pytest

from pybroker.config.security_settings import super_users
from pybroker.security.principals import host_text
from tests.rows import with_each


@with_each(
    ("text", "found"),
    [
        ("", set()),
        (";", set()),
        ("User:ann", {"User:ann"}),
        (" User:ann ; User:CN=bob,OU=ops:x;", {"User:ann", "User:CN=bob,OU=ops:x"}),
        ("User:ann;User:ann;;", {"User:ann"}),
        ("User:", {"User:"}),
        ("Group:x:y", {"Group:x:y"}),
    ],
)
def test_super_users(text: str, found: set[str]) -> None:
    """Super users are type:name pairs between semicolons, each trimmed; empty ones at the end are ignored."""
    assert super_users(text) == found


@with_each("text", [
    "ann", "User:ann,bob;carl", ";User:ann", "User:ann;;User:bob", " ", "User:ann; ", "User:ann,User:bob",
    "User:ann, User:bob;User:carl",
])  # fmt: skip
def test_what_is_no_principal_is_refused(text: str) -> None:
    """An invalid super user is refused: a broker without super users could lock its operator out."""
    with pytest.raises(
        ValueError, match=r"super.users='.*' is not allowed: '.*' is not a principal; write types and names"
    ):
        super_users(text)


@with_each(
    ("address", "text"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("::", "0:0:0:0:0:0:0:0"),
        ("2001:DB8::1", "2001:db8:0:0:0:0:0:1"),
        ("2001:0db8:00a0::0f0", "2001:db8:a0:0:0:0:0:f0"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("::ffff:a01:203", "10.1.2.3"),
        ("::10.1.2.3", "0:0:0:0:0:0:a01:203"),
        ("64:ff9b::10.1.2.3", "64:ff9b:0:0:0:0:a01:203"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
    ],
)
def test_hosts_are_as_java_prints_them(address: str, text: str) -> None:
    assert host_text(address) == text


def test_what_is_no_address() -> None:
    with pytest.raises(ValueError, match="'::x' is no address"):
        host_text("::x")
