"""Spans of requests for OpenTelemetry, if tracing.enable is set and the packages of pybroker[otel] are there.

    request that Python executes ──> Traced ──span──> its handler, which adds what it asks for and its error code
    Produce, Fetch in core       ──> a sample, which becomes a span once it is sent
    spans ──> OpenTelemetry's batch processor, on a thread of its own ──OTLP over HTTP──> the collector

Only this module may be imported without those packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker import extras
from pybroker.config import BrokerConfig
from pybroker.errors import StartError

if TYPE_CHECKING:
    from pybroker.server.tracing.export import Tracing


def tracing_of(config: BrokerConfig, broker_id: int, cluster_id: str) -> Tracing | None:
    """Return the spans of a broker if they are asked for: only then their packages are imported. Raises StartError."""
    if not config["tracing.enable"]:
        return None
    try:
        from pybroker.server.tracing.export import Tracing
    except ModuleNotFoundError as missing:
        raise StartError(f"tracing.enable = true needs {missing.name}: {extras.install('otel')}") from missing
    return Tracing(broker_id, cluster_id, config["tracing.samples.per.second"])
