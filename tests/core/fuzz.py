"""Drives a live plane with mutated requests, forever or for a while: `python -m tests.core.fuzz [SECONDS [SEED]]`.

Three things must hold for each connection. It ends, and all its answers are whole. The Python codec accepts each
request that the plane executed natively, and its answer. No other connection is affected.
"""

from __future__ import annotations

import random
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path

from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.core.mutants import FETCH, PRODUCE, VERSIONS, fetch, joined, produce, spoil
from tests.core.stage import TOPIC_ID, Client, Stage, batch

REQUESTS = {PRODUCE: m.ProduceRequest, FETCH: m.FetchRequest}
SESSION_ERRORS = (70, 71, 106)  # the plane answers these before it reads the request's tags
TURNS_MAX = 400  # enough for a connection to end after its client has gone


class Fuzzer:
    """One plane, stepped by hand, and the client that attacks it."""

    def __init__(self, home: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.stage = Stage(home)
        self.honest = Client(self.stage)
        self.native = 0  # mutants that the plane executed without Python
        self.session = (0, -1)

    def request(self) -> tuple[int, int, bytes]:
        """(api, version, frame), usually spoiled; a Fetch may use the session that an earlier Fetch began."""
        rng = self.rng
        api = rng.choice([PRODUCE, FETCH])
        version = rng.choice(VERSIONS[api])
        if api == PRODUCE:
            pieces = produce(rng, version, b"t", TOPIC_ID)
        else:
            session = rng.choice([(0, -1), (0, 0), self.session, (self.session[0], rng.randrange(3)), (7, 0)])
            pieces = fetch(rng, version, b"t", TOPIC_ID, session=session)
        if rng.random() < 0.9:
            spoil(pieces, rng)
        return api, version, joined(pieces)

    def one(self) -> None:
        """Run one connection: send one or two requests in pieces, and wait for its end."""
        rng = self.rng
        api, version, frame = self.request()
        size = len(frame)
        if rng.random() < 0.05:
            size = rng.choice([size + 1, max(size - 1, 0), -1, 0, 7, 1 << 30])
        sent = struct.pack(">i", size) + frame
        alone = rng.random() < 0.7
        if not alone:
            other = self.request()[2]
            sent += struct.pack(">i", len(other)) + other
        before = self.executed()
        answers, asked = self.exchange(sent)
        done = self.executed() - before
        self.native += done
        if alone and size == len(frame) and done and not asked:
            self.compare(api, version, frame, answers)

    def executed(self) -> int:
        stats = self.stage.plane.stats()[0]
        return stats["Produce"]["requests"] + stats["Fetch"]["requests"]

    def exchange(self, sent: bytes) -> tuple[list[bytes], int]:
        """Send a few bytes per write, with turns between; return the answers and the number of requests for Python."""
        client = Client(self.stage)
        self.stage.clients.remove(client)
        with client.sock as sock:
            asked = self.say(sock, sent)
            data, more = self.hear(sock)
        return whole(data), asked + more

    def say(self, sock: socket.socket, sent: bytes) -> int:
        asked = 0
        cuts = sorted(self.rng.sample(range(len(sent)), min(self.rng.choice([0, 0, 1, 3]), len(sent))))
        try:
            for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
                sock.sendall(sent[start:end])
                self.stage.plane.step(0)
                asked += self.answer_letters()
            sock.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the plane closed the connection because of earlier bytes
        return asked

    def hear(self, sock: socket.socket) -> tuple[bytes, int]:
        """Receive everything until the plane closes the connection."""
        data, asked = bytearray(), 0
        sock.setblocking(False)
        for _ in range(TURNS_MAX):
            self.stage.plane.step(0)
            asked += self.answer_letters()
            try:
                piece = sock.recv(1 << 16)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                piece = b""
            if not piece:
                return bytes(data), asked
            data += piece
        raise AssertionError("the connection does not end though its client has closed it")

    def answer_letters(self) -> int:
        asked = 0
        for kind, _, token, _ in self.stage.plane.take():
            if kind == "request":
                asked += 1
                self.stage.plane.reply(token, None, close=self.rng.random() < 0.5)
        return asked

    def compare(self, api: int, version: int, frame: bytes, answers: list[bytes]) -> None:
        """Check that the Python codec accepts a request that the plane executed, and its answer."""
        try:
            header = codec.decode_request_header(frame)
            request, end = codec.decode(REQUESTS[api], version, frame, header.body_offset)
        except codec.ProtocolError as problem:
            text = "utf-8" in problem.message.lower()  # an invalid client id or topic name
            lost = api == FETCH and codec.decode_response(api, version, answers[0])[1].error_code in SESSION_ERRORS
            assert text or lost, f"{problem}: {frame.hex()}"
            return
        assert end == len(frame), frame.hex()
        assert len(answers) == (0 if api == PRODUCE and request.acks == 0 else 1)
        for answer in answers:
            correlation, response = codec.decode_response(api, version, answer)
            assert correlation == header.correlation_id
            if api == FETCH and version >= 7 and response.session_id:
                self.session = (response.session_id, max(request.session_epoch, 0) + 1)

    def check_others(self) -> None:
        """Check that a well-behaved client is still served: the record that it reads is the one that it wrote."""
        records = batch(b"honest")
        self.honest.produce(records, number=5)
        self.stage.step()
        part = self.honest.receive(PRODUCE, 9)[1].responses[0].partition_responses[0]
        assert part.error_code == 0
        self.honest.fetch(part.base_offset, number=6)
        self.stage.step()
        found = self.honest.receive(FETCH, 12)[1].responses[0].partitions[0]
        assert bytes(found.records)[21:] == records[21:]
        deadline = time.monotonic() + 30
        while self.stage.plane.stats()[0]["connections"] > 1:  # read-ahead may still hold some
            self.answer_letters()
            self.stage.plane.step(0, 1)
            assert time.monotonic() < deadline, "closed connections are kept"


def whole(data: bytes) -> list[bytes]:
    """Split a stream into answers; each must be complete."""
    answers, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        assert size >= 4 and at + 4 + size <= len(data), "an answer was not sent whole"
        answers.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return answers


def main() -> None:
    seconds, seed = [float(a) for a in [*sys.argv[1:], *["60", "1"][len(sys.argv) - 1 :]]]
    end, done = time.monotonic() + seconds, 0
    with tempfile.TemporaryDirectory() as home:
        fuzzer = Fuzzer(Path(home), int(seed))
        while time.monotonic() < end:
            for _ in range(200):
                fuzzer.one()
            done += 200
            fuzzer.check_others()
        fuzzer.stage.close()
    print(f"{done} mutants, {fuzzer.native} requests executed natively")


if __name__ == "__main__":
    main()
