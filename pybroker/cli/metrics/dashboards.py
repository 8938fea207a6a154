"""Boards for Grafana, made from a table: each panel is a question and the expressions that answer it."""

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

Panel = tuple[str, str, tuple[tuple[str, str], ...]]
"""Title, unit of Grafana, and (expression, legend) of each line."""
WIDTH: Final = 12
HEIGHT: Final = 8
COLUMNS: Final = 24
OF_BROKER: Final = 'instance=~"$broker"'
OF_TOPIC: Final = 'topic=~"$topic"'
OF_GROUP: Final = 'group=~"$group"'
RATE: Final = "[$__rate_interval]"


def p99(name: str, by: str, only: str = "") -> tuple[str, str]:
    """Return the line of a histogram's 99th percentile for each value of a label."""
    return f"histogram_quantile(0.99, sum by ({by}, le) (rate({name}_bucket{{{only}}}{RATE})))", f"{{{{{by}}}}}"


def by(label: str, name: str, only: str = "") -> tuple[str, str]:
    """Return the line of a counter's rate, summed for each value of a label."""
    return f"sum by ({label}) (rate({name}{{{only}}}{RATE}))", f"{{{{{label}}}}}"


def stages(api: str) -> tuple[str, str]:
    """Return the line of the stages of one API."""
    return p99("pybroker_plane_request_stage_seconds", "stage", f'api="{api}",{OF_BROKER}')


class Board(NamedTuple):
    """A board. `variable`: a name and the query of its values, which a viewer chooses from."""

    title: str
    panels: tuple[Panel, ...]
    variable: tuple[str, str] | None = None


