"""The errors of writes that failed, as members and clients of groups get them."""

from pybroker import errors
from pybroker.state_log.writer import COORDINATOR_ERRORS

OFFSETS_ERRORS = COORDINATOR_ERRORS | {
    errors.REQUEST_TIMED_OUT: errors.COORDINATOR_NOT_AVAILABLE,
    errors.MESSAGE_TOO_LARGE: errors.INVALID_COMMIT_OFFSET_SIZE,
    errors.RECORD_LIST_TOO_LARGE: errors.INVALID_COMMIT_OFFSET_SIZE,
}
"""The error of a write of offsets or of a group's deletion -> the client's error; others are unchanged."""
GROUP_ERRORS = COORDINATOR_ERRORS | {
    errors.REQUEST_TIMED_OUT: errors.REBALANCE_IN_PROGRESS,
    errors.MESSAGE_TOO_LARGE: errors.UNKNOWN_SERVER_ERROR,
    errors.RECORD_LIST_TOO_LARGE: errors.UNKNOWN_SERVER_ERROR,
}
"""The same for writes of a group's generation: members of a group that was not stored in time rejoin."""
