"""DIGEST-MD5 by RFC 2831, and invalid server messages. tests/coordination has a real ZooKeeper."""

from __future__ import annotations

import pytest

from pybroker.security.digest_md5 import CHALLENGE_BYTES_MAX, DigestError, DigestMd5
from tests.rows import with_each

# Section 4 of the RFC: Chris, whose password is secret, at an IMAP server.
CHALLENGE = (
    b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'
)
CNONCE = "OA6MHXh6VqTrRk"
URI = "imap/elwood.innosoft.com"


def test_the_example_of_the_rfc() -> None:
    chris = DigestMd5("chris", "secret", URI, CNONCE)
    assert chris.respond(CHALLENGE) == (
        b'charset=utf-8,username="chris",realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",nc=00000001,'
        b'cnonce="OA6MHXh6VqTrRk",digest-uri="imap/elwood.innosoft.com",'
        b"response=d388dad90d4bbd760a152321f2143af7,qop=auth"
    )
    chris.check(b"rspauth=ea40f60335c427b5527b84dbabcdfffd")


@pytest.mark.parametrize("said", [b"", b"rspauth=", b"rspauth=ea40f60335c427b5527b84dbabcdffff", b"rspauth", b"\0"])
def test_a_server_that_does_not_know_the_password_is_none(said: bytes) -> None:
    chris = DigestMd5("chris", "secret", URI, CNONCE)
    chris.respond(CHALLENGE)
    with pytest.raises(DigestError):
        chris.check(said)


def test_nothing_is_believed_before_a_challenge() -> None:
    with pytest.raises(DigestError):
        DigestMd5("chris", "secret", URI).check(b"rspauth=")


@with_each(
    "challenge",
    [
        b"",
        b"\xff" * 100,
        b'realm="r',
        b'realm="r",qop="auth",algorithm=md5-sess',
        CHALLENGE.replace(b"md5-sess", b"md5"),
        CHALLENGE.replace(b'"auth"', b'"auth-int,auth-conf"'),
        CHALLENGE + b",x=" + b"y" * CHALLENGE_BYTES_MAX,
        b'nonce="' + b"\\" * 2000,
    ],
    ids=["empty", "bytes", "cut", "no nonce", "algorithm", "qop", "long", "marks"],
)
def test_what_is_no_challenge_is_refused(challenge: bytes) -> None:
    with pytest.raises(DigestError):
        DigestMd5("chris", "secret", URI).respond(challenge)


def test_marks_in_a_name_are_escaped_and_each_login_has_a_nonce_of_its_own() -> None:
    answers = [DigestMd5('a"b\\c', "secret", URI).respond(CHALLENGE) for _ in range(2)]
    assert all(b'username="a\\"b\\\\c"' in answer for answer in answers)
    assert answers[0] != answers[1]


def test_letters_beyond_latin_1_need_a_server_that_knows_them() -> None:
    assert b"username=\"\xd0\xb8\"" in DigestMd5("и", "secret", URI).respond(CHALLENGE)
    with pytest.raises(DigestError, match="8859-1"):
        DigestMd5("и", "secret", URI).respond(CHALLENGE.replace(b",charset=utf-8", b""))
