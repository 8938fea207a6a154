"""The embedded store's file survives kill -9, and damage, other owners and a full disk are refused."""

import asyncio
import contextlib
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.coordination.embedded import EmbeddedStore
from pybroker.coordination.store import StoreFailed, WatchEvent
from pybroker.coordination.tree import Tree
from tests.coordination.conftest import TIMEOUT_MS, on_the_thread, opened

ROOT = Path(__file__).resolve().parent.parent.parent

# -- what survives ----------------------------------------------------------------------------------------------------


async def test_a_store_opened_again_has_everything_but_the_ephemeral_nodes(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    async with opened(file, wall_ms=lambda: 1234) as store:
        session = await store.session(TIMEOUT_MS)
        await session.create("/kept", b"data")
        await session.create("/kept/child")
        before = await session.set("/kept", b"later")
        await session.create("/kept/brief", ephemeral=True)
        await session.create("/brief", ephemeral=True)
    async with opened(file) as store:
        session = await store.session(TIMEOUT_MS)
        data, stat = await session.get("/kept")
        assert data == b"later"
        assert stat == before._replace(cversion=3, pzxid=stat.pzxid)
        assert (stat.ctime_ms, stat.num_children) == (1234, 1)
        assert (await session.children("/"))[0] == ["kept"]
        _, new = await session.create("/new")
        assert new.czxid > stat.pzxid > before.mzxid


CHILD = """
import asyncio, sys
from pybroker.coordination.embedded import EmbeddedStore
async def main():
    store = EmbeddedStore(sys.argv[1])
    print("opening", flush=True)
    await store.open()
    session = await store.session(18_000)
    await session.create("/ids", ephemeral=True)
    if await session.exists("/log") is None:
        await session.create("/log")
    while True:
        answers = await asyncio.gather(*[session.create("/log/n-", b"x" * 100, sequential=True) for _ in range(7)])
        for path, stat in answers:
            print(path, stat.czxid, flush=True)
asyncio.run(main())
"""


async def test_what_was_answered_is_there_after_kill_9(tmp_path: Path) -> None:
    """After kill -9 at any moment every answered write is there, and no zxid repeats."""
    file = tmp_path / "store.db"
    chance = random.Random(7)
    answered: dict[str, int] = {}
    for _ in range(6):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(file)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        said = "".join(child.stdout.readline() for _ in range(chance.choice([1, 1, 60, 200])))
        time.sleep(chance.random() / 50)
        child.send_signal(signal.SIGKILL)
        said += child.communicate()[0]
        for line in said.rpartition("\n")[0].splitlines()[1:]:  # the last line may be cut
            path, czxid = line.split()
            assert answered.setdefault(path, int(czxid)) == int(czxid)
        async with opened(file) as store:
            session = await store.session(TIMEOUT_MS)
            assert await session.exists("/ids") is None
            if await session.exists("/log"):
                names, stat = await session.children("/log")
                assert stat.num_children == len(names)
                found = {f"/log/{name}": (await session.get(f"/log/{name}"))[1].czxid for name in names}
                assert answered.items() <= found.items()
                assert len(set(found.values())) == len(found)
    assert len(answered) > 200


# -- the file ---------------------------------------------------------------------------------------------------------


def not_a_database(file: Path) -> None:
    file.write_bytes(b"this is no database " * 1000)


def another_programs(file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as sql:
        sql.execute("CREATE TABLE theirs (x)")


def of_tomorrow(file: Path) -> None:
    with contextlib.closing(sqlite3.connect(file)) as sql:
        sql.execute("PRAGMA user_version = 2")


def damaged(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-4096:] = b"\xa5" * 4096
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (not_a_database, r"^the coordination store \S+ is damaged, or is not an SQLite database: \w"),
        (another_programs, r"^\S+ is a database of another program, not a coordination store$"),
        (of_tomorrow, r"^the coordination store \S+ has format 2; this pybroker reads 1$"),
        (damaged, r"^the coordination store \S+ is damaged"),
    ],
)
async def test_a_file_that_cannot_be_trusted_is_refused_in_one_sentence(
    tmp_path: Path, spoil: Callable[[Path], None], why: str
) -> None:
    file = tmp_path / "store.db"
    if spoil in (of_tomorrow, damaged):
        async with opened(file) as store:
            session = await store.session(TIMEOUT_MS)
            await asyncio.gather(*[session.create(f"/{i}", b"x" * 500) for i in range(100)])
    spoil(file)
    before = file.read_bytes()
    with pytest.raises(StoreFailed, match=why):
        await EmbeddedStore(str(file)).open()
    assert file.read_bytes() == before


