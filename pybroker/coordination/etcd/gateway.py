"""etcd's own API, as JSON over HTTP: the few calls that a session makes of one server.

The gateway is part of each etcd server (`--enable-grpc-gateway`, on by default). Patroni and APISIX go the same way. It
needs no client library, and nothing here repeats a request, as gRPC's own client may.

    /v3/auth/authenticate   user and password -> a token for later requests; a server forgets it when it restarts
    /v3/lease/...           grant, keepalive, revoke
    /v3/kv/range, /v3/kv/txn
    /v3/watch               one request, and an answer that never ends

Bytes are base64, and numbers of 64 bits are strings. A field that is missing is 0, empty or false.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import ssl
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pybroker.coordination.store import StoreRefused
from pybroker.model import HostPort

from .http import EtcdUnanswered, HttpConnection, post

Json = Mapping[str, Any]
INVALID_ARGUMENT, PERMISSION_DENIED, DATA_LOSS, UNAUTHENTICATED = 3, 7, 15, 16
"""Codes of gRPC."""
NOTHING_DONE: Final = (INVALID_ARGUMENT, PERMISSION_DENIED, DATA_LOSS, UNAUTHENTICATED)
"""Codes with which any server of the cluster refuses a request; another server may serve it after other errors."""
LOGIN: Final = "/v3/auth/authenticate"
STALE_LOGINS: Final = ("revision of auth store is old", "user name is empty")
"""Words of etcd's answers with INVALID_ARGUMENT that a new token cures."""
SAYS: Final = {
    "database space exceeded": "its database is full (alarm NOSPACE): compact and defragment it, and disarm the alarm",
    "too many operations": "it allows fewer operations in a transaction: raise its --max-txn-ops to at least 128",
    "request is too large": "it allows smaller requests: raise its --max-request-bytes to at least 1.5 MiB",
    "permission denied": "the user of etcd.user may not read and write below the prefix of etcd.connect",
    "corrupt": "it has found that its database is corrupt (alarm CORRUPT)",
}
"""Refusals that an operator can cure."""
NAMED: Final = b"CommonName of client"
"""The start of the answer, in plain text, to a client whose certificate has a common name, if etcd has users."""
LEASE_ENDED: Final = "lease not found"
TOO_LARGE: Final = ("too many operations", "request is too large")
WORDS_MAX: Final = 300
"""The most characters of an answer that a log line or an error repeats."""
TOKEN_MAX: Final = 16_384


class EtcdLogin(NamedTuple):
    """The user and password of a connection to etcd."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"EtcdLogin({self.user})"


class EtcdAccess(NamedTuple):
    """TLS and login for etcd."""

    tls: ssl.SSLContext | None = None
    login: EtcdLogin | None = None


class EtcdRefusal(Exception):
    """etcd answered with an error: it did nothing."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(code, words)
        self.code = code
        self.words = words

    @property
    def of_size(self) -> bool:
        """True if a smaller request may be accepted."""
        return any(part in self.words for part in TOO_LARGE)

    @property
    def of_lease(self) -> bool:
        """True if the lease of the request has ended."""
        return LEASE_ENDED in self.words

    def __str__(self) -> str:
        return next((cure for part, cure in SAYS.items() if part in self.words), f"it answered: {self.words}")


class KeyValue(NamedTuple):
    """A key at one revision; `version` counts its puts. `deleted`: an event that removed it."""

    key: bytes
    value: bytes
    mod_revision: int
    version: int
    deleted: bool = False


class EtcdAnswer(NamedTuple):
    """The parts that all answers have: the cluster, and its revision when it answered."""

    cluster: int
    revision: int
    body: Json


