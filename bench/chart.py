"""Write a run's results as JSON, and its workloads as a chart: build/bench/{figures.json,plane.svg}."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.build import ROOT
from bench.figures import FIGURES
from bench.peers import KAFKA, LIMIT, OURS
from pybroker.cli.bench import chart
from pybroker.cli.bench.load import WORKLOADS

TARGET = ROOT / "build/bench"


@dataclass(frozen=True)
class Reached:
    """One broker's best round of one workload; times in microseconds, cpu in seconds for a GB of batches."""

    workload: str
    shows: str
    broker: str
    requests_s: float
    records_s: float
    mb_s: float
    p50_us: float
    p99_us: float
    p999_us: float
    cpu_s_gb: float

    def figure(self) -> chart.Figure:
        times = (self.p50_us, self.p99_us, self.p999_us)
        rates = (self.requests_s, self.records_s)
        return chart.Figure(self.workload, self.shows, self.broker, *rates, *times, bool(WORKLOADS[self.workload].rate))


REACHED: list[Reached] = []
"""The results of this run so far."""


def write(machine: str) -> list[Path]:
    """Write every figure and the workloads' results; return the files. Writes nothing if nothing was measured."""
    if not FIGURES:
        return []
    TARGET.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": machine,
        "figures": [asdict(figure) for figure in FIGURES],
        "workloads": [asdict(reached) for reached in REACHED],
    }
    (TARGET / "figures.json").write_text(json.dumps(document, indent=1) + "\n")
    if not REACHED:
        return [TARGET / "figures.json"]
    order = [name for name in (OURS, LIMIT, KAFKA) if any(r.broker == name for r in REACHED)]
    figures = [reached.figure() for name in order for reached in REACHED if reached.broker == name]
    chart.draw(TARGET / "plane.svg", figures, machine)
    return [TARGET / "figures.json", TARGET / "plane.svg"]
