"""The work of a task: one range of one partition, and where to read it."""

from collections.abc import Mapping

from pyspark.sql.datasource import InputPartition

from pybroker.model import TopicPartition
from pybroker.spark.options import SourceOptions
from pybroker.spark.reading import planning
from pybroker.spark.reading.data_loss import check_data_loss
from pybroker.spark.reading.offset_reader import OffsetReader, PartitionLeader
from pybroker.spark.reading.planning import OffsetRange


class KafkaInputPartition(InputPartition):
    """A range of records, and the partition's leader as the driver knows it; pickled once per task."""

    def __init__(self, what: OffsetRange, leader: PartitionLeader) -> None:
        super().__init__(tuple(what))
        self.range = what
        self.leader = leader


def input_partitions(
    options: SourceOptions,
    asker: OffsetReader,
    begin: Mapping[TopicPartition, int],
    until: Mapping[TopicPartition, int],
) -> list[InputPartition]:
    """Return the tasks of a batch. KafkaError if retention has overtaken the batch and failOnDataLoss is true."""
    whole = planning.ranges(begin, until)
    gone = planning.overtaken(whole, asker.earliest(r.tp for r in whole))
    check_data_loss(options, [lost for lost, _ in gone.values()])
    rest = [left for r in whole if (left := gone[r][1] if r in gone else r).size > 0]
    parts = planning.split(rest, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)
    return [KafkaInputPartition(part, asker.leader(part.tp)) for part in parts]
