"""The effects of becoming leader on a log."""

from pathlib import Path

from pybroker.core import LogManager, build_batch


def test_a_lone_leader_has_committed_all_of_its_log(tmp_path: Path) -> None:
    """A leader without followers commits its whole log, even if a crash left an older high watermark checkpoint."""
    batch = build_batch([(1, None, b"x", ())])
    broker = LogManager()
    partition = broker.open(str(tmp_path), "t", 0, topic_id=bytes(15) + b"\x02", config={})
    partition.become_leader(0, 0)
    for _ in range(3):
        partition.append(batch, now_ms=1)
    broker.close(clean=False)
    broker = LogManager()
    partition = broker.open(str(tmp_path), "t", 0, topic_id=bytes(15) + b"\x02", config={}, high_watermark=1)
    assert (partition.high_watermark, partition.log_end_offset) == (1, 3)
    partition.become_leader(1, 1)
    assert partition.high_watermark == partition.last_stable_offset == 3
    broker.close()
