"""Delegation tokens (KIP-48): creation, login by token, and the right to see, renew and expire one."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pybroker import errors
from pybroker.protocol import messages as m
from pybroker.security.acls import Operation, ResourceType
from pybroker.security.login import Account
from pybroker.security.scram import HASHES
from pybroker.server.api.handlers import delegation_tokens
from tests.harness import eventually
from tests.server.cast import creation
from tests.server.live import Live, Wire
from tests.server.test_sasl import log_in

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SECRET = "the key of all tokens"
SETS = [
    "listeners=OPEN://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map=OPEN:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "inter.broker.listener.name=OPEN",
    "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    f'listener.name.clients.plain.sasl.jaas.config={MODULE} required user_ann="a" user_bob="b" user_root="r";',
]
ACLS = ["authorizer.class.name=kafka.security.authorizer.AclAuthorizer", "super.users=User:root;User:ANONYMOUS"]
DAY_MS = 86_400_000


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    made = Live(tmp_path / "data", [*SETS, f"delegation.token.secret.key={SECRET}"])
    await made.start()
    yield made
    if made.broker is not None:
        await made.stop()


@pytest.fixture
async def judged(tmp_path: Path) -> AsyncIterator[Live]:
    """A broker with ACLs, where root is a super user."""
    made = Live(tmp_path / "data", [*SETS, *ACLS, f"delegation.token.secret.key={SECRET}"])
    await made.start()
    yield made
    await made.stop()


async def login(live: Live, user: str) -> Wire:
    wire = await live.connect("CLIENTS")
    await log_in(wire, Account("PLAIN", user, user[0]))
    return wire


async def by_token(live: Live, token: Any, mechanism: str = "SCRAM-SHA-256", *, tokenauth: bool = True) -> Wire:
    """Log in with a token; return the connection. Raises KafkaError."""
    wire = await live.connect("CLIENTS")
    secret = base64.b64encode(bytes(token.hmac)).decode()
    await log_in(wire, Account(mechanism, token.token_id, secret, by_token=tokenauth))
    return wire


def users(*names: str) -> list[Any]:
    return [m.CreateDelegationTokenRequest.Renewers(principal_type="User", principal_name=name) for name in names]


async def create(wire: Wire, *renewers: str, owner: str | None = None, **but: Any) -> Any:
    named = {"owner_principal_type": "User" if owner else None, "owner_principal_name": owner}
    fields = {"renewers": users(*renewers), "max_lifetime_ms": -1, **named, **but}
    return await wire.call("CreateDelegationToken", 3, **fields)


async def described(wire: Wire, *owners: str, everybodys: bool = True) -> list[Any]:
    asked = None if everybodys and not owners else [
        m.DescribeDelegationTokenRequest.Owners(principal_type="User", principal_name=name) for name in owners
    ]  # fmt: skip
    answer = await wire.call("DescribeDelegationToken", 3, owners=asked)
    assert answer.error_code == 0
    return sorted(answer.tokens, key=lambda token: token.principal_name)


async def test_a_token_opens_the_door_in_its_owners_name(live: Live) -> None:
    ann = await login(live, "ann")
    token = await create(ann, "bob")
    assert (token.error_code, token.principal_type, token.principal_name) == (0, "User", "ann")
    assert (token.token_requester_principal_name, len(token.token_id), len(token.hmac)) == ("ann", 22, 64)
    now_ms = time.time() * 1000
    assert abs(token.expiry_timestamp_ms - now_ms - DAY_MS) < 60_000
    assert token.max_timestamp_ms - token.issue_timestamp_ms == 7 * DAY_MS
    for mechanism in HASHES:
        wire = await by_token(live, token, mechanism)
        assert (await wire.create("t-" + mechanism)).error_code == 0
    await live.stop()
    await live.start()
    await by_token(live, token), "it survives a restart"


async def test_who_has_no_token_is_kept_out(live: Live) -> None:
    """A login fails with another token's secret, an unknown id, a user name as token id, or a token id as user name."""
    token = await create(await login(live, "ann"))
    other = await create(await login(live, "ann"))
    secret = base64.b64encode(bytes(token.hmac)).decode()
    for account in (
        Account("SCRAM-SHA-256", token.token_id, base64.b64encode(bytes(other.hmac)).decode(), by_token=True),
        Account("SCRAM-SHA-256", "x" * 22, secret, by_token=True),
        Account("SCRAM-SHA-256", "ann", "a", by_token=True),
        Account("SCRAM-SHA-256", token.token_id, secret),
    ):
        with pytest.raises(errors.KafkaError, match="invalid credentials with SASL mechanism SCRAM-SHA-256"):
            await log_in(await live.connect("CLIENTS"), account)


