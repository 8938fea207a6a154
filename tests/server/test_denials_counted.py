"""Each denial is counted, and a request with a thousand denials logs only a few lines."""

from __future__ import annotations

import logging
import re

import pytest

from pybroker.config import BrokerConfig
from pybroker.security.acls import Operation, ResourceType
from pybroker.server.api import authorization
from pybroker.server.api.authorization import Authorization


async def test_every_denial_is_in_a_number(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    config = BrokerConfig.load(None, ["authorizer.class.name=kafka.security.authorizer.AclAuthorizer"])
    made = Authorization(config, lambda: pytest.fail("no session is needed"))
    words, count = authorization._words, 0

    def counted(principal: str, operation: Operation, kind: ResourceType, name: str) -> str:
        nonlocal count
        count += 1
        return words(principal, operation, kind, name)

    monkeypatch.setattr(authorization, "_words", counted)
    with caplog.at_level(logging.WARNING):
        for number in range(1000):
            assert not made.access.may("User:ann", "10.0.0.1", Operation.READ, ResourceType.TOPIC, f"t{number}")
        assert count == authorization.TOLD_MAX, "no text is built for a line that is not logged"
        assert not made.access.may("User:bob", "10.0.0.1", Operation.READ, ResourceType.TOPIC, "t")
        made.close()
    lines = caplog.text.splitlines()
    numbers = [int(found[1]) for line in lines if (found := re.search(r"count=(\d+)", line))]
    assert sum(numbers) + sum("request denied" in line for line in lines) == 1001
    assert "is not authorized to Read Topic 't999'" in caplog.text and len(lines) <= 15
