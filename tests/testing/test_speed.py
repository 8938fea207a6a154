"""How long a test waits for its broker: from the call to the first acknowledged record, and until all of it is gone."""

from __future__ import annotations

import os
import statistics
import time

import pytest

from pybroker.testing import Mode, broker

ROUNDS = 20
PROMISED_MS = {"inprocess": 300, "subprocess": 600}
PATIENCE = 5
"""What a machine may be slower when all of its processors are busy with other tests."""


def round_ms(mode: Mode) -> tuple[float, float]:
    """(until the first record is acknowledged, until everything is gone) of one broker."""
    called = time.perf_counter()
    with broker(mode=mode) as fresh:
        fresh.produce("t", b"x")
        acknowledged = time.perf_counter()
    return (acknowledged - called) * 1000, (time.perf_counter() - acknowledged) * 1000


def test_the_first_record_is_acknowledged_soon(mode: Mode, capsys: pytest.CaptureFixture[str]) -> None:
    """The median of twenty brokers, printed beside what is promised; the promise itself is for a machine at rest."""
    first, *rounds = [round_ms(mode) for _ in range(ROUNDS + 1)]
    acknowledged, gone = (statistics.median(times) for times in zip(*rounds, strict=True))
    quickest, slowest = min(rounds)[0], max(rounds)[0]
    with capsys.disabled():
        print(
            f"\n  {mode}: first acknowledged record after {acknowledged:.0f} ms, median of {ROUNDS} brokers "
            f"({quickest:.0f} to {slowest:.0f}; {first[0]:.0f} the first of all); promised: {PROMISED_MS[mode]}; "
            f"gone {gone:.0f} ms later; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
        )
    assert acknowledged < PATIENCE * PROMISED_MS[mode]
