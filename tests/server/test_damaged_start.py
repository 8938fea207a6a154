"""Files of a broker that are gone or damaged at a start: who it is, and what it knew, come from what is left."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker.errors import KafkaError
from pybroker.server.directories import STORE_FILE
from tests.server.live import Live, Wire, batch, values

META = "meta.properties"
COUNT = 3


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    """A broker that was stopped, with one topic."""
    made = Live(tmp_path / "data")
    await made.start()
    await filled(await made.connect(), "t")
    await made.stop()
    yield made
    await made.stop()


async def filled(wire: Wire, name: str, partitions: int = 1, **config: str) -> None:
    assert (await wire.create(name, partitions, **config)).error_code == 0
    for partition in range(partitions):
        for n in range(COUNT):
            assert (await wire.produce(name, batch(b"%d" % n), partition=partition)).base_offset == n


async def read(live: Live, name: str = "t") -> list[bytes | None]:
    return values((await (await live.connect()).fetch(name, 0)).records)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def numbers(count: int = COUNT) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


# -- meta.properties ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gone", "empty"])
async def test_without_meta_properties_the_store_says_who_the_broker_is(
    live: Live, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """A new broker id would leave every partition without its leader. One line says that the file was missing."""
    meta = live.data_dir / META
    before = meta.read_text().splitlines()
    if how == "gone":
        meta.unlink()
    else:
        meta.write_text("")
    for life in range(2):
        caplog.clear()
        broker = await live.start()
        assert broker.broker_id == 1001
        assert await read(live) == numbers(COUNT + life)
        wire = await live.connect()
        assert (await wire.produce("t", batch(b"%d" % (COUNT + life)))).base_offset == COUNT + life
        await live.stop()
        assert [line for line in warnings(caplog) if META in line] == (
            [f"file was missing, made anew file={meta} broker=1001"] if life == 0 else []
        )
    assert {line for line in before if "=" in line} == {line for line in meta.read_text().splitlines() if "=" in line}


async def test_another_broker_id_than_the_stores_is_refused(live: Live) -> None:
    (live.data_dir / META).unlink()
    with pytest.raises(KafkaError, match=r"broker\.id is 7, but the data is of broker 1001"):
        await live.start("broker.id=7")


async def test_without_meta_properties_the_other_log_dirs_say_who_the_broker_is(live: Live, tmp_path: Path) -> None:
    """And where nothing says it, a person has to: a number that is drawn would be another broker's."""
    dirs = f"log.dirs={live.data_dir},{tmp_path / 'two'}"
    await live.start(dirs)
    await filled(await live.connect(), "u", 2)
    await live.stop()
    [of_store] = re.findall("^directory.id=(.*)", (live.data_dir / META).read_text(), re.M)
    (live.data_dir / META).unlink()
    (live.data_dir / STORE_FILE).unlink()
    broker = await live.start(dirs, give_up=[of_store])
    assert broker.broker_id == 1001
    await live.stop()
    (live.data_dir / STORE_FILE).unlink()
    for path in (live.data_dir, tmp_path / "two"):
        (path / META).unlink()
    with pytest.raises(KafkaError, match=r"hold partitions, and neither .* set broker\.id"):
        await live.start(dirs)
    broker = await live.start(dirs, "broker.id=1001")
    assert (broker.broker_id, await read(live)) == (1001, numbers())
