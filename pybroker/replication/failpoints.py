"""Failpoints that are armed before a broker process makes its first file call: PYBROKER_FAILPOINTS, for tests.

The variable holds entries separated by blanks: `point=action[:value[:after[:times]]]`, the arguments of
core.LogManager.arm.
"""

import os

from pybroker import core

VARIABLE = "PYBROKER_FAILPOINTS"


def arm(broker: core.LogManager) -> None:
    """Arm the failpoints that the variable names. Raises ValueError if it is invalid."""
    for entry in os.environ.get(VARIABLE, "").split():
        point, _, fault = entry.partition("=")
        action, *numbers = fault.split(":")
        named: dict[str, int] = dict(zip(("value", "after", "times"), map(int, numbers), strict=False))
        broker.arm(point, action, **named)  # type: ignore[arg-type]  # core checks the action