async def test_a_token_begets_no_token(live: Live) -> None:
    """A client logged in by token, or not logged in, can neither create nor renew, expire or see tokens."""
    ann = await login(live, "ann")
    token = await create(ann)
    for wire in (await by_token(live, token), await live.connect("OPEN")):
        assert (await create(wire)).error_code == errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        for name, fields in (
            ("RenewDelegationToken", {"hmac": token.hmac, "renew_period_ms": -1}),
            ("ExpireDelegationToken", {"hmac": token.hmac, "expiry_time_period_ms": -1}),
            ("DescribeDelegationToken", {"owners": None}),
        ):
            answer = await wire.call(name, 2, **fields)
            assert answer.error_code == errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            assert not getattr(answer, "tokens", [])
    await by_token(live, token)


async def test_there_are_none_without_the_key(tmp_path: Path) -> None:
    made = Live(tmp_path / "data", SETS)
    await made.start()
    ann = await login(made, "ann")
    assert (await create(ann)).error_code == errors.DELEGATION_TOKEN_AUTH_DISABLED
    answer = await ann.call("RenewDelegationToken", 2, hmac=b"x", renew_period_ms=-1)
    assert answer.error_code == errors.DELEGATION_TOKEN_AUTH_DISABLED
    await made.stop()


@pytest.mark.parametrize(
    ("but", "code"),
    [
        ({"renewers": [m.CreateDelegationTokenRequest.Renewers(principal_type="Group", principal_name="x")]}, 67),
        ({"renewers": users("")}, 67),
        ({"owner_principal_type": "Group", "owner_principal_name": "x"}, 67),
        ({"renewers": users(*map(str, range(101)))}, errors.POLICY_VIOLATION),
        ({"renewers": users(*(f"{n}" * 1000 for n in range(9)))}, errors.POLICY_VIOLATION),
    ],
)
async def test_what_is_no_token(live: Live, but: dict[str, Any], code: int) -> None:
    ann = await login(live, "ann")
    assert (await create(ann, **but)).error_code == code
    assert await described(ann) == []


async def test_an_owner_has_so_many_tokens_at_most(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation_tokens, "TOKENS_PER_OWNER_MAX", 3)
    ann = await login(live, "ann")
    codes = [(await create(ann)).error_code for _ in range(4)]
    assert codes == [0, 0, 0, errors.POLICY_VIOLATION]
    assert (await create(await login(live, "bob"))).error_code == 0


@pytest.mark.parametrize("max_ms", [1, 5000, 8 * DAY_MS, 2**63 - 1, 0, -(2**63)])
async def test_a_life_is_as_long_as_asked_for_and_allowed(live: Live, max_ms: int) -> None:
    token = await create(await login(live, "ann"), max_lifetime_ms=max_ms)
    longest = min(max_ms, 7 * DAY_MS) if max_ms > 0 else 7 * DAY_MS
    assert token.max_timestamp_ms - token.issue_timestamp_ms == longest
    assert token.expiry_timestamp_ms - token.issue_timestamp_ms == min(longest, DAY_MS)