class Gateway:
    """One server. Requests on different lanes do not wait for each other."""

    def __init__(self, at: HostPort, access: EtcdAccess, patience_s: float) -> None:
        self.at = at
        self.term = 0
        """The term of the server's last answer: it changes with each election."""
        self.patience_s = patience_s
        """The time for the server to answer a request."""
        self._access = access
        self._token = ""
        self._lanes: dict[str, HttpConnection] = {}

    def close(self) -> None:
        """Close all connections."""
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()

    async def log_in(self) -> None:
        """Get a token if there is a login. Raises StoreRefused, and as `call`."""
        login = self._access.login
        if login is None:
            return
        try:
            answer = await self._ask("kv", LOGIN, {"name": login.user, "password": login.password})
        except EtcdRefusal as refusal:
            if "not enabled" in refusal.words:
                return
            raise StoreRefused(detail=f"refuses the login of {login.user!r} (etcd.user): {refusal.words}") from None
        token = answer.get("token", "")
        if not (isinstance(token, str) and len(token) <= TOKEN_MAX and token.isascii() and token.isprintable()):
            raise EtcdUnanswered("its login gave a token that cannot be sent back")
        self._token = token

    async def call(self, lane: str, path: str, body: Json) -> EtcdAnswer:
        """Return the answer to a request. Raises EtcdRefusal if it had no effect, EtcdUnanswered if that is not known,
        StoreRefused if it needs a login or another one, and OSError if no connection was made."""
        try:
            answer = await self._ask(lane, path, body)
        except EtcdRefusal as refusal:
            if self._access.login is None and (refusal.code == PERMISSION_DENIED or _is_stale(refusal)):
                raise StoreRefused(detail="requires a login: set etcd.user and etcd.password") from None
            if self._access.login is None or not _is_stale(refusal):
                raise
            await self.log_in()
            answer = await self._ask(lane, path, body)
        header = part(part(answer, "result") if "result" in answer else answer, "header")
        self.term = max(self.term, number(header, "raft_term"))
        return EtcdAnswer(number(header, "cluster_id"), number(header, "revision"), answer)

    async def watch(
        self, start: bytes, end: bytes, revision: int, known: Container[int] = ()
    ) -> AsyncIterator[tuple[int, list[KeyValue]]]:
        """Yield the first revision that is watched, without events, and then each revision with its events in order;
        without them if the revision is `known`.

        Raises as `call`, and EtcdUnanswered when events are lost."""
        body = {"create_request": {"key": text(start), "range_end": text(end), "start_revision": str(revision)}}
        async for line in self._lane("watch").lines(self._request("/v3/watch", body)):
            said = _parsed(line)
            _raise_refusal(said)
            result = part(said, "result")
            if result.get("canceled") or number(result, "compact_revision"):
                reason = _words(result, "cancel_reason") or "its history is compacted"
                raise EtcdUnanswered(f"it ended the watch: {reason}")
            if result.get("created"):
                yield revision - 1, []
            events: dict[int, list[KeyValue]] = {}
            for each in _parts(result, "events"):
                kv = part(each, "kv")
                its = events.setdefault(at := number(kv, "mod_revision"), [])
                if at not in known:
                    its.append(_key_value(kv, deleted=each.get("type") == "DELETE"))
            for at in sorted(events):
                yield at, events[at]

    def _lane(self, name: str) -> HttpConnection:
        if name not in self._lanes:
            self._lanes[name] = HttpConnection(self.at, self._access.tls)
        return self._lanes[name]

    def _request(self, path: str, body: Json) -> bytes:
        return post(path, json.dumps(body).encode(), self.at, "" if path == LOGIN else self._token)

    async def _ask(self, lane: str, path: str, body: Json) -> Json:
        try:
            async with asyncio.timeout(self.patience_s):
                status, content = await self._lane(lane).ask(self._request(path, body))
        except TimeoutError:
            raise EtcdUnanswered(f"it did not answer in {self.patience_s:g} s") from None
        if content.startswith(NAMED):
            why = "takes no certificate with a common name beside a login: use one without (etcd.ssl.keystore.location)"
            raise StoreRefused(detail=why)
        answer = _parsed(content or b"{}")
        _raise_refusal(answer)
        if status != 200:
            raise EtcdUnanswered(f"it answered with HTTP status {status}")
        return answer


def part(of: Json, name: str) -> Json:
    """Return an object of an answer, empty if it is missing. Raises EtcdUnanswered."""
    found = of.get(name, {})
    if not isinstance(found, dict):
        raise EtcdUnanswered(f"the {name} in its answer is no JSON object")
    return found


