"""One seed, one life: nothing that a coordinator stores depends on anything but what it is given."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.harness import ROOT


def told(seed: int, hash_seed: int) -> list[str]:
    """Size and digest of each log of a life in a process of its own, where sets have an order of their own."""
    command = [sys.executable, "-m", "tests.groups.life", str(seed)]
    ran = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": str(hash_seed)}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_a_seed_decides_every_byte_of_the_logs() -> None:
    """Twice the same groups with one seed, other ones with another; and there is something to compare."""
    first = told(seed=1, hash_seed=1)
    assert sum(int(line.split()[0]) > 5_000 for line in first) >= 2
    assert told(seed=1, hash_seed=2) == first
    assert told(seed=2, hash_seed=1) != first