async def test_who_may_renew_and_end_it(live: Live) -> None:
    ann, bob, root = [await login(live, user) for user in ("ann", "bob", "root")]
    token = await create(ann, "bob", max_lifetime_ms=3 * DAY_MS)
    for period_ms, least_ms in ((1000, 1000), (-1, DAY_MS), (2**63 - 1, 3 * DAY_MS)):
        answer = await bob.call("RenewDelegationToken", 2, hmac=token.hmac, renew_period_ms=period_ms)
        assert answer.error_code == 0
        assert abs(answer.expiry_timestamp_ms - time.time() * 1000 - least_ms) < 30_000
        assert answer.expiry_timestamp_ms <= token.max_timestamp_ms
    for name, fields in (
        ("RenewDelegationToken", {"renew_period_ms": -1}), ("ExpireDelegationToken", {"expiry_time_period_ms": -1})
    ):  # fmt: skip
        answer = await root.call(name, 2, hmac=token.hmac, **fields)
        assert answer.error_code == errors.DELEGATION_TOKEN_OWNER_MISMATCH
        answer = await ann.call(name, 2, hmac=b"no token's", **fields)
        assert answer.error_code == errors.DELEGATION_TOKEN_NOT_FOUND
    answer = await ann.call("ExpireDelegationToken", 2, hmac=token.hmac, expiry_time_period_ms=-1)
    assert answer.error_code == 0 and await described(ann) == []
    with pytest.raises(errors.KafkaError):
        await by_token(live, token)
    answer = await ann.call("RenewDelegationToken", 2, hmac=token.hmac, renew_period_ms=-1)
    assert answer.error_code == errors.DELEGATION_TOKEN_NOT_FOUND


async def test_a_token_that_ends_takes_its_login_along(live: Live) -> None:
    """An expired token, even if not removed yet, logs in no client; the next request of a connected one closes it."""
    ann = await login(live, "ann")
    token = await create(ann)
    answer = await ann.call("ExpireDelegationToken", 2, hmac=token.hmac, expiry_time_period_ms=1500)
    wire = await by_token(live, token)
    assert (await wire.create("t")).error_code == 0
    await asyncio.sleep(max(0.0, answer.expiry_timestamp_ms / 1000 + 0.01 - time.time()))
    wire.send("Metadata", 12, topics=[])
    assert await wire.closed()
    with pytest.raises(errors.KafkaError, match="invalid credentials"):
        await by_token(live, token)
    answer = await ann.call("RenewDelegationToken", 2, hmac=token.hmac, renew_period_ms=-1)
    assert answer.error_code == errors.DELEGATION_TOKEN_EXPIRED
    assert len(await described(ann)) == 1


async def test_tokens_that_have_ended_are_swept_away(tmp_path: Path) -> None:
    made = Live(tmp_path / "data", [
        *SETS, f"delegation.token.secret.key={SECRET}", "delegation.token.expiry.check.interval.ms=100"
    ])  # fmt: skip
    await made.start()
    ann = await login(made, "ann")
    await create(ann, max_lifetime_ms=1)
    kept = await create(ann)

    async def swept() -> bool:
        return [token.token_id for token in await described(ann)] == [kept.token_id]

    await eventually("it is swept away", swept)
    await made.stop()


async def test_a_login_is_renewed_by_its_own_token_only(live: Live) -> None:
    """A token cannot renew its owner's password login, as the connection would count as the password's afterwards."""
    await live.restart("connections.max.reauth.ms=60000")
    admin = await live.connect("OPEN")
    from tests.server.test_sasl import give

    await give(admin, "ann", "pw")
    ann = await live.connect("CLIENTS")
    await log_in(ann, Account("SCRAM-SHA-256", "ann", "pw"))
    token = await create(ann)
    secret = base64.b64encode(bytes(token.hmac)).decode()
    with pytest.raises(errors.KafkaError, match="cannot renew each other"):
        await log_in(ann, Account("SCRAM-SHA-256", token.token_id, secret, by_token=True))
    assert await ann.closed()
    wire = await by_token(live, token)
    await log_in(wire, Account("SCRAM-SHA-256", token.token_id, secret, by_token=True))
    assert (await wire.create("t")).error_code == 0


