"""Failpoints of a broker process, for tests that must be there from its first file call: PYBROKER_FAILPOINTS.

The variable holds entries separated by blanks: `point=action[:value[:after[:times]]]`, as core.Broker.arm takes them.
"""

import os
from typing import Any

from pybroker import core

VARIABLE = "PYBROKER_FAILPOINTS"


def arm(broker: core.Broker) -> None:
    """Arm what the variable names. Raises ValueError where it makes no sense."""
    for entry in os.environ.get(VARIABLE, "").split():
        point, _, fault = entry.partition("=")
        action, *numbers = fault.split(":")
        named: dict[str, Any] = dict(zip(("value", "after", "times"), map(int, numbers), strict=False))
        broker.arm(point, action, **named)  # type: ignore[arg-type]  # what is no action is refused there
