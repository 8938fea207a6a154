"""What a run measured, as JSON for programs, and its workloads as a chart: build/bench/{figures.json,plane.svg}."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.build import ROOT
from bench.figures import FIGURES

TARGET = ROOT / "build/bench"
COLOURS = {"pybroker": "#2a6f97", "limit": "#b0b0b0", "Kafka 3.9.1": "#c1666b"}


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


REACHED: list[Reached] = []
"""What this run measured so far."""


def write(machine: str) -> list[Path]:
    """Write every figure and what the workloads reached; the files. Nothing is written where nothing was measured."""
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
    _draw(TARGET / "plane.svg", machine)
    return [TARGET / "figures.json", TARGET / "plane.svg"]


def _draw(path: Path, machine: str) -> None:
    """Bars of requests a second, each workload beside its limit, which is 100 %."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    best = {(r.workload, r.broker): r.requests_s for r in REACHED}
    workloads = list(dict.fromkeys(r.workload for r in REACHED))
    brokers = [name for name in COLOURS if any(r.broker == name for r in REACHED)]
    figure, axes = pyplot.subplots(figsize=(10, 4.5))
    width = 0.8 / len(brokers)
    for at, broker in enumerate(brokers):
        own = {w: best.get((w, broker), 0.0) for w in workloads}
        full = {w: best.get((w, "limit")) or best[w, "pybroker"] for w in workloads}
        bars = axes.bar(
            [x + (at - (len(brokers) - 1) / 2) * width for x in range(len(workloads))],
            [100 * own[w] / full[w] for w in workloads],
            width,
            label=broker,
            color=COLOURS[broker],
        )
        axes.bar_label(bars, [_short(own[w]) for w in workloads], fontsize=6, rotation=90, padding=2)
    axes.set_xticks(range(len(workloads)), workloads)
    axes.set_ylabel("requests/s, % of the limit (W8: of pybroker)")
    axes.set_title(machine, fontsize=7)
    axes.margins(y=0.15)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _short(rate: float) -> str:
    return f"{rate / 1000:,.1f} k" if rate >= 1000 else f"{rate:,.0f}"