def number(of: Json, name: str) -> int:
    """Return a number of an answer, 0 if it is missing. Raises EtcdUnanswered."""
    found = of.get(name, 0)
    try:
        if isinstance(found, str | int):
            return int(found)
    except ValueError:
        pass
    raise EtcdUnanswered(f"the {name} in its answer is no number")


def text(content: bytes) -> str:
    """Return bytes as the gateway has them."""
    return base64.b64encode(content).decode()


def key_values(body: Json) -> list[KeyValue]:
    """Return the keys in the answer to a range."""
    return [_key_value(each) for each in _parts(body, "kvs")]


def ranges(body: Json) -> tuple[list[KeyValue], list[KeyValue]]:
    """Return the keys in the two answers of a transaction that reads two things. Raises EtcdUnanswered."""
    found = [key_values(part(each, "response_range")) for each in _parts(body, "responses")]
    if len(found) != 2:
        raise EtcdUnanswered(f"it answered {len(found)} of 2 reads")
    return found[0], found[1]


def put(key: bytes, value: bytes, lease: int = 0) -> Json:
    """Return a put for a transaction."""
    its = {"key": text(key), "value": text(value)}
    return {"request_put": its | {"lease": str(lease)} if lease else its}


def delete(key: bytes) -> Json:
    """Return a deletion for a transaction."""
    return {"request_delete_range": {"key": text(key)}}


def read(key: bytes, end: bytes = b"") -> Json:
    """Return a request for a key, or for all keys from it up to the end."""
    return {"key": text(key), "range_end": text(end)} if end else {"key": text(key)}


def nested(ops: Sequence[Json]) -> Json:
    """Return operations as one operation of another transaction."""
    return {"request_txn": {"success": list(ops)}}


def _is_stale(refusal: EtcdRefusal) -> bool:
    return refusal.code == UNAUTHENTICATED or any(words in refusal.words for words in STALE_LOGINS)


def _parts(of: Json, name: str) -> Sequence[Json]:
    """Return the objects in a list of an answer, none if it is missing. Raises EtcdUnanswered."""
    found = of.get(name, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise EtcdUnanswered(f"the {name} in its answer are no list of JSON objects")
    return found


def _words(of: Json, name: str) -> str:
    """Return the beginning of a text of an answer on one line; empty if it is missing."""
    found = of.get(name)
    return "".join(each if each.isprintable() else " " for each in found[:WORDS_MAX]) if isinstance(found, str) else ""


def _parsed(content: bytes) -> Json:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise EtcdUnanswered("it does not answer like etcd's gateway (--enable-grpc-gateway)")
    return found


def _raise_refusal(answer: Json) -> None:
    """Raise the error in an answer, if it has one. Codes that do not say that nothing was done are EtcdUnanswered."""
    error = answer.get("error")
    if not error:
        return
    found = error if isinstance(error, dict) else answer
    code, words = number(found, "code") or number(found, "grpc_code"), _words(found, "message")
    words = words.removeprefix("etcdserver: ")
    if code in NOTHING_DONE or _did_nothing(words):
        raise EtcdRefusal(code, words)
    raise EtcdUnanswered(f"it answered: {words or code}")


def _did_nothing(words: str) -> bool:
    certain = LEASE_ENDED, "database space exceeded", "authentication is not enabled"
    return any(said in words for said in certain)


def _key_value(kv: Json, *, deleted: bool = False) -> KeyValue:
    try:
        key = binascii.a2b_base64(kv["key"], strict_mode=True)
        value = binascii.a2b_base64(kv.get("value", ""), strict_mode=True)
    except (KeyError, ValueError, TypeError) as problem:
        raise EtcdUnanswered(f"it sent a key that cannot be read: {problem}") from problem
    if (revision := number(kv, "mod_revision")) <= 0:
        raise EtcdUnanswered("it sent a key that cannot be read: it has no revision")
    return KeyValue(key, value, revision, number(kv, "version"), deleted)
