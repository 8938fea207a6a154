"""Kafka's error codes, with their meanings and whether clients may retry.

The variable's name is the name of the error. `_retry` marks errors that Kafka's Java client treats as retriable: the
same request may succeed later, perhaps at another broker. tools/core_facts.py generates an enum for core from this file
before core is built, so it may only import the standard library.
"""

import errno
import os
import socket
from typing import NamedTuple


class ErrorCode(NamedTuple):
    """One error of the Kafka protocol; `meaning` completes the sentence "the request failed because ..."."""

    code: int
    name: str
    retriable: bool
    meaning: str


_told: dict[int, tuple[bool, str]] = {}


def _fatal(code: int, meaning: str) -> int:
    _told[code] = (False, meaning)
    return code


def _retry(code: int, meaning: str) -> int:
    _told[code] = (True, meaning)
    return code


UNKNOWN_SERVER_ERROR = _fatal(-1, "the broker failed in a way it has no code for")
NONE = _fatal(0, "there was no error")
OFFSET_OUT_OF_RANGE = _fatal(1, "the offset is outside the partition's log")
CORRUPT_MESSAGE = _retry(2, "a batch has a wrong checksum, size or compressed content")
UNKNOWN_TOPIC_OR_PARTITION = _retry(3, "this broker knows no such topic or partition")
INVALID_FETCH_SIZE = _fatal(4, "the fetch size is not valid")
LEADER_NOT_AVAILABLE = _retry(5, "the partition has no leader at the moment: retry")
NOT_LEADER_OR_FOLLOWER = _retry(6, "this broker neither leads nor holds the partition")
REQUEST_TIMED_OUT = _retry(7, "the request timed out; its work may still be done later")
BROKER_NOT_AVAILABLE = _fatal(8, "the broker is not available")
REPLICA_NOT_AVAILABLE = _retry(9, "the broker has no such replica")
MESSAGE_TOO_LARGE = _fatal(10, "a batch exceeds max.message.bytes: send smaller batches, or raise the topic's limit")
STALE_CONTROLLER_EPOCH = _fatal(11, "the controller that sent this was replaced")
OFFSET_METADATA_TOO_LARGE = _fatal(12, "the metadata of an offset commit is too long")
NETWORK_EXCEPTION = _retry(13, "the connection was lost before the response")
COORDINATOR_LOAD_IN_PROGRESS = _retry(14, "the coordinator is still loading its state")
COORDINATOR_NOT_AVAILABLE = _retry(15, "there is no coordinator yet")
NOT_COORDINATOR = _retry(16, "this broker is not the coordinator")
INVALID_TOPIC_EXCEPTION = _fatal(17, "the topic's name is not allowed, or the topic is internal")
RECORD_LIST_TOO_LARGE = _fatal(18, "the batches together exceed segment.bytes")
NOT_ENOUGH_REPLICAS = _retry(19, "fewer replicas are in sync than min.insync.replicas; nothing was written")
NOT_ENOUGH_REPLICAS_AFTER_APPEND = _retry(20, "the records were written, but to fewer than min.insync.replicas")
INVALID_REQUIRED_ACKS = _fatal(21, "acks must be -1, 0 or 1")
ILLEGAL_GENERATION = _fatal(22, "the group has moved on to another generation")
INCONSISTENT_GROUP_PROTOCOL = _fatal(23, "the member has no protocol in common with the group")
INVALID_GROUP_ID = _fatal(24, "the group id is empty or not allowed")
UNKNOWN_MEMBER_ID = _fatal(25, "the group has no such member")
INVALID_SESSION_TIMEOUT = _fatal(26, "the session timeout is outside what the broker allows")
REBALANCE_IN_PROGRESS = _fatal(27, "the group is rebalancing: join again")
INVALID_COMMIT_OFFSET_SIZE = _fatal(28, "the offset commit is too large to be stored")
TOPIC_AUTHORIZATION_FAILED = _fatal(29, "not authorized for this operation on the topic")
GROUP_AUTHORIZATION_FAILED = _fatal(30, "not authorized for this operation on the group")
CLUSTER_AUTHORIZATION_FAILED = _fatal(31, "not authorized for this operation on the cluster")
INVALID_TIMESTAMP = _fatal(32, "a record's timestamp is outside what the topic accepts")
UNSUPPORTED_SASL_MECHANISM = _fatal(33, "the broker does not offer this SASL mechanism")
ILLEGAL_SASL_STATE = _fatal(34, "the request does not belong at this point of the authentication")
UNSUPPORTED_VERSION = _fatal(35, "the broker does not support this version of the API")
TOPIC_ALREADY_EXISTS = _fatal(36, "a topic of this name exists")
INVALID_PARTITIONS = _fatal(37, "the number of partitions is not allowed")
INVALID_REPLICATION_FACTOR = _fatal(38, "the replication factor is below 1 or above the number of brokers")
INVALID_REPLICA_ASSIGNMENT = _fatal(39, "the replica assignment is invalid")
INVALID_CONFIG = _fatal(40, "a setting is unknown, or its value is not allowed")
NOT_CONTROLLER = _retry(41, "this broker is not the controller")
INVALID_REQUEST = _fatal(42, "the request is malformed or contradicts itself")
UNSUPPORTED_FOR_MESSAGE_FORMAT = _fatal(43, "the message format on disk or in the request does not support this")
POLICY_VIOLATION = _fatal(44, "the request violates a policy of the cluster")
OUT_OF_ORDER_SEQUENCE_NUMBER = _fatal(45, "the batch's sequence number does not follow the producer's last batch")
DUPLICATE_SEQUENCE_NUMBER = _fatal(46, "the batch was written before")
INVALID_PRODUCER_EPOCH = _fatal(47, "the producer's epoch is outdated")
INVALID_TXN_STATE = _fatal(48, "the transaction's state does not allow this")
INVALID_PRODUCER_ID_MAPPING = _fatal(49, "the producer id is not the transactional id's current one")
INVALID_TRANSACTION_TIMEOUT = _fatal(50, "the transaction timeout is above transaction.max.timeout.ms")
CONCURRENT_TRANSACTIONS = _retry(51, "the transactional id's last transaction is still being completed")
TRANSACTION_COORDINATOR_FENCED = _fatal(52, "the transaction coordinator that sent this was replaced")
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = _fatal(53, "not authorized for the transactional id")
SECURITY_DISABLED = _fatal(54, "the broker has no authorizer or login configured")
OPERATION_NOT_ATTEMPTED = _fatal(55, "another part of the same request failed first")
KAFKA_STORAGE_ERROR = _retry(56, "the disk of the log dir is full, or the log dir failed")
LOG_DIR_NOT_FOUND = _fatal(57, "the broker has no such log directory")
SASL_AUTHENTICATION_FAILED = _fatal(58, "the credentials are wrong")
UNKNOWN_PRODUCER_ID = _fatal(59, "the broker holds no state of this producer id")
REASSIGNMENT_IN_PROGRESS = _fatal(60, "the partition is being reassigned")
DELEGATION_TOKEN_AUTH_DISABLED = _fatal(61, "delegation tokens need delegation.token.secret.key at the brokers")
DELEGATION_TOKEN_NOT_FOUND = _fatal(62, "there is no such delegation token")
DELEGATION_TOKEN_OWNER_MISMATCH = _fatal(63, "the delegation token belongs to another principal")
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = _fatal(
    64, "delegation token requests need a login that does not itself use a token"
)
DELEGATION_TOKEN_AUTHORIZATION_FAILED = _fatal(65, "not authorized for this operation on the delegation token")
DELEGATION_TOKEN_EXPIRED = _fatal(66, "the delegation token has expired")
INVALID_PRINCIPAL_TYPE = _fatal(67, "the type of the principal is not supported")
NON_EMPTY_GROUP = _fatal(68, "the group still has members")
GROUP_ID_NOT_FOUND = _fatal(69, "there is no such group")
FETCH_SESSION_ID_NOT_FOUND = _retry(70, "the broker no longer holds this fetch session")
INVALID_FETCH_SESSION_EPOCH = _retry(71, "the fetch session expected another epoch")
LISTENER_NOT_FOUND = _retry(72, "the partition's leader does not have the listener of this request")
TOPIC_DELETION_DISABLED = _fatal(73, "delete.topic.enable is false")
FENCED_LEADER_EPOCH = _retry(74, "the client's leader epoch is older than the partition's")
UNKNOWN_LEADER_EPOCH = _retry(75, "the client's leader epoch is newer than this broker knows")
UNSUPPORTED_COMPRESSION_TYPE = _fatal(76, "the codec is unknown or not allowed at this version of the request")
STALE_BROKER_EPOCH = _fatal(77, "the request has an outdated broker epoch")
OFFSET_NOT_AVAILABLE = _retry(78, "the new leader does not know its high watermark yet: retry")
MEMBER_ID_REQUIRED = _fatal(79, "the member has to join again with its assigned id")
PREFERRED_LEADER_NOT_AVAILABLE = _retry(80, "the preferred leader is not alive and in sync")
GROUP_MAX_SIZE_REACHED = _fatal(81, "the group is full")
FENCED_INSTANCE_ID = _fatal(82, "another member took over the static member's instance id")
ELIGIBLE_LEADERS_NOT_AVAILABLE = _retry(83, "no replica can become leader now")
ELECTION_NOT_NEEDED = _retry(84, "the partition already has this leader")
NO_REASSIGNMENT_IN_PROGRESS = _fatal(85, "the partition is not being reassigned")
GROUP_SUBSCRIBED_TO_TOPIC = _fatal(86, "the group still subscribes to the topic")
INVALID_RECORD = _fatal(87, "a record or its batch breaks the rules of the topic or of the format")
UNSTABLE_OFFSET_COMMIT = _retry(88, "an offset is part of an open transaction: retry")
THROTTLING_QUOTA_EXCEEDED = _retry(89, "the quota is exceeded: retry later")
PRODUCER_FENCED = _fatal(90, "a newer producer uses the transactional id")
RESOURCE_NOT_FOUND = _fatal(91, "the resource does not exist")
DUPLICATE_RESOURCE = _fatal(92, "the request names the same thing twice")
UNACCEPTABLE_CREDENTIAL = _fatal(93, "the credential does not meet the requirements")
INCONSISTENT_VOTER_SET = _fatal(94, "the receiver has other voters")
INVALID_UPDATE_VERSION = _fatal(95, "the update was based on an old version")
FEATURE_UPDATE_FAILED = _fatal(96, "the feature could not be updated")
PRINCIPAL_DESERIALIZATION_FAILURE = _fatal(97, "the forwarded principal cannot be read")
SNAPSHOT_NOT_FOUND = _fatal(98, "there is no such snapshot")
POSITION_OUT_OF_RANGE = _fatal(99, "the position lies outside the snapshot")
UNKNOWN_TOPIC_ID = _retry(100, "this broker knows no topic with this id")
DUPLICATE_BROKER_REGISTRATION = _fatal(101, "another broker is registered under this id")
BROKER_ID_NOT_REGISTERED = _fatal(102, "no broker is registered under this id")
INCONSISTENT_TOPIC_ID = _retry(103, "the topic has another id: it was deleted and created again")
INCONSISTENT_CLUSTER_ID = _fatal(104, "the request was meant for another cluster")
TRANSACTIONAL_ID_NOT_FOUND = _fatal(105, "there is no such transactional id")
FETCH_SESSION_TOPIC_ID_ERROR = _retry(106, "the fetch session mixes topic names and topic ids")
INELIGIBLE_REPLICA = _fatal(107, "a replica of the new ISR is not eligible")
NEW_LEADER_ELECTED = _fatal(108, "the change completed and moved the leader")
OFFSET_MOVED_TO_TIERED_STORAGE = _fatal(109, "the offset is only in tiered storage")
FENCED_MEMBER_EPOCH = _fatal(110, "the coordinator fenced the member's epoch")
UNRELEASED_INSTANCE_ID = _fatal(111, "another member of the group still uses the instance id")
UNSUPPORTED_ASSIGNOR = _fatal(112, "the group coordinator has no such assignor")
STALE_MEMBER_EPOCH = _fatal(113, "the member's epoch is outdated")
MISMATCHED_ENDPOINT_TYPE = _fatal(114, "the request was sent to the wrong kind of endpoint")
UNSUPPORTED_ENDPOINT_TYPE = _fatal(115, "this kind of endpoint is not supported")
UNKNOWN_CONTROLLER_ID = _fatal(116, "there is no such controller")
UNKNOWN_SUBSCRIPTION_ID = _fatal(117, "the client's metrics subscription is outdated")
TELEMETRY_TOO_LARGE = _fatal(118, "the client's metrics are larger than allowed")
INVALID_REGISTRATION = _fatal(119, "the registration of the broker or controller is not valid")
TRANSACTION_ABORTABLE = _fatal(120, "the transaction must be aborted; then the producer can continue")
INVALID_RECORD_STATE = _fatal(121, "the record is not in a state in which it can be acknowledged")
SHARE_SESSION_NOT_FOUND = _retry(122, "the broker no longer holds this share session")
INVALID_SHARE_SESSION_EPOCH = _retry(123, "the share session expected another epoch")
FENCED_STATE_EPOCH = _fatal(124, "the share group's state epoch is outdated")
INVALID_VOTER_KEY = _fatal(125, "the voter's key is not the receiver's")
DUPLICATE_VOTER = _fatal(126, "the voter is already one of the voters")
VOTER_NOT_FOUND = _fatal(127, "there is no such voter")
INVALID_REGULAR_EXPRESSION = _fatal(128, "the regular expression is not valid")
REBOOTSTRAP_REQUIRED = _fatal(129, "the client's metadata is unusable: it has to bootstrap again")
STREAMS_INVALID_TOPOLOGY = _fatal(130, "the streams topology is not valid")
STREAMS_INVALID_TOPOLOGY_EPOCH = _fatal(131, "the epoch of the streams topology is not valid")
STREAMS_TOPOLOGY_FENCED = _fatal(132, "the streams topology is outdated")
SHARE_SESSION_LIMIT_REACHED = _retry(133, "the broker has reached its limit of share sessions")

