"""A follower with a lying leader, in core and under AddressSanitizer: see tests/core/hostile.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.hostile import Liar

CONNECTIONS = 250


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_follower_takes_no_harm(tmp_path: Path, seed: int) -> None:
    """A follower with a lying leader fetches on, drops a partition or closes the connection with a reason.

    All that it stored can be read, before and after a restart.
    """
    liar = Liar(tmp_path, seed)
    for _ in range(CONNECTIONS):
        liar.one()
    liar.check_memory()
    liar.close()
    reasons = {"the leader sent a malformed response", "the leader refused the Fetch request"}
    assert reasons <= liar.ended.keys()
    assert {("failed", 2), ("failed", 87), ("diverged", 0), ("log_start", 0)} <= liar.out.keys()
    assert liar.stored > 1000
