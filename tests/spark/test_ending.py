"""What a pipeline settles at its start and at its end, without a JVM: the user's word first, no more than is done."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker.client.admin import Admin
from pybroker.model import TopicPartition
from pybroker.spark.pipeline import Job, runner
from pybroker.spark.pipeline.progress import Progress
from pybroker.spark.session import LOCAL_CHECKPOINTS

((MANAGER, QUICK),) = LOCAL_CHECKPOINTS.items()


class Spark:
    """What is asked of a session before the query starts."""

    def __init__(self, **conf: str) -> None:
        self.held = dict(conf)
        self.log_level = "WARN"
        self.conf = self.sparkContext = self

    def get(self, name: str, default: str | None) -> str | None:
        return self.held.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.held[name] = value

    def setLogLevel(self, level: str) -> None:
        self.log_level = level


def job(**how: Any) -> Job:
    return Job("h:1", "/t", "t", format="raw", **how)


@pytest.mark.parametrize(("scheme", "manager"), [("file", QUICK), ("hdfs", None), ("s3a", None)])
def test_quick_checkpoints_are_for_a_local_disk(
    monkeypatch: pytest.MonkeyPatch, scheme: str, manager: str | None
) -> None:
    """Elsewhere Spark's own manager of checkpoints knows better."""
    monkeypatch.setattr(runner, "Files", lambda *_: type("Disk", (), {"scheme": scheme}))
    spark = Spark()
    runner._settle(spark, job())  # type: ignore[arg-type]
    assert spark.held.get(MANAGER) == manager and spark.log_level == "OFF"


def test_what_the_user_settled_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager of checkpoints and a level of the log, wherever they were said."""
    monkeypatch.setattr(runner, "Files", lambda *_: type("Disk", (), {"scheme": "file"}))
    spark = Spark(**{MANAGER: "their.Manager", "spark.log.level": "INFO"})
    runner._settle(spark, job())  # type: ignore[arg-type]
    assert spark.held[MANAGER] == "their.Manager" and spark.log_level == "WARN"


@pytest.mark.parametrize(
    ("batches", "number", "end", "committed"),
    [
        (1, 0, '{"t":{"0":5}}', {TopicPartition("t", 0): 5}),
        (0, 3, '{"t":{"0":5}}', {TopicPartition("t", 0): 5}),  # nothing new since another run
        (0, 0, '{"t":{"0":5}}', None),  # no batch yet: where the stream begins is still marked as its start
        (1, 0, None, None),
    ],
)
def test_the_group_is_where_the_batches_are(
    monkeypatch: pytest.MonkeyPatch, batches: int, number: int, end: str | None, committed: object
) -> None:
    """Committed at the end of the last batch that is done, and not before there is one."""
    said: list[dict[TopicPartition, int]] = []

    def alter(_: Admin, group: str, offsets: dict[TopicPartition, Any]) -> None:
        assert group.endswith("named")
        said.append({tp: held.offset for tp, held in offsets.items()})

    monkeypatch.setattr(Admin, "alter_group_offsets", alter)
    progress = Progress()
    progress.batches = batches
    runner._commit_end(job(name="named"), progress, {"batchId": number, "sources": [{"endOffset": end}]})
    assert said == ([committed] if committed else [])
    runner._commit_end(job(), progress, None)
