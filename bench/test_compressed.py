"""W1 with compressed batches: the cost of decompressing each and reading its records before it is stored.

Ours runs twice, with `record.validation` full, its default, and envelope, which checks headers and CRC only; Kafka
3.9.1, which always decompresses, takes part with PYBROKER_BENCH_KAFKA=yes. All take turns on the first core. gzip and
zstd halve the text; snappy and LZ4 leave two thirds.
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
from pybroker.cli.bench.load import WORKLOADS, Prepared
from pybroker.model import CODECS

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
    """Batches that are decompressed and read to the last record, at a multiple of Kafka's rate."""
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
