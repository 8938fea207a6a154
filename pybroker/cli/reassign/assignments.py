"""The file of replicas by partition that kafka-reassign-partitions reads and writes."""

import json
from collections.abc import Mapping
from typing import Final

from pybroker.cli.main import Misuse
from pybroker.cli.output import Document
from pybroker.decisions.planning.snapshot import Plan
from pybroker.decisions.topics import check_name
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

VERSION: Final = 1
ID_MAX: Final = (1 << 31) - 1
Targets = Mapping[TopicPartition, tuple[int, ...]]
"""The replicas that each partition is to have, the preferred leader first."""


def of_plan(plan: Plan) -> dict[TopicPartition, tuple[int, ...]]:
    return {move.partition: move.after for move in plan.moves}


def document_of(targets: Targets) -> Document:
    """Return the JSON document of `kafka-reassign-partitions --reassignment-json-file`."""
    return {
        "version": VERSION,
        "partitions": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "replicas": list(replicas),
                "log_dirs": ["any"] * len(replicas),
            }
            for tp, replicas in sorted(targets.items())
        ],
    }


def write_file(path: str, targets: Targets) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document_of(targets), file, indent=2)
        file.write("\n")


def read_file(path: str) -> dict[TopicPartition, tuple[int, ...]]:
    """Read the targets in such a file. Misuse if it is not one, or asks for log dirs."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (ValueError, RecursionError) as error:
        raise Misuse(f"{path} is no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("version", VERSION) != VERSION:
        raise Misuse(f'{path} is no assignment of replicas: an object with "version": {VERSION} is expected')
    entries = document.get("partitions")
    if not isinstance(entries, list) or not entries:
        raise Misuse(f'{path} has no "partitions"')
    targets: dict[TopicPartition, tuple[int, ...]] = {}
    for number, entry in enumerate(entries):
        tp, replicas = _entry(path, number, entry)
        if tp in targets:
            raise Misuse(f"{path} has partition {tp} twice")
        targets[tp] = replicas
    return targets


def _entry(path: str, number: int, entry: object) -> tuple[TopicPartition, tuple[int, ...]]:
    match entry:
        case {"topic": str(topic), "partition": partition, "replicas": [_, *_] as replicas, **rest} if all(
            type(each) is int for each in (partition, *replicas)
        ):
            where = f"{path}: entry {number + 1}"
            try:
                check_name(topic)
            except KafkaError as problem:
                raise Misuse(f"{where}: {problem.message}") from problem
            if not all(0 <= each <= ID_MAX for each in (partition, *replicas)):
                raise Misuse(f"{where}: partitions and brokers have numbers from 0 to {ID_MAX}")
            log_dirs = rest.get("log_dirs", [])
            if isinstance(log_dirs, list) and any(each != "any" for each in log_dirs):
                raise Misuse(f"{path} asks for log dirs in its entry {number + 1}, which this command does not set")
            if len(set(replicas)) < len(replicas):
                raise Misuse(f"{path} names a broker twice for partition {topic}-{partition}")
            return TopicPartition(topic, partition), tuple(replicas)
    raise Misuse(
        f"{path}: entry {number + 1} of the partitions has no topic, partition and list of brokers as replicas"
    )
