"""A lying leader: its answers to a follower's Fetch are wrong in every way, and the follower must stay sound.

    python -m tests.core.hostile [SECONDS [SEED]]

An answer is built from values that the protocol can express: offsets at the edges of 64 bits, other topics, a partition
twice, batches that overlap, jump or have false headers. Most answers are then garbled into bytes that the protocol
cannot express. After any answer the follower fetches on, has no partition left to fetch, or has ended the connection
with a reason. What it stored can be read.
"""

from __future__ import annotations

import os
import random
import resource
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pybroker import core
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.core.following import EPOCH, FETCH, TOPIC_ID, Brought, Following, batch, content

PARTITIONS = 3
LONGEST = (1 << 63) - 1
EDGES = [-(1 << 63), -(1 << 31), -2, -1, 0, 1, 2, 7, (1 << 31) - 1, 1 << 31, 1 << 62, LONGEST - (1 << 31), LONGEST]
COUNTS = [-(1 << 31), -1, 0, 1, 2, 1 << 16, (1 << 31) - 1]
SHORTS = [-(1 << 15), -1, 0, 1, 2, 3, 4, 5, 7, 16, 32, 64, 0x7FFF]
CRC_AT, ATTRIBUTES_AT = 17, 21
FIELDS = {
    "base offset": (0, ">q", EDGES), "length": (8, ">i", COUNTS), "leader epoch": (12, ">i", [*COUNTS, 5, 6]),
    "magic": (16, ">b", [-1, 0, 1, 2, 3]), "attributes": (21, ">h", SHORTS), "last delta": (23, ">i", COUNTS),
    "first time": (27, ">q", EDGES), "largest time": (35, ">q", EDGES), "producer": (43, ">q", EDGES),
    "producer epoch": (51, ">h", SHORTS), "sequence": (53, ">i", COUNTS), "count": (57, ">i", COUNTS),
}  # fmt: skip
"""Fields of a batch header: offset, format, and the values that a lying leader writes there."""
GROWTH_BYTES_MAX = 200 << 20


def sealed(data: bytearray) -> bytes:
    """Give the batch its right CRC, so that the follower checks the fields behind it."""
    data[CRC_AT:ATTRIBUTES_AT] = struct.pack(">I", core.crc32c(bytes(data[ATTRIBUTES_AT:])))
    return bytes(data)


