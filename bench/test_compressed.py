"""W1 with compressed batches: what it costs to decompress each and to read its records before it is stored.

Ours runs twice, with `record.validation` full, its default, and envelope, which looks at headers and CRC alone; Kafka
3.9.1, which always looks inside, joins with PYBROKER_BENCH_KAFKA=yes. All take turns on the first core; the text is one
that gzip and zstd make half as large, snappy and LZ4 two thirds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench.figures import show
from bench.payloads import drop_cache
from bench.peers import KAFKA, OURS, Peer, brokers
from pybroker.client.load import WORKLOADS, Prepared
from pybroker.protocol.compression import CODECS

ROUNDS, ROUND_S = 4, 0.5
WARM_S = {KAFKA: 3.0, OURS: 0.5}
ROUND_BYTES_MAX = 640 << 20
OF_KAFKA = {"lz4": 4.0, "snappy": 4.0, "zstd": 3.0, "gzip": 3.0}
FULL, ENVELOPE = "full", "envelope"


@pytest.fixture(scope="module")
def servers(shared_log_dir: Path) -> Iterator[list[Peer]]:
    with brokers(shared_log_dir) as started:
        yield started


@pytest.mark.parametrize("codec", OF_KAFKA)
def test_compressed(benchmark: Any, servers: list[Peer], codec: str) -> None:
    """Batches that are decompressed and read to the last record, at so many times the rate of Kafka."""
    workload = WORKLOADS["W1"]._replace(name=f"w1-{codec}", codec=CODECS.index(codec))
    with ExitStack() as stack:
        ready: dict[str, Prepared] = {}
        for peer in servers:
            if peer.name == OURS:
                ready[FULL] = peer.prepared(workload, stack)
                ready[ENVELOPE] = peer.prepared(workload, stack, record_validation=ENVELOPE)
            else:
                ready[KAFKA] = peer.prepared(workload, stack)
        for name, prepared in ready.items():
            prepared.run(WARM_S.get(name, WARM_S[OURS]), bytes_max=ROUND_BYTES_MAX)
        rates: dict[str, list[float]] = {name: [] for name in ready}

        def turn(name: str) -> None:
            outcome = ready[name].run(ROUND_S, bytes_max=ROUND_BYTES_MAX)
            assert not outcome.errors, outcome
            rates[name].append(outcome.records_s)

        def others() -> None:
            for name in ready:
                drop_cache(*(peer.pid for peer in servers))
                if name != FULL:
                    turn(name)
            drop_cache(*(peer.pid for peer in servers))

        benchmark.pedantic(turn, args=(FULL,), setup=others, rounds=ROUNDS)
    best = {name: max(each) for name, each in rates.items()}
    beside = "; ".join(f"{name} {rate / 1e6:.2f} M rec/s" for name, rate in best.items() if name != FULL)
    share, met = f"{best[FULL] / best[ENVELOPE]:.0%} of envelope", None
    if KAFKA in best:
        times = best[FULL] / best[KAFKA]
        share, met = f"{share}, {times:.1f}x {KAFKA} (>= {OF_KAFKA[codec]:.0f}x)", times >= OF_KAFKA[codec]
    show(f"W1 in {codec}", "record.validation=full, on one core", f"{best[FULL] / 1e6:.2f} M rec/s", beside, share, met)
