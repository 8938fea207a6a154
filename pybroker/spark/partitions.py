"""What a task is told: one range of one partition, and where to read it."""

from collections.abc import Mapping

from pyspark.sql.datasource import InputPartition

from pybroker.model import TopicPartition
from pybroker.spark import planning
from pybroker.spark.losses import judge
from pybroker.spark.offset_reader import Leader, OffsetReader
from pybroker.spark.options import SourceOptions
from pybroker.spark.planning import Range


class KafkaInputPartition(InputPartition):
    """A range of records, and who leads its partition as far as the driver knows; pickled once per task."""

    def __init__(self, what: Range, leader: Leader) -> None:
        super().__init__(tuple(what))
        self.range = what
        self.leader = leader


def input_partitions(
    options: SourceOptions,
    asker: OffsetReader,
    begin: Mapping[TopicPartition, int],
    until: Mapping[TopicPartition, int],
) -> list[InputPartition]:
    """The tasks of a batch. KafkaError where retention has overtaken it and failOnDataLoss says that this matters."""
    whole = planning.ranges(begin, until)
    gone = planning.overtaken(whole, asker.earliest(r.tp for r in whole))
    judge(options, [lost for lost, _ in gone.values()])
    rest = [left for r in whole if (left := gone[r][1] if r in gone else r).size > 0]
    parts = planning.split(rest, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)
    return [KafkaInputPartition(part, asker.leader(part.tp)) for part in parts]
