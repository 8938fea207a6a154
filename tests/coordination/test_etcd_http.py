"""Answers that are not etcd's, too long or cut short end in one sentence; no length of a server is trusted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from pybroker.coordination.etcd import http
from pybroker.coordination.etcd.gateway import TOKEN_MAX, WORDS_MAX, EtcdAccess, EtcdLogin, EtcdRefusal, Gateway
from pybroker.coordination.etcd.http import ANSWER_BYTES_MAX, HEADERS_MAX, EtcdUnanswered
from pybroker.coordination.store import StoreRefused
from pybroker.model import HostPort
from tests.harness import eventually
from tests.rows import with_each

OK = b"HTTP/1.1 200 OK\r\n"


def whole(body: bytes, status: bytes = OK) -> bytes:
    return status + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def chunked(*parts: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return OK + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


@contextlib.asynccontextmanager
async def answering(*answers: bytes, login: EtcdLogin | None = None) -> AsyncIterator[Gateway]:
    """A gateway to a server that gives these answers to the requests of each connection, and then closes it. An empty
    one closes the connection at once."""
    served: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while len(served) < len(answers):
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0]))
                served.append(head)
                writer.write(answers[len(served) - 1])
                if b"\r\nConnection: close\r\n" in answers[len(served) - 1]:
                    break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    gateway = Gateway(HostPort("127.0.0.1", server.sockets[0].getsockname()[1]), EtcdAccess(None, login), 5.0)
    try:
        yield gateway
    finally:
        gateway.close()
        server.close()
        await server.wait_closed()


@with_each("answer", [whole(b'{"header":{"revision":"7"}}'), chunked(b'{"header":', b'{"revision":"7"}}', b"\n")])
async def test_an_answer_is_read_whole_or_in_chunks(answer: bytes) -> None:
    async with answering(answer, answer) as gateway:
        for _ in range(2):  # over one connection
            assert (await gateway.call("kv", "/v3/kv/range", {})).revision == 7


@with_each(
    ("answer", "reason"),
    [
        (b"", "it closed the connection"),
        (b"SSH-2.0-OpenSSH\r\n", "it does not speak HTTP/1.1 there"),
        (b"HTTP/2 200\r\n\r\n", "it does not speak HTTP/1.1 there"),
        (OK, "it closed the connection"),
        (OK + b"\r\n{}", "its answer has no length"),
        (OK + b"Content-Length: -1\r\n\r\n", "its answer has no length"),
        (OK + b"Content-Length: 5\r\n\r\n{}", "it closed the connection"),
        (OK + b"Content-Length: %d\r\n\r\n" % (ANSWER_BYTES_MAX + 1), "its answer is larger than"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % (ANSWER_BYTES_MAX + 1), "its answer is larger than"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", "it closed the connection"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n%s1\r\n" % (b"0" * 64), "it closed the connection"),
        (OK + b"X: y\r\n" * (HEADERS_MAX + 1), f"its answer has more than {HEADERS_MAX} headers"),
        (OK + b"X" * (1 << 17), "chunk is longer than limit|chunk exceed the limit"),
        (whole(b"<html>"), "it does not answer like etcd's gateway"),
        (whole(b"[]"), "it does not answer like etcd's gateway"),
        (whole(b"[" * 200_000), "it does not answer like etcd's gateway"),
        (whole(b'{"header":' + b"9" * 5000 + b"}"), "it does not answer like etcd's gateway"),
        (whole(b'{"header":[]}'), "the header in its answer is no JSON object"),
        (whole(b'{"header":{"revision":"7' + b"0" * 5000 + b'"}}'), "the revision in its answer is no number"),
        (whole(b'{"header":{"revision":Infinity}}'), "the revision in its answer is no number"),
        (whole(b'{"header":{"revision":null}}'), "the revision in its answer is no number"),
        (whole(b'{"result":"x"}'), "the result in its answer is no JSON object"),
        (whole(b'{"error":"x","code":[]}'), "the code in its answer is no number"),
        (whole(b'{"error":"x","code":9,"message":"etcdserver: not leader"}'), "it answered: not leader"),
        (whole(b'{"error":"x","code":11,"message":"mvcc: required revision has been compacted"}'), "compacted"),
        (whole(b"{}", b"HTTP/1.1 404 Not Found\r\n"), "it answered with HTTP status 404"),
        (whole(b'{"error":"x","code":14,"message":"etcdserver: no leader"}'), "it answered: no leader"),
    ],
)
async def test_what_is_no_answer_of_etcd_leaves_the_outcome_unknown(answer: bytes, reason: str) -> None:
    async with answering(answer) as gateway:
        with pytest.raises(EtcdUnanswered, match=reason):
            await gateway.call("kv", "/v3/kv/range", {})


async def test_a_connection_that_the_server_closes_is_opened_again() -> None:
    """A proxy ends a connection after an answer, as it says, or later; the next request is sent over another one."""
    last = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    async with answering(last, whole(b"{}")) as gateway:
        for _ in range(2):
            await gateway.call("kv", "/v3/kv/range", {})
    served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        await reader.readuntil(b"\r\n\r\n")
        writer.write(whole(b"{}"))
        await writer.drain()
        served += 1
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        gateway = Gateway(HostPort("127.0.0.1", server.sockets[0].getsockname()[1]), EtcdAccess(), 5.0)
        await gateway.call("kv", "/v3/kv/range", {})
        streams = gateway._lane("kv")._streams
        assert streams is not None
        await eventually("the end of the connection is seen", streams[0].at_eof)
        await gateway.call("kv", "/v3/kv/range", {})
        gateway.close()
    assert served == 2


async def test_trailers_are_read_with_their_answer() -> None:
    """Header lines behind the last chunk are no part of the next answer."""
    trailed = chunked(b"{}").removesuffix(b"\r\n") + b"Grpc-Trailer-X: y\r\n\r\n"
    async with answering(trailed, whole(b'{"header":{"revision":"7"}}')) as gateway:
        await gateway.call("kv", "/v3/kv/range", {})
        assert (await gateway.call("kv", "/v3/kv/range", {})).revision == 7


async def test_what_a_server_says_is_repeated_on_one_line_and_not_whole() -> None:
    """The text of an error may have any size and any characters."""
    error = b'{"error":"x","code":14,"message":"a\\nb\\u001b' + b"c" * 100_000 + b'"}'
    async with answering(whole(error)) as gateway:
        with pytest.raises(EtcdUnanswered) as unanswered:
            await gateway.call("kv", "/v3/kv/range", {})
    assert str(unanswered.value).startswith("it answered: a b cc")
    assert len(str(unanswered.value)) < 2 * WORDS_MAX


@with_each("token", [rb'"a\r\nHost: x"', rb'"\ud800"', b"7", b'"' + b"x" * (TOKEN_MAX + 1) + b'"'])
async def test_a_token_that_is_no_header_is_not_sent(token: bytes) -> None:
    async with answering(whole(b'{"token":' + token + b"}"), login=EtcdLogin("ada", "secret")) as gateway:
        with pytest.raises(EtcdUnanswered, match="a token that cannot be sent back"):
            await gateway.log_in()


async def test_an_answer_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit holds for the sum of all chunks, and for a line of an answer that never ends."""
    monkeypatch.setattr(http, "ANSWER_BYTES_MAX", 20)
    async with answering(chunked(b"{      ", b"            }"), chunked(b"{      ", b"             }")) as gateway:
        await gateway.call("kv", "/v3/kv/range", {})
        with pytest.raises(EtcdUnanswered, match="larger than 20 bytes"):
            await gateway.call("kv", "/v3/kv/range", {})
    async with answering(chunked(b"x" * 15, b"y" * 15)) as gateway:
        with pytest.raises(EtcdUnanswered, match="a line of its answer is larger than 20 bytes"):
            await anext(gateway.watch(b"a", b"b", 1))