BOARDS: Final[Mapping[str, Board]] = {
    "overview": Board(
        "pybroker: overview",
        (
            ("Brokers that answer", "none", (("count(pybroker_build_info)", "brokers"),)),
            ("Controllers", "none", (("sum(pybroker_active_controller_count)", "controllers"),)),
            (
                "Partitions in trouble", "none",
                (
                    ("sum(pybroker_offline_partitions_count)", "offline"),
                    ("sum(pybroker_under_min_isr_partition_count)", "under min ISR"),
                    ("sum(pybroker_under_replicated_partitions)", "under-replicated"),
                    ("sum(pybroker_partitions_offline)", "replicas offline"),
                ),
            ),
            (
                "ISR and leaders", "ops",
                (
                    by("instance", "pybroker_isr_shrinks_total"),
                    (f"sum(rate(pybroker_isr_expands_total{RATE}))", "expands"),
                    (f"sum(rate(pybroker_leader_elections_total{RATE}))", "elections"),
                ),
            ),
            (
                "Bytes of clients", "Bps",
                (
                    (f"sum(rate(pybroker_topic_bytes_in_total{RATE}))", "in"),
                    (f"sum(rate(pybroker_topic_bytes_out_total{RATE}))", "out"),
                ),
            ),
            ("Records in", "ops", ((f"sum(rate(pybroker_topic_messages_in_total{RATE}))", "records"),)),
            ("Produce, p99", "s", (p99("pybroker_plane_request_seconds", "instance", 'api="Produce"'),)),
            ("Requests", "reqps", (by("api", "pybroker_requests_total"),)),
            (
                "Free disk", "percentunit",
                (("pybroker_log_dir_free_bytes / pybroker_log_dir_bytes", "{{instance}} {{dir}}"),),
            ),
            ("Store, p99", "s", (p99("pybroker_zookeeper_request_seconds", "instance"),)),
        ),
    ),
    "broker": Board(
        "pybroker: broker",
        (
            ("Produce by stage, p99", "s", (stages("Produce"),)),
            ("Consumers' Fetch by stage, p99", "s", (stages("FetchConsumer"),)),
            ("Followers' Fetch by stage, p99", "s", (stages("FetchFollower"),)),
            ("Requests in Python, p99", "s", (p99("pybroker_request_seconds", "api", OF_BROKER),)),
            (
                "Waits around Python, p99", "s",
                (
                    (p99("pybroker_request_queue_seconds", "instance", OF_BROKER)[0], "queue"),
                    (p99("pybroker_response_send_seconds", "instance", OF_BROKER)[0], "send"),
                ),
            ),
            (
                "Busy network threads", "percentunit",
                ((f"rate(pybroker_plane_busy_seconds_total{{{OF_BROKER}}}{RATE})", "{{reactor}}"),),
            ),
            (
                "Disk, p99", "s",
                (
                    (p99("pybroker_append_seconds", "instance", OF_BROKER)[0], "append"),
                    (p99("pybroker_flush_seconds", "instance", OF_BROKER)[0], "flush"),
                    (p99("pybroker_cold_read_seconds", "instance", OF_BROKER)[0], "cold read"),
                ),
            ),
            (
                "Reads that missed the page cache", "Bps",
                ((f"rate(pybroker_cold_read_bytes_total{{{OF_BROKER}}}{RATE})", "records"),),
            ),
            ("Major page faults", "ops", ((f"rate(process_major_page_faults_total{{{OF_BROKER}}}{RATE})", "faults"),)),
            ("Throttle time", "s", (by("quota", "pybroker_quota_throttle_seconds_total", OF_BROKER),)),
            (
                "Replication", "Bps",
                (
                    (f"rate(pybroker_replication_bytes_in_total{{{OF_BROKER}}}{RATE})", "in"),
                    (f"rate(pybroker_replication_bytes_out_total{{{OF_BROKER}}}{RATE})", "out"),
                ),
            ),
            ("Connections", "none", ((f"pybroker_connections{{{OF_BROKER}}}", "connections"),)),
            ("Memory", "bytes", ((f"process_resident_memory_bytes{{{OF_BROKER}}}", "resident"),)),
            ("Processors", "none", ((f"rate(process_cpu_seconds_total{{{OF_BROKER}}}{RATE})", "cores"),)),
        ),
        ("broker", "label_values(pybroker_build_info, instance)"),
    ),
    "topic": Board(
        "pybroker: topic",
        (
            ("Bytes in", "Bps", (by("topic", "pybroker_topic_bytes_in_total", OF_TOPIC),)),
            ("Bytes out", "Bps", (by("topic", "pybroker_topic_bytes_out_total", OF_TOPIC),)),
            ("Records in", "ops", (by("topic", "pybroker_topic_messages_in_total", OF_TOPIC),)),
            ("Size, all replicas", "bytes", ((f"sum by (topic) (pybroker_log_bytes{{{OF_TOPIC}}})", "{{topic}}"),)),
            (
                "Records kept", "none",
                (
                    (
                        f"sum by (topic) (max by (topic, partition) (pybroker_log_end_offset{{{OF_TOPIC}}}) - "
                        f"min by (topic, partition) (pybroker_log_start_offset{{{OF_TOPIC}}}))", "{{topic}}",
                    ),
                ),
            ),
            (
                "Follower lag", "none",
                ((f"max by (topic, broker) (pybroker_follower_lag{{{OF_TOPIC}}})", "{{topic}} on {{broker}}"),),
            ),
            ("Damaged places", "none", ((f"sum by (topic) (pybroker_damaged_places{{{OF_TOPIC}}})", "{{topic}}"),)),
        ),
        ("topic", "label_values(pybroker_topic_bytes_in_total, topic)"),
    ),
    "groups": Board(
        "pybroker: groups",
        (
            ("Lag", "none", ((f"sum by (group) (pybroker_group_total_lag{{{OF_GROUP}}})", "{{group}}"),)),
            (
                "Lag by topic", "none",
                ((f"sum by (group, topic) (pybroker_group_lag{{{OF_GROUP}}})", "{{group}} in {{topic}}"),),
            ),
            ("Members", "none", ((f"sum by (group) (pybroker_group_members{{{OF_GROUP}}})", "{{group}}"),)),
            ("Groups by state", "none", (("sum by (state) (pybroker_groups)", "{{state}}"),)),
            ("Rebalances", "ops", (by("cause", "pybroker_rebalances_total"),)),
        ),
        ("group", "label_values(pybroker_group_total_lag, group)"),
    ),
}  # fmt: skip
SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


def dashboard(name: str) -> str:
    """Return a board as the JSON that Grafana imports."""
    board = BOARDS[name]
    variables: list[dict[str, object]] = [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    ]
    if board.variable is not None:
        label, query = board.variable
        variables.append({
            "name": label, "type": "query", "datasource": SOURCE, "query": query, "definition": query, "refresh": 2,
            "includeAll": True, "multi": True, "sort": 1,
        })  # fmt: skip
    made = {
        "title": board.title, "uid": f"pybroker-{name}", "tags": ["pybroker"], "timezone": "browser", "refresh": "30s",
        "schemaVersion": 39, "version": 1, "editable": True, "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_panel(number, panel) for number, panel in enumerate(board.panels)],
    }  # fmt: skip
    return json.dumps(made, indent=2) + "\n"


def _panel(number: int, panel: Panel) -> dict[str, object]:
    title, unit, lines = panel
    across = COLUMNS // WIDTH
    place = {"x": number % across * WIDTH, "y": number // across * HEIGHT, "w": WIDTH, "h": HEIGHT}
    return {
        "id": number + 1, "title": title, "type": "timeseries", "datasource": SOURCE, "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend, "datasource": SOURCE}
            for at, (expression, legend) in enumerate(lines)
        ],
    }  # fmt: skip
