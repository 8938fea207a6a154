"""What becoming the leader does to a log."""

from pathlib import Path

from pybroker.core import Broker, build_batch


def test_a_lone_leader_has_committed_all_of_its_log(tmp_path: Path) -> None:
    """After a crash the checkpoint of the high watermark is old; what the log holds was acknowledged all the same."""
    batch = build_batch([(1, None, b"x", ())])
    broker = Broker()
    partition = broker.open(str(tmp_path), "t", 0, topic_id=bytes(15) + b"\x02", config={})
    partition.become_leader(0, 0)
    for _ in range(3):
        partition.append(batch, now_ms=1)
    broker.close(clean=False)
    broker = Broker()
    partition = broker.open(str(tmp_path), "t", 0, topic_id=bytes(15) + b"\x02", config={}, high_watermark=1)
    assert (partition.high_watermark, partition.log_end_offset) == (1, 3)
    partition.become_leader(1, 1)
    assert partition.high_watermark == partition.last_stable_offset == 3
    broker.close()