@with_each(
    ("error", "words"),
    [
        ('"code":3,"message":"etcdserver: too many operations in txn request"', "--max-txn-ops"),
        ('"code":3,"message":"etcdserver: request is too large"', "--max-request-bytes"),
        ('"code":7,"message":"etcdserver: permission denied"', "may not read and write below the prefix"),
        ('"code":8,"message":"etcdserver: mvcc: database space exceeded"', "alarm NOSPACE"),
        ('"code":15,"message":"etcdserver: corrupt cluster"', "alarm CORRUPT"),
        ('"code":3,"message":"etcdserver: key is not provided"', "it answered: key is not provided"),
    ],
)
async def test_a_refusal_says_what_to_do(error: str, words: str) -> None:
    async with answering(whole(b'{"error":"x",%s}' % error.encode()), login=EtcdLogin("u", "p")) as gateway:
        with pytest.raises(EtcdRefusal) as refused:
            await gateway.call("kv", "/v3/kv/txn", {})
        assert words in str(refused.value)


@pytest.mark.parametrize("words", ["permission denied", "user name is empty"])
async def test_without_a_login_a_refusal_says_that_it_is_needed(words: str) -> None:
    async with answering(whole(b'{"error":"x","code":7,"message":"etcdserver: %s"}' % words.encode())) as gateway:
        with pytest.raises(StoreRefused, match=r"requires a login: set etcd\.user and etcd\.password"):
            await gateway.call("kv", "/v3/kv/txn", {})


