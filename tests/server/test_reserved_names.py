"""No client logs in as ANONYMOUS or `*`, the names in ACLs for clients without a login and for all clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker import errors
from pybroker.protocol import messages as m
from pybroker.security.login import Account
from pybroker.security.oauth.tokens import BadToken, checked
from tests.security.test_tokens import SETTINGS
from tests.server.cast import MODULE
from tests.server.live import Live
from tests.server.test_sasl import deletion, log_in, upsertion

NAMES = ("ANONYMOUS", "*")
SETS = [
    "listeners=OPEN://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map=OPEN:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "inter.broker.listener.name=OPEN",
    "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256",
    "delegation.token.secret.key=secret",
    f'listener.name.clients.plain.sasl.jaas.config={MODULE} required user_ANONYMOUS="pw" user_ann="a";',
    "connection.failed.authentication.delay.ms=1",
]


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    made = Live(tmp_path, SETS)
    await made.start()
    yield made
    await made.stop()


async def test_a_password_opens_no_door_to_it(live: Live) -> None:
    wire = await live.connect("CLIENTS")
    with pytest.raises(errors.KafkaError, match="the user name 'ANONYMOUS' is reserved"):
        await log_in(wire, Account("PLAIN", "ANONYMOUS", "pw"))
    await log_in(await live.connect("CLIENTS"), Account("PLAIN", "ann", "a"))


@pytest.mark.parametrize("name", NAMES)
async def test_nobody_is_given_a_password_or_a_token(live: Live, name: str) -> None:
    wire = await live.connect("OPEN")
    given = await wire.call(
        "AlterUserScramCredentials", 0, deletions=[], upsertions=[upsertion(name, 1, "SCRAM-SHA-256")]
    )
    assert [each.error_code for each in given.results] == [errors.UNACCEPTABLE_CREDENTIAL]
    gone = await wire.call("AlterUserScramCredentials", 0, deletions=[deletion(name, 1)], upsertions=[])
    assert [each.error_code for each in gone.results] == [errors.RESOURCE_NOT_FOUND]
    ann = await live.connect("CLIENTS")
    await log_in(ann, Account("PLAIN", "ann", "a"))
    renewer = m.CreateDelegationTokenRequest.Renewers(principal_type="User", principal_name=name)
    owner = {"owner_principal_type": "User", "owner_principal_name": name}
    for asked in ({"renewers": [renewer]}, {"renewers": [], **owner}):
        answer = await ann.call("CreateDelegationToken", 3, max_lifetime_ms=-1, **asked)
        assert answer.error_code == errors.INVALID_PRINCIPAL_TYPE


@pytest.mark.parametrize("name", ["", *NAMES])
def test_no_token_names_it(name: str) -> None:
    with pytest.raises(BadToken):
        checked({"sub": name, "exp": 1}, SETTINGS)
