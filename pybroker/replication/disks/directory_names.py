"""The names of the directories in a log dir; all are Kafka's.

    orders-3                     a log
    orders-3.<uuid>-delete       a log that is being deleted
    orders-3.<uuid>-future       a copy of a log that moves here from another log dir
    orders-3.<uuid>-stray        a log that no topic is known for

A topic's name is cut if the directory's would be too long.
"""

import re
import uuid

from pybroker.model import TopicPartition

NAME_MAX = 255
"""The longest file name, in bytes."""
PARTITION = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,9})")
DELETED = re.compile(r".+-[0-9]+\.[0-9a-f]{32}-delete")
SET_ASIDE = re.compile(r".+-[0-9]+\.[0-9a-f]{32}-(future|stray)")
FUTURE = re.compile(PARTITION.pattern + r"\.[0-9a-f]{32}-future")
KRAFT_LOG = "__cluster_metadata"
"""Kafka's own metadata log: its directory is named like a partition, but is not one of ours."""
MARK = "switching"
"""The file that core writes into a complete copy; core removes it once both renames of the switch are on disk."""


def aside(key: TopicPartition, kind: str) -> str:
    """A new name for a partition's directory that is of this kind: delete, future or stray."""
    suffix = f"-{key.partition}.{uuid.uuid4().hex}-{kind}"
    return key.topic[: NAME_MAX - len(suffix)] + suffix