class Liar:
    """One follower and its lying leader, driven by one seed."""

    def __init__(self, home: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.following = Following(home, PARTITIONS)
        self.answers = 0
        self.ended: dict[str, int] = {}
        self.out: dict[object, int] = {}
        self.stored = 0
        self.grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    # -- what the leader sends ---------------------------------------------------------------------------------------

    def records(self, index: int) -> bytes:
        """Build batches that may be valid or not."""
        rng = self.rng
        at = self.following.partitions[index].log_end_offset
        data = b""
        for _ in range(rng.choice([0, 1, 1, 2, 5, 70])):
            count = rng.choice([1, 1, 2, 9])
            how = rng.choice([{}, {}, {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}])
            epoch = EPOCH - (rng.random() < 0.1)
            made = batch(count, at, epoch, rng.randbytes(rng.choice([0, 3, 300])), **how)
            data += self.spoilt(made) if rng.random() < 0.4 else made
            at += count + rng.choice([0, 0, 0, 3, -1, 1 << 20])
        if rng.random() < 0.1:
            data = data[: rng.randrange(len(data) + 1)] + rng.randbytes(rng.randrange(80))
        return data

    def spoilt(self, made: bytes) -> bytes:
        """Set fields to extreme values, or bytes to random ones; usually with the right CRC."""
        rng = self.rng
        data = bytearray(made)
        for _ in range(rng.choice([1, 1, 2])):
            at, kind, values = FIELDS[rng.choice(list(FIELDS))]
            struct.pack_into(kind, data, at, rng.choice(values))
        if rng.random() < 0.2 and len(data) > 61:
            data[rng.randrange(61, len(data))] ^= 1 << rng.randrange(8)
        return sealed(data) if rng.random() < 0.8 else bytes(data)

    def part(self, index: int) -> Brought:
        rng = self.rng
        part = Brought(
            partition_index=index if rng.random() < 0.9 else rng.choice([-1, PARTITIONS, (1 << 31) - 1]),
            error_code=rng.choice(SHORTS) if rng.random() < 0.05 else 0,
            high_watermark=rng.choice([*EDGES, 1 << 40]), last_stable_offset=rng.choice(EDGES),
            log_start_offset=rng.choice(EDGES), records=self.records(index),
        )  # fmt: skip
        if rng.random() < 0.05:
            part.diverging_epoch = Brought.DivergingEpoch(epoch=rng.choice(COUNTS), end_offset=rng.choice(EDGES))
        if rng.random() < 0.1:
            kind = Brought.AbortedTransactions
            part.aborted_transactions = [kind(producer_id=rng.choice(EDGES), first_offset=1)] * rng.choice([0, 1, 50])
        return part

    def frame(self, request: m.FetchRequest) -> bytes:
        """Build an answer to the last request, with its size."""
        rng = self.rng
        kind = m.FetchResponse.Responses
        topics = [
            kind(
                topic="t", topic_id=TOPIC_ID if rng.random() < 0.95 else rng.randbytes(16),
                partitions=[self.part(rng.randrange(PARTITIONS)) for _ in range(rng.choice([0, 1, 2, 4]))],
            )
            for _ in range(rng.choice([0, 1, 1, 1, 2]))
        ]  # fmt: skip
        sessions = [0, 4711, request.session_id, request.session_id, -1, (1 << 31) - 1]
        answer = m.FetchResponse(
            session_id=rng.choice(sessions), error_code=rng.choice(SHORTS) if rng.random() < 0.03 else 0,
            throttle_time_ms=rng.choice(COUNTS), responses=topics,
        )  # fmt: skip
        leader = self.following.leader
        number = leader.correlation if rng.random() < 0.97 else rng.choice([-1, leader.correlation + 1])
        body = bytearray(codec.encode_response(FETCH, leader.version, number, answer))
        if rng.random() < 0.3:
            self.garble(body)
        size = len(body) if rng.random() < 0.97 else rng.choice([-1, 0, 3, len(body) + 1, (1 << 31) - 1, 1 << 24])
        return struct.pack(">i", size) + bytes(body)

    def garble(self, body: bytearray) -> None:
        """Overwrite bytes with counts, lengths and tag sections that are false."""
        rng = self.rng
        for _ in range(rng.choice([1, 1, 3])):
            at = rng.randrange(4, len(body))
            word = rng.choice(
                [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\0\1", b"\x80" * 6, rng.randbytes(4)]
            )
            if rng.random() < 0.5:
                body[at : at + len(word)] = word
            else:
                body[at:at] = word
        if rng.random() < 0.2:
            del body[rng.randrange(4, len(body)) :]

    # -- what the follower does --------------------------------------------------------------------------------------

    def one(self) -> None:
        """Run one connection, from the first request to its end."""
        following, rng = self.following, self.rng
        following.leader.sock.close()
        following.connect()
        request = following.add()
        for _ in range(rng.choice([1, 3, 10, 40])):
            if not self.answer(request):
                break
            self.answers += 1
            if (reason := following.ended()) is not None:
                assert len(reason) < 80, reason
                self.ended[reason] = self.ended.get(reason, 0) + 1
                break
            for event in following.events():
                self.judge(event)
            if not following.fetcher.partitions:
                break
            following.step()
            request = following.leader.request()
        following.leader.sock.close()
        following.step()
        assert following.ended() is not None, "the follower does not notice that its leader disconnected"
        following.letters.clear()
        self.look()

    def answer(self, request: m.FetchRequest) -> bool:
        """Send one answer in pieces; False if the leader hangs up in the middle."""
        rng = self.rng
        data = self.frame(request)
        if rng.random() < 0.02:
            data *= 2  # the second answer has no request
        cuts = sorted(rng.sample(range(len(data)), min(rng.choice([0, 0, 1, 3]), len(data))))
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            try:
                self.following.leader.sock.sendall(data[start:end])
            except (BrokenPipeError, ConnectionResetError):
                break
            self.following.step(1)
            if rng.random() < 0.01:
                return False
        self.following.step()
        (size,) = struct.unpack_from(">i", data)
        return size <= len(data) - 4 or self.following.ended() is not None

    def judge(self, event: core.FetcherEvent | None) -> None:
        if event is None:
            return
        assert event.partition is not None or event.kind == "failed", event
        self.out[event.kind, event.code] = self.out.get((event.kind, event.code), 0) + 1

    def look(self) -> None:
        """Check that the stored log can be read to its last record, and agrees with the watermarks."""
        for partition in self.following.partitions:
            end = partition.log_end_offset
            assert 0 <= partition.log_start_offset <= partition.high_watermark <= end
            data = content(partition)
            last = -1
            for _, header in core.iter_batches(data):
                assert last < header.base_offset <= header.last_offset < end
                last = header.last_offset
            assert partition.read(end, 1 << 20, to_log_end=True).slice is None
            self.stored = max(self.stored, end)
            if end > 1 << 40 or len(data) > 1 << 20:
                partition.truncate(0)

    def check_memory(self) -> None:
        if os.environ.get("PYBROKER_SANITIZE"):
            return  # AddressSanitizer keeps freed memory for a while
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self.grown) << 10
        assert grown < GROWTH_BYTES_MAX, f"{grown} bytes more than at the start"

    def close(self) -> Any:
        """Close, and check that a restart finds everything that was stored."""
        following = self.following
        known = [(p.log_start_offset, p.log_end_offset, content(p)) for p in following.partitions]
        home = Path(following.log.directory).parent
        following.close()
        again = core.LogManager()
        for index, (start, end, data) in enumerate(known):
            log = again.open(str(home), "t", index, topic_id=TOPIC_ID, config={}, compacted=True)
            assert (log.log_start_offset, log.log_end_offset, content(log)) == (start, end, data)
        again.close()


def main() -> None:
    seconds, seed = [float(a) for a in [*sys.argv[1:], *["60", "1"][len(sys.argv) - 1 :]]]
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as home:
        liar = Liar(Path(home), int(seed))
        while time.monotonic() < end:
            liar.one()
        liar.check_memory()
        liar.close()
    print(f"{liar.answers} answers; connections ended: {liar.ended}; partitions left: {liar.out}")


if __name__ == "__main__":
    main()
