"""Rules of alerts for Prometheus: each names a state that needs a person, and what to do about it."""

import json
from typing import Final, Literal, NamedTuple

JOB: Final = "pybroker"
"""The name of the scrape job of one cluster, in the rules and in docs/monitoring.md."""


class Alert(NamedTuple):
    """A rule. `meaning` and `action` are for the person on call."""

    name: str
    expression: str
    lasts: str
    """How long the expression is true before the alert fires: Prometheus' `for`."""
    severity: Literal["critical", "warning"]
    meaning: str
    action: str


def p99(name: str, only: str = "") -> str:
    """Return the expression of a histogram's 99th percentile at each broker."""
    return f"histogram_quantile(0.99, sum by (instance, le) (rate({name}_bucket{{{only}}}[5m])))"


PRODUCE: Final = 'api="Produce"'
ALERTS: Final = (
    Alert(
        "BrokerDown", f'up{{job="{JOB}"}} == 0', "1m", "critical",
        "The broker or its host is down.", "Start it; see its log if it does not start.",
    ),
    Alert(
        "BrokerFenced", "pybroker_registered == 0", "1m", "critical",
        "The broker runs, but is not registered in its cluster.", "Its log says which broker holds its id or address.",
    ),
    Alert(
        "NoController", "sum(pybroker_active_controller_count) == 0", "1m", "critical",
        "No broker elects leaders.", "Check the store first, then look for `no controller is elected` in the logs.",
    ),
    Alert(
        "TwoControllers", "sum(pybroker_active_controller_count) > 1", "1m", "critical",
        "Two brokers take themselves for the controller. Epochs fence the older one.",
        "Restart the broker with the lower controller_epoch at /epochs.",
    ),
    Alert(
        "OfflinePartitions", "sum(pybroker_offline_partitions_count) > 0", "30s", "critical",
        "Partitions have no leader: nothing is read or written there.",
        "Start the brokers that hold them: `pybroker cluster` names them.",
    ),
    Alert(
        "UnderMinIsr", "sum(pybroker_under_min_isr_partition_count) > 0", "30s", "critical",
        "Producers with acks=all get NOT_ENOUGH_REPLICAS.", "Start the brokers whose replicas are missing.",
    ),
    Alert(
        "UnderReplicated", "sum(pybroker_under_replicated_partitions) > 0", "15m", "warning",
        "One more failure may stop writes.", "`pybroker topics describe --changes` shows why a replica left the ISR.",
    ),
    Alert(
        "IsrShrinks", "sum(increase(pybroker_isr_shrinks_total[10m])) > 0", "5m", "warning",
        "Followers keep leaving the ISR.", "Compare disks, network and load of the brokers in `pybroker top`.",
    ),
    Alert(
        "UncleanElection", "sum(increase(pybroker_unclean_leader_elections_total[10m])) > 0", "0s", "critical",
        "A replica that was not in sync leads: records may be lost.",
        "Check what consumers read, and unclean.leader.election.enable.",
    ),
    Alert(
        "SessionLost", "pybroker_zookeeper_connected == 0", "1m", "critical",
        "The broker does not reach the store.", "Check the store, and the network to it.",
    ),
    Alert(
        "SessionExpired", "increase(pybroker_zookeeper_expires_total[10m]) > 0", "0s", "warning",
        "The store ended the broker's session, so other brokers took over.",
        "Look for pauses of the broker, and for a slow store: pybroker_zookeeper_request_seconds.",
    ),
    Alert(
        "LogDirOffline", "pybroker_log_dir_offline == 1", "0s", "critical",
        "A disk failed.", "Replace it, and restart the broker.",
    ),
    Alert(
        "DiskNearlyFull", "pybroker_log_dir_free_bytes / pybroker_log_dir_bytes < 0.15", "10m", "warning",
        "Appends will be refused soon.", "Delete topics or records, shorten retention, or add disks.",
    ),
    Alert(
        "DiskFull", "pybroker_log_dir_full == 1", "0s", "critical",
        "Appends to this log dir are refused.", "Make room; the broker serves again by itself.",
    ),
    Alert(
        "DamagedSegments", "pybroker_damaged_places > 0", "0s", "critical",
        "Records on disk cannot be read.", "`pybroker scrub` lists them; restore them from another replica.",
    ),
    Alert(
        "SlowProduce",
        f"{p99('pybroker_plane_request_seconds', PRODUCE)} > 1 or {p99('pybroker_request_seconds', PRODUCE)} > 1",
        "10m", "warning",
        "One Produce of a hundred takes more than a second.",
        "pybroker_plane_request_stage_seconds shows where: local is the disk, remote the followers.",
    ),
    Alert(
        "SlowDisk", f"{p99('pybroker_append_seconds')} > 0.5 or {p99('pybroker_cold_read_seconds')} > 0.5",
        "10m", "warning",
        "One append or read of a hundred takes more than half a second.",
        "Check the disks of the broker, and what else uses them.",
    ),
    Alert(
        "GroupFallsBehind",
        "pybroker_group_total_lag > 100000 and delta(pybroker_group_total_lag[30m]) > 0", "30m", "warning",
        "A consumer group reads more slowly than producers write.",
        "Add consumers, up to the number of partitions.",
    ),
    Alert(
        "CertificateExpires", "pybroker_certificate_end_timestamp_seconds - time() < 14 * 86400", "1h", "warning",
        "Clients will not connect after the end of a certificate.", "Exchange it; the broker reloads it.",
    ),
)  # fmt: skip


def rules(alerts: tuple[Alert, ...] = ALERTS) -> str:
    """Return a file of rules for Prometheus."""
    lines = ["# Rules of alerts for Prometheus, by `pybroker metrics --alerts`.", "groups:", "  - name: pybroker"]
    lines.append("    rules:")
    for alert in alerts:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expression)}",
            f"        for: {alert.lasts}",
            f"        labels: {{severity: {alert.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(alert.meaning)}",
            f"          action: {json.dumps(alert.action)}",
        ]
    return "\n".join(lines) + "\n"
