"""`pybroker bench` against any broker: what is measured is told, and nothing is left behind."""

from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

from pybroker.cli.bench import check_svg, tell
from pybroker.client.load import WORKLOADS, Outcome
from tests.cli.conftest import Command, run
from tests.harness import Server, free_port


def test_every_workload(pybroker_: Command, target: Server) -> None:
    """Each does what it says without an error, and its topic is gone afterwards."""
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
            # Each connection reads the one small record, too, that was written to see whether the topic is there.
            assert o["bytes"] > (o["records"] - workload.connections) * 1024 > 0
    assert "pybroker-bench" not in run("topics", "list", "-b", target.bootstrap).out


def test_a_table_for_people(pybroker_: Command) -> None:
    """One line a workload, in the order that was asked for."""
    done = pybroker_("bench", "--only", "f3,w3", "--seconds", 0.2, "--warm", 0.1, "--read-mib", 8)
    assert done.code == 0, done.err
    head, *rows, blank, f3, w3 = done.out.splitlines()
    assert head.split()[:2] == ["REQUESTS/S", "RECORDS/S"] and [row.split()[0] for row in rows] == ["F3", "W3"]
    assert (blank, f3, w3) == ("", f"F3  {WORKLOADS['F3'].shows}", f"W3  {WORKLOADS['W3'].shows}")


def test_the_table_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """80 columns hold more than a broker of one core will reach, with numbers as people read them."""
    most = (1.0, 123_456_789, 1_234_567_890, 12_345_678_900, 0, 45, 12_345, 1_234_567)
    tell([Outcome(name, *most) for name in WORKLOADS])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80, lines
    assert lines[1].split() == ["W1", "123,456,789", "1,234,567,890", "12,345.7", "0.045", "12.345", "1,234.567", "0"]


def test_a_picture(pybroker_: Command, target: Server, tmp_path: Path) -> None:
    """Rates are bars and what runs at a fixed rate latencies, with text that can be read and searched."""
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
    """It is said before anything is measured, with the command that installs it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(click.UsageError, match=r"pip install 'pybroker\[chart\]'"):
        check_svg(tmp_path / "bench.svg")


def test_what_cannot_be_measured() -> None:
    """An unknown workload is told with those that are known; a broker that is not there in a sentence."""
    unknown = run("bench", "--only", "W1,X9")
    assert unknown.code == 2 and "X9" in unknown.err and "W1, W2" in unknown.err
    port = free_port()
    gone = run("bench", "-b", f"127.0.0.1:{port}", "--timeout", 1)
    assert gone.code == 1 and str(port) in gone.sentence