async def test_a_directory_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="its directory does not exist"):
        await EmbeddedStore(str(tmp_path / "none" / "store.db")).open()


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    """An empty file, which a crash during creation leaves, becomes a store."""
    (tmp_path / "store.db").touch()
    async with opened(tmp_path / "store.db") as store:
        await (await store.session(TIMEOUT_MS)).create("/n")


async def test_a_second_process_is_kept_out_and_let_in_after_kill_9(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(file)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for _ in range(3):
        child.stdout.readline()
    with pytest.raises(StoreFailed, match="is in use by another process"):
        await EmbeddedStore(str(file)).open()
    child.kill()
    child.communicate()
    async with opened(file):
        pass


async def test_a_second_store_of_this_process_is_kept_out_too(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db"):
        with pytest.raises(StoreFailed, match="in use"):
            await EmbeddedStore(str(tmp_path / "store.db")).open()


async def test_a_copy_of_a_running_stores_files_opens(tmp_path: Path) -> None:
    """A copy of a running store's files, as in a backup or after a loss of power, has all answered writes."""
    async with opened(tmp_path / "store.db") as store:
        session = await store.session(TIMEOUT_MS)
        await session.create("/n", b"x")
        (tmp_path / "copy").mkdir()
        for file in tmp_path.glob("store.db*"):
            shutil.copy(file, tmp_path / "copy")
    async with opened(tmp_path / "copy" / "store.db") as store:
        assert (await (await store.session(TIMEOUT_MS)).get("/n"))[0] == b"x"


# -- a full disk ------------------------------------------------------------------------------------------------------


async def test_a_full_disk_fails_what_does_not_fit_and_nothing_else(embedded: EmbeddedStore) -> None:
    """On a full disk the large write of a batch fails without notifying watches, and the small one succeeds."""
    session = await embedded.session(TIMEOUT_MS)
    await session.create("/n")
    heard: list[WatchEvent] = []
    await session.children("/", watch=heard.append)
    limit = await on_the_thread(embedded, lambda tree: tree._one("PRAGMA page_count")[0])
    await on_the_thread(embedded, lambda tree: tree._one(f"PRAGMA max_page_count = {limit}"))

    large, small, read = session.create("/large", b"x" * 100_000), session.set("/n", b"small"), session.get("/n")
    with pytest.raises(StoreFailed, match="database or disk is full"):
        await large
    assert (await small).version == 1
    assert (await read)[0] == b"small"
    assert heard == []

    await on_the_thread(embedded, lambda tree: tree._one("PRAGMA max_page_count = 1000000"))
    _, created = await session.create("/large", b"x" * 100_000)
    assert created.czxid > (await small).mzxid
    assert len(heard) == 1


async def test_an_opening_that_cannot_write_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that cannot be opened on a full disk can be closed, and opens once there is room."""

    def full(tree: Tree) -> None:
        problem = sqlite3.OperationalError("database or disk is full")
        problem.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise problem

    file = tmp_path / "store.db"
    store = EmbeddedStore(str(file))
    with monkeypatch.context() as patched:
        patched.setattr(Tree, "commit", full)
        with pytest.raises(StoreFailed, match="cannot be opened: database or disk is full"):
            await store.open()
    await asyncio.wait_for(store.close(), 10)
    async with opened(file):
        pass


async def test_a_session_whose_store_fails_is_ended_once_it_works(
    embedded: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session whose end could not be stored is ended once the store works, so that its ephemeral nodes go."""
    monkeypatch.setattr("pybroker.coordination.local_session.RETRY_S", 0.01)
    session, other = await embedded.session(TIMEOUT_MS), await embedded.session(TIMEOUT_MS)
    await session.create("/ids", ephemeral=True)
    whole = Tree.end_session
    failures = iter([sqlite3.OperationalError("disk I/O error")] * 3)

    def failing(tree: Tree, number: int, events: list[WatchEvent]) -> None:
        if error := next(failures, None):
            raise error
        whole(tree, number, events)

    monkeypatch.setattr(Tree, "end_session", failing)
    await session.close()
    assert await other.exists("/ids") is None
    assert next(failures, None) is None
