"""Certificates that are about to expire: the log warns in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.clock import wall_ms
from pybroker.server.network import listener as listeners
from pybroker.server.network.certificate_expiry import DAY_MS, DAYS_BEFORE
from pybroker.testing.certificates import Authority
from tests.harness import eventually
from tests.server.live import Live
from tests.server.test_alter_configs import BROKER, SET, alter

AUTHORITY = Authority()


async def test_a_certificate_that_ends_is_told_every_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A daily warning starts 30 days before, with listener, subject, day and file; a replacement that expires soon, and
    trusted certificates, get one too."""
    for name, days in (("soon", DAYS_BEFORE), ("late", DAYS_BEFORE + 1), ("next", 20), ("trusted", 3)):
        signed = AUTHORITY.sign(name, days=days)
        (tmp_path / f"{name}.pem").write_bytes(signed.key + signed.chain)

    def told(what: str, name: str) -> int:
        lines = [record.getMessage() for record in caplog.records]
        return len([
            line for line in lines
            if line.startswith(f'certificate {what} listener=SOON subject="CN={name}" ends="2')
            and f'UTC" store={tmp_path / name}.pem reason=' in line
        ])  # fmt: skip

    live = Live(tmp_path / "data", [
        "listeners=OPEN://127.0.0.1:0,SOON://127.0.0.1:0,LATE://127.0.0.1:0", "inter.broker.listener.name=OPEN",
        "listener.security.protocol.map=OPEN:PLAINTEXT,SOON:SSL,LATE:SSL", "ssl.keystore.type=PEM",
        f"listener.name.soon.ssl.keystore.location={tmp_path / 'soon.pem'}",
        "listener.name.soon.ssl.client.auth=required",
        f"listener.name.late.ssl.keystore.location={tmp_path / 'late.pem'}", "ssl.truststore.type=PEM",
        f"ssl.truststore.location={tmp_path / 'trusted.pem'}",
        "connections.max.idle.ms=1000",  # the daily check runs with the idle check, four times in this period
    ])  # fmt: skip
    await live.start()
    try:
        assert (told("expires soon", "soon"), told("expires soon", "trusted")) == (1, 1)
        assert "listener=LATE" not in caplog.text
        for days, what in ((1, "expires soon"), (DAYS_BEFORE + 1, "has expired")):
            before = told(what, "soon")
            monkeypatch.setattr(listeners, "wall_ms", lambda days=days: wall_ms() + days * DAY_MS)
            await eventually("it is told again", lambda what=what, before=before: told(what, "soon") == before + 1)
        monkeypatch.undo()
        other = ("listener.name.soon.ssl.keystore.location", SET, str(tmp_path / "next.pem"))
        assert (await alter(await live.connect("OPEN"), BROKER, "1001", other)).error_code == 0
        await eventually("the next one is told of", lambda: told("expires soon", "next") == 1)
    finally:
        await live.stop()