ERRORS: tuple[ErrorCode, ...] = tuple(
    ErrorCode(value, name, *_told[value]) for name, value in list(globals().items()) if name.isupper()
)
"""All errors, in ascending order of their codes from -1."""

_by_code = {error.code: error for error in ERRORS}


def lookup(code: int) -> ErrorCode:
    """The error with this code. An unknown code, of a newer Kafka, gets the name UNKNOWN_SERVER_ERROR."""
    known = _by_code.get(code)
    return known or ErrorCode(code, "UNKNOWN_SERVER_ERROR", False, f"of error {code}, which is unknown to this version")


def system_words(error: OSError) -> str:
    """The text of a system error, for the end of a sentence; asyncio's own texts for some errors are replaced."""
    if error.errno and (isinstance(error, ConnectionError | TimeoutError) or type(error) is OSError):
        return os.strerror(error.errno).lower()
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return (error.strerror or str(error) or type(error).__name__).lower()


def why_not(problem: OSError | ValueError) -> str:
    """The reason why the broker cannot listen on an address, for the operator."""
    if isinstance(problem, socket.gaierror | ValueError):  # ValueError: the name cannot be encoded for a lookup
        return "the name is not known"
    if problem.errno == errno.EADDRINUSE:
        return "the port is in use: stop the program that listens there, or choose another"
    return os.strerror(problem.errno or errno.EIO).lower()


MESSAGE_MAX = 4000
"""The most characters of a message, so that it fits the protocol's strings in UTF-8 with any client-chosen name."""


class KafkaError(Exception):
    """An error with a Kafka error code; `message` is a sentence with details, or the code's meaning."""

    def __init__(self, code: int, message: str = "") -> None:
        if len(message) > MESSAGE_MAX:
            message = message[: MESSAGE_MAX - 3] + "..."
        error = lookup(code)
        self.code = code
        self.name = error.name
        self.retriable = error.retriable
        self.message = message or error.meaning
        super().__init__(code, self.message)

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy by attributes, as subclasses have other constructor arguments."""
        return _restored, (type(self), self.args), self.__dict__


class StartError(KafkaError):
    """The broker cannot start; the message is one sentence for the operator."""

    def __init__(self, message: str) -> None:
        super().__init__(BROKER_NOT_AVAILABLE, message)


def _restored(kind: type[KafkaError], args: tuple[object, ...]) -> KafkaError:
    return kind.__new__(kind, *args)
