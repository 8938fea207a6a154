"""Spark copies a topic into a table exactly once: the run and the broker die, and no row is lost or duplicated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.tables import ParquetIngest, dying, event
from tests.spark.topics import Topics

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark")]


def test_a_pipeline_that_is_started_again(own_topics: Topics, topic: str, tmp_path: Path) -> None:
    """The first run dies after its files are in the table and before Spark has recorded the batch; the broker is killed
    and started. The next run adds new records only, and each is in the table once."""
    ingest = ParquetIngest(own_topics, topic, tmp_path / "table")
    own_topics.produce(topic, [event(number) for number in range(50)])
    with pytest.raises(Exception, match="crash"):
        ingest.run(dying("after the commit"))
    own_topics.broker.kill()
    own_topics.broker.restart()
    own_topics.produce(topic, [event(number) for number in range(50, 80)])
    ingest.run()
    assert ingest.ids() == list(range(80))
    assert own_topics.read(topic).count() == 80
