"""Brokers of both modes, and other projects' clients connected to them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer

from pybroker.testing import BrokerHandle, Mode
from tests.harness import ROOT


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test marked `alone` in a separate process, as a client that another test left behind may open anything."""
    if pyfuncitem.get_closest_marker("alone") is None or "PYBROKER_ALONE" in os.environ:
        return None
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with tempfile.TemporaryDirectory() as base:
        # Without its own base it would delete the directories of earlier runs, which may take long.
        own = [f"--basetemp={base}/alone", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", "-q", *own, pyfuncitem.nodeid]
        ran = subprocess.run(command, cwd=ROOT, env={**env, "PYBROKER_ALONE": "yes"}, capture_output=True, text=True)
    assert ran.returncode == 0 and "1 passed" in ran.stdout, ran.stdout + ran.stderr
    return True


@pytest.fixture(params=["inprocess", "subprocess"])
def mode(request: pytest.FixtureRequest) -> Mode:
    chosen: Mode = request.param
    return chosen


@pytest.fixture
def broker(mode: Mode) -> Iterator[BrokerHandle]:
    """A broker, once in this process and once in its own."""
    with BrokerHandle(mode=mode) as handle:
        yield handle


@pytest.fixture
def consume() -> Iterator[Callable[..., Consumer]]:
    """A factory of subscribed consumers, closed at the end: `consume(broker, "topic", "group", ...)`."""
    opened: list[Consumer] = []

    def subscribe(broker: BrokerHandle, topic: str, group: str = "g", on_assign: Any = None, **how: Any) -> Consumer:
        consumer = Consumer(broker.confluent_config(group, **how))
        opened.append(consumer)
        consumer.subscribe([topic], **({} if on_assign is None else {"on_assign": on_assign}))
        return consumer

    yield subscribe
    for consumer in opened:
        consumer.close()
