"""A follower under a leader that lies, in core and under AddressSanitizer: see tests/core/hostile.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.hostile import Liar

CONNECTIONS = 250


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_follower_takes_no_harm(tmp_path: Path, seed: int) -> None:
    """It asks on, lets go of a partition, or ends the connection with a reason; all that it stored is read, before and
    after a restart."""
    liar = Liar(tmp_path, seed)
    for _ in range(CONNECTIONS):
        liar.one()
    liar.check_memory()
    liar.close()
    reasons = {"its leader sent an answer that cannot be read", "its leader refuses to be fetched from"}
    assert reasons <= liar.ended.keys()
    assert {("failed", 2), ("failed", 87), ("diverged", 0), ("log_start", 0)} <= liar.out.keys()
    assert liar.stored > 1000
