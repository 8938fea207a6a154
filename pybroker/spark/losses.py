"""Records that are gone before they were read: failOnDataLoss says whether that ends a query."""

import logging
from collections.abc import Sequence
from typing import Final

from pybroker.errors import OFFSET_OUT_OF_RANGE, KafkaError
from pybroker.spark.options import SourceOptions
from pybroker.spark.planning import Lost

logger: Final = logging.getLogger(__name__)
SHOWN_MAX: Final = 3


def judge(options: SourceOptions, losses: Sequence[Lost]) -> None:
    """KafkaError(OFFSET_OUT_OF_RANGE) for losses, or a warning where the read is to go on without the records."""
    if not losses:
        return
    shown = "; ".join(f"{lost.tp} {lost.why}" for lost in losses[:SHOWN_MAX])
    more = f"; and {len(losses) - SHOWN_MAX} more partitions" if len(losses) > SHOWN_MAX else ""
    if options.fail_on_data_loss:
        raise KafkaError(
            OFFSET_OUT_OF_RANGE, f"records are lost: {shown}{more}. failOnDataLoss=false would go on with what is there"
        )
    logger.warning("records are lost, and the read goes on without them: %s%s", shown, more)
