"""Records that were deleted before they were read: failOnDataLoss decides whether that ends a query."""

import logging
from collections.abc import Sequence
from typing import Final

from pybroker.errors import OFFSET_OUT_OF_RANGE, KafkaError
from pybroker.spark.options import SourceOptions
from pybroker.spark.reading.planning import Lost

logger: Final = logging.getLogger(__name__)
SHOWN_MAX: Final = 3


def check_data_loss(options: SourceOptions, losses: Sequence[Lost]) -> None:
    """Raise KafkaError(OFFSET_OUT_OF_RANGE) for losses, or warn if failOnDataLoss is false."""
    if not losses:
        return
    shown = "; ".join(f"{lost.tp} {lost.why}" for lost in losses[:SHOWN_MAX])
    more = f"; and {len(losses) - SHOWN_MAX} more partitions" if len(losses) > SHOWN_MAX else ""
    if options.fail_on_data_loss:
        raise KafkaError(
            OFFSET_OUT_OF_RANGE, f"records are lost: {shown}{more}. set failOnDataLoss=false to go on without them"
        )
    logger.warning("records are lost, and the read goes on without them: %s%s", shown, more)