async def test_a_watch_yields_each_revision_with_its_events() -> None:
    created = b'{"result":{"header":{"revision":"4"},"created":true}}\n'
    two = (
        b'{"result":{"header":{},"events":[{"kv":{"key":"YQ==","value":"MQ==","mod_revision":"5","version":"3"}},'
        b'{"type":"DELETE","kv":{"key":"Yg==","mod_revision":"6"}}]}}\n'
    )
    async with answering(chunked(created, two[:30], two[30:])) as gateway:
        watch = gateway.watch(b"a", b"c", 5)
        assert await anext(watch) == (4, [])
        assert await anext(watch) == (5, [(b"a", b"1", 5, 3, False)])
        assert await anext(watch) == (6, [(b"b", b"", 6, 0, True)])
        with pytest.raises(EtcdUnanswered, match="it ended a stream"):
            await anext(watch)


@with_each(
    ("line", "reason"),
    [
        (b'{"result":{"canceled":true,"compact_revision":"9"}}\n', "its history is compacted"),
        (b'{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}\n', "no leader"),
        (b'{"result":{"events":[{"kv":{"key":"YQ=","mod_revision":"5"}}]}}\n', "a key that cannot be read"),
        (b'{"result":{"events":[{"kv":{"key":"YQ=="}}]}}\n', "a key that cannot be read"),
        (b'{"result":{"events":[{"kv":{"key":"YQ==","mod_revision":[]}}]}}\n', "the mod_revision in its answer is no"),
        (b'{"result":{"events":[7]}}\n', "the events in its answer are no list"),
        (b'{"result":{"events":{}}}\n', "the events in its answer are no list"),
        (b'{"result":[]}\n', "the result in its answer is no JSON object"),
    ],
)
async def test_a_watch_that_has_lost_events_ends(line: bytes, reason: str) -> None:
    async with answering(chunked(line)) as gateway:
        with pytest.raises(EtcdUnanswered, match=reason):
            await anext(gateway.watch(b"a", b"c", 5))


async def test_requests_on_one_connection_wait_for_each_other() -> None:
    """Two requests at once on one lane each get the answer to their own, as when both need a new token."""
    async with answering(whole(b'{"header":{"revision":"1"}}'), whole(b'{"header":{"revision":"2"}}')) as gateway:
        answers = await asyncio.gather(*(gateway.call("kv", "/v3/kv/range", {}) for _ in range(2)))
        assert [each.revision for each in answers] == [1, 2]


STALE = whole(b'{"error":"x","code":16,"message":"etcdserver: invalid auth token"}', b"HTTP/1.1 401 Unauthorized\r\n")
TOKEN = whole(b'{"token":"abc"}')


async def test_a_token_that_is_no_longer_known_is_asked_for_again() -> None:
    """A server that has restarted refuses the token; the request, which had no effect, is sent with a new one."""
    async with answering(TOKEN, STALE, TOKEN, whole(b"{}"), login=EtcdLogin("ada", "secret")) as gateway:
        await gateway.log_in()
        await gateway.call("kv", "/v3/kv/range", {})


async def test_a_wrong_password_is_a_refusal() -> None:
    wrong = b'{"error":"x","code":3,"message":"etcdserver: authentication failed, invalid user ID or password"}'
    async with answering(whole(wrong), login=EtcdLogin("ada", "secret")) as gateway:
        with pytest.raises(StoreRefused, match="refuses the login of 'ada'"):
            await gateway.log_in()
    assert "secret" not in repr(EtcdLogin("ada", "secret"))


async def test_an_etcd_without_users_needs_no_login() -> None:
    off = b'{"error":"x","code":9,"message":"etcdserver: authentication is not enabled"}'
    async with answering(whole(off), login=EtcdLogin("ada", "secret")) as gateway:
        await gateway.log_in()
