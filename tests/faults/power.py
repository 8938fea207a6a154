"""Brokers that can lose power: a preloaded library (powercut.c) keeps what each sync made durable."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.harness import BrokerProcess

SOURCE = Path(__file__).with_name("powercut.c")


def build(to: Path) -> Path:
    """Build the library in a directory."""
    made = to / "powercut.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", made, SOURCE, "-ldl"], check=True)
    return made


class Plug(BrokerProcess):
    """A broker that can lose power; each life has its own disk with what the previous life made durable."""

    def plug_in(self, home: Path, library: Path) -> None:
        """Prepare the first life; the broker's disks are below `home`."""
        self._home, self._library, self._lives = home, library, 0
        self.data_dir = self._disk / "new" / "data"
        self._disk.mkdir(parents=True)

    @property
    def _disk(self) -> Path:
        return self._home / f"disk-{self._lives}"

    @property
    def _durable(self) -> Path:
        return self._home / f"durable-{self._lives}"

    def environment(self) -> Mapping[str, str]:
        self._durable.mkdir(exist_ok=True)  # it may have been killed meanwhile, in the same boot
        names = {"LD_PRELOAD": self._library, "POWERCUT_ROOT": self._disk, "POWERCUT_DURABLE": self._durable}
        return {**super().environment(), **{name: str(path) for name, path in names.items()}}

    def lose_power(self) -> None:
        """Kill the broker; its next life begins with what is on disk."""
        self.kill()
        kept = self._durable
        self._lives += 1
        rebuild(kept, (kept / "root").read_text(), self._disk)
        self.data_dir = self._disk / "new" / "data"


def rebuild(kept: Path, identity: str, to: Path) -> None:
    """Make a directory with the durable content of another; of a file that was never synced at most the name exists."""
    to.mkdir()
    listing = kept / identity
    for line in listing.read_text().splitlines() if listing.exists() else ():
        kind, child, name = line.split(" ", 2)
        if kind == "d":
            rebuild(kept, child, to / name)
        elif (kept / child).exists():
            shutil.copy(kept / child, to / name)
        else:
            (to / name).touch()