async def test_who_sees_which_tokens(judged: Live) -> None:
    ann, bob, root = [await login(judged, user) for user in ("ann", "bob", "root")]
    mine = await create(ann, "bob")
    await create(root)
    assert [t.principal_name for t in await described(ann)] == ["ann"]
    (seen,) = await described(bob)
    assert seen.hmac == mine.hmac and [r.principal_name for r in seen.renewers] == ["bob"]
    assert [t.principal_name for t in await described(root)] == ["ann", "root"]
    assert [t.principal_name for t in await described(root, "root")] == ["root"]
    assert await described(root, "nobody") == [] and await described(root, everybodys=False) == []
    for acl in (
        creation(ResourceType.DELEGATION_TOKEN, mine.token_id, Operation.DESCRIBE, principal="User:eve"),
        creation(ResourceType.USER, "User:root", Operation.DESCRIBE_TOKENS, principal="User:bob"),
    ):
        answer = await root.call("CreateAcls", 3, creations=[acl])
        assert answer.results[0].error_code == 0
    assert [t.principal_name for t in await described(bob)] == ["ann", "root"]


async def test_without_acls_everybody_sees_their_own(live: Live) -> None:
    """Each user sees only their own tokens; Kafka without ACLs shows all tokens and secrets to all users."""
    ann, bob = await login(live, "ann"), await login(live, "bob")
    await create(ann)
    assert await described(bob) == [] and len(await described(ann)) == 1


async def test_a_token_in_anothers_name(judged: Live) -> None:
    ann, root = await login(judged, "ann"), await login(judged, "root")
    denied = await create(ann, owner="bob")
    assert denied.error_code == errors.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    acl = creation(ResourceType.USER, "User:bob", Operation.CREATE_TOKENS)
    assert (await root.call("CreateAcls", 3, creations=[acl])).results[0].error_code == 0
    token = await create(ann, owner="bob")
    assert (token.error_code, token.principal_name, token.token_requester_principal_name) == (0, "bob", "ann")
    assert [t.principal_name for t in await described(ann)] == ["bob"], "the requester may see it"
    wire = await by_token(judged, token)
    assert (await wire.create("t")).error_code == errors.TOPIC_AUTHORIZATION_FAILED
    acl = creation(ResourceType.TOPIC, "t", Operation.CREATE, principal="User:bob")
    assert (await root.call("CreateAcls", 3, creations=[acl])).results[0].error_code == 0
    assert (await wire.create("t")).error_code == 0


async def test_no_secret_is_shown(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    token = await create(await login(live, "ann"))
    await by_token(live, token)
    with pytest.raises(errors.KafkaError):
        await by_token(live, token, tokenauth=False)
    wire = await live.connect("OPEN")
    kind = m.DescribeConfigsRequest.Resources
    shown = await wire.call("DescribeConfigs", 4, resources=[kind(resource_type=4, resource_name="1001")])
    (entry,) = [e for e in shown.results[0].configs if e.name == "delegation.token.secret.key"]
    assert entry.value is None and entry.is_sensitive
    text = caplog.text + repr(shown)
    assert SECRET not in text and base64.b64encode(bytes(token.hmac)).decode() not in text
    assert bytes(token.hmac).hex() not in text
    assert b"".join(p.read_bytes() for p in live.data_dir.rglob("*") if p.is_file()).find(bytes(token.hmac)) < 0


async def test_a_node_that_is_none_is_passed_over(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    assert live.broker is not None
    token = await create(await login(live, "ann"))
    session = live.broker.session
    for name, data in (("a", b""), ("b", b"[]"), ("c", b'{"version":9}'), ("d", b'{"version":3,"owner":"User%3Aann"}'),
                       ("e", b"[" * 100_000)):  # fmt: skip
        await session.create(f"/delegation_token/tokens/{name}", data)
    await live.stop()
    await live.start()
    assert caplog.text.count("delegation token ignored") == 5
    await by_token(live, token)
    await eventually("it serves", lambda: live.broker is not None)
