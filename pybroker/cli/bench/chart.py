"""Draw the results of `pybroker bench`: rates as bars, and workloads at a fixed rate as latencies.

Each workload has its own scale, up to the fastest broker: requests of one record and reads of a megabyte have no
common one. Latencies share one scale, in powers of ten.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

COLOURS: Final = ("#2a6f97", "#b8bcc2", "#c1666b", "#7a9e7e")
ROW_INCHES, HEAD_INCHES, WIDTH_INCHES = 0.13, 1.2, 9.0
LATENCIES: Final = (("p50_us", "o"), ("p99_us", "D"), ("p999_us", "s"))


class Figure(NamedTuple):
    """The results of one broker in one workload; times are in microseconds."""

    workload: str
    shows: str
    broker: str
    requests_s: float
    records_s: float
    p50_us: float
    p99_us: float
    p999_us: float
    fixed_rate: bool

Axes = Any
"""Axes of matplotlib, which is an optional dependency."""


def draw(path: Path, figures: Iterable[Figure], title: str) -> None:
    """Write the figures as an SVG, brokers in the order of their first figure.

    Raises ImportError where matplotlib is not installed, OSError where the file cannot be written."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    by: dict[bool, dict[str, list[Figure]]] = {False: {}, True: {}}
    colours: dict[str, str] = {}
    for figure in figures:
        by[figure.fixed_rate].setdefault(figure.workload, []).append(figure)
        colours.setdefault(figure.broker, COLOURS[len(colours) % len(COLOURS)])
    panels = [fixed for fixed in (False, True) if by[fixed]]
    rows = [sum(len(each) + 1 for each in by[fixed].values()) for fixed in panels]
    size = WIDTH_INCHES, ROW_INCHES * sum(rows) + HEAD_INCHES + 0.5 * (len(panels) - 1)
    canvas = Canvas(figsize=size, layout="constrained", facecolor="white")
    axes = canvas.subplots(len(panels), 1, squeeze=False, height_ratios=rows)[:, 0]
    for at, fixed in zip(axes, panels, strict=True):
        (_latencies if fixed else _rates)(at, by[fixed], colours)
    canvas.suptitle(title, fontsize=8, x=0.02, horizontalalignment="left")
    marks = [matplotlib.patches.Patch(color=colour, label=broker) for broker, colour in colours.items()]
    axes[0].legend(handles=marks, fontsize=8, frameon=False, ncols=len(marks), loc="lower right", bbox_to_anchor=(1, 1))
    # Text stays selectable text, and the same figures produce the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pybroker", "font.family": "sans-serif"}):
        canvas.savefig(path, format="svg", metadata={"Date": None})


def _rates(axes: Axes, by: Mapping[str, list[Figure]], colours: Mapping[str, str]) -> None:
    """Draw one bar for each broker, of records a second; the fastest of a workload fills its row."""
    row = 0
    for each in by.values():
        most = max(figure.records_s for figure in each) or 1
        _name(axes, row, each)
        for figure in each:
            share = figure.records_s / most
            axes.barh(row, share, 0.85, color=colours[figure.broker])
            axes.text(share + 0.005, row, _rate(figure.records_s), fontsize=7, verticalalignment="center")
            row += 1
        row += 1
    _frame(axes, row)
    axes.set_xlim(0, 1.12)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_title("records a second", fontsize=9, loc="left")


def _latencies(axes: Axes, by: Mapping[str, list[Figure]], colours: Mapping[str, str]) -> None:
    """Draw one line for each broker, from its median over the 99th to the 99.9th percentile."""
    row = 0
    for each in by.values():
        _name(axes, row, each)
        for figure in each:
            colour = colours[figure.broker]
            axes.plot([figure.p50_us / 1000, figure.p999_us / 1000], [row, row], color=colour, linewidth=1.5)
            for name, marker in LATENCIES:
                axes.plot(getattr(figure, name) / 1000, row, marker, color=colour, markersize=5)
            told = " / ".join(f"{getattr(figure, name) / 1000:,.3f}" for name, _ in LATENCIES)
            axes.text(figure.p999_us / 1000 * 1.15, row, f"{told} ms", fontsize=7, verticalalignment="center")
            row += 1
        row += 1
    _frame(axes, row)
    axes.set_xscale("log")
    axes.set_xlim(right=max(figure.p999_us for each in by.values() for figure in each) / 1000 * 6)
    axes.xaxis.set_major_formatter(lambda ms, _: f"{ms:g} ms")
    axes.tick_params(axis="x", labelsize=7)
    axes.set_title("latency at a fixed rate: median, p99, p99.9", fontsize=9, loc="left")


def _name(axes: Axes, row: int, each: list[Figure]) -> None:
    """Write the workload beside the middle of its rows."""
    name = f"{each[0].workload}  {each[0].shows}"
    middle = row + (len(each) - 1) / 2
    axes.text(-0.01, middle, name, fontsize=8, transform=axes.get_yaxis_transform(),
              horizontalalignment="right", verticalalignment="center")  # fmt: skip


def _frame(axes: Axes, rows: int) -> None:
    axes.set_ylim(rows - 1.2, -0.8)
    axes.set_yticks([])
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _rate(rate: float) -> str:
    """Return a rate for people: 9.86 M, 37.2 k, 640."""
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if rate >= size:
            return f"{rate / size:,.{2 if size == 1e6 else 1}f}{unit}"
    return f"{rate:,.0f}"
