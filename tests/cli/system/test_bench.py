"""`pybroker bench` against any broker: it prints what it measured, and leaves nothing behind."""

from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

from pybroker.cli.bench.command import check_svg, tell
from pybroker.cli.bench.load import WORKLOADS, Measurement
from tests.cli.conftest import Command, run
from tests.harness import Server, free_port


def test_every_workload(pybroker_: Command, target: Server) -> None:
    """Every workload runs without an error, and its topic is deleted afterwards."""
    wanted = list(WORKLOADS) if target.name == "pybroker" else ["W1", "W5", "F3"]
    done = pybroker_("bench", "--only", ",".join(wanted), "--seconds", 0.2, "--warm", 0, "--read-mib", 8, "--json")
    assert done.code == 0, done.err
    outcomes = {o["workload"]: o for o in done.json}
    assert list(outcomes) == wanted
    for name, workload in [(name, WORKLOADS[name]) for name in wanted]:
        o = outcomes[name]
        assert o["errors"] == 0 < o["requests"] and 0 < o["p50_us"] <= o["p99_us"] <= o["p999_us"], o
        if workload.records:
            assert o["records"] == o["requests"] * workload.records
            assert o["bytes"] > o["records"] * workload.record_bytes
        else:
            # Each connection also reads the small record that bench wrote to check the topic.
            assert o["bytes"] > (o["records"] - workload.connections) * 1024 > 0
    assert "pybroker-bench" not in run("topics", "list", "-b", target.bootstrap).out


def test_a_table_for_people(pybroker_: Command) -> None:
    """The table for people has one line for each workload, in the order of the arguments."""
    done = pybroker_("bench", "--only", "f3,w3", "--seconds", 0.2, "--warm", 0.1, "--read-mib", 8)
    assert done.code == 0, done.err
    head, *rows, blank, f3, w3 = done.out.splitlines()
    assert head.split()[:2] == ["REQUESTS/S", "RECORDS/S"] and [row.split()[0] for row in rows] == ["F3", "W3"]
    assert (blank, f3, w3) == ("", f"F3  {WORKLOADS['F3'].shows}", f"W3  {WORKLOADS['W3'].shows}")


def test_the_table_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """The table fits into 80 columns with more than a one-core broker can reach, and has readable numbers."""
    most = (1.0, 123_456_789, 1_234_567_890, 12_345_678_900, 0, 45, 12_345, 1_234_567)
    tell([Measurement(name, *most) for name in WORKLOADS])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80, lines
    assert lines[1].split() == ["W1", "123,456,789", "1,234,567,890", "12,345.7", "0.045", "12.345", "1,234.567", "0"]


def test_a_picture(pybroker_: Command, target: Server, tmp_path: Path) -> None:
    """The picture has bars for rates and latencies for fixed-rate workloads, with text that can be searched."""
    svg = tmp_path / "bench.svg"
    quick = ("--seconds", 0.2, "--warm", 0, "--json")
    done = pybroker_("bench", "--only", "W3,W6", *quick, "--svg", svg)
    assert done.code == 0, done.err
    texts = {text.text for text in ElementTree.parse(svg).iter() if text.tag.endswith("text")}
    w3, w6 = done.json
    rate = f"{w3['records_s'] / 1000:,.1f} k" if w3["records_s"] >= 1000 else f"{w3['records_s']:,.0f}"
    times = " / ".join(f"{w6[name] / 1000:,.3f}" for name in ("p50_us", "p99_us", "p999_us"))
    assert texts >= {target.bootstrap, f"W3  {WORKLOADS['W3'].shows}", rate, f"{times} ms"}
    nowhere = pybroker_("bench", "--svg", tmp_path / "none" / "bench.svg")
    assert nowhere.code == 2 and "No such file or directory" in nowhere.err


def test_a_picture_needs_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A picture without matplotlib is refused before the measurement, with the command that installs it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(click.UsageError, match=r"pip install 'matplotlib>="):
        check_svg(tmp_path / "bench.svg")


def test_what_cannot_be_measured() -> None:
    """An unknown workload is refused with a list of known ones; an unreachable broker in one sentence."""
    unknown = run("bench", "--only", "W1,X9")
    assert unknown.code == 2 and "X9" in unknown.err and "W1, W2" in unknown.err
    port = free_port()
    gone = run("bench", "-b", f"127.0.0.1:{port}", "--timeout", 1)
    assert gone.code == 1 and str(port) in gone.sentence
