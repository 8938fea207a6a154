"""The passwords among a broker's settings: encrypted in the store, as Kafka's brokers keep them, and plain in memory.

    the node /config/brokers/N  --decoded-->  what the broker goes by
             ^── encoded: what did not change keeps its text ──┘

Only settings of one broker, most of them of one of its listeners, are passwords here, so that no other broker writes
them: each may have a secret of its own. What cannot be decrypted is told, not gone by, and left where it is.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from functools import partial

from pybroker.config import BrokerConfig, ConfigError, setting_of
from pybroker.config.listener_settings import changes_of_listener
from pybroker.config.security_settings import ENCODER_SECRET
from pybroker.controller import nodes
from pybroker.coordination.commit import commit, read
from pybroker.coordination.store import BadVersion, Session, Set
from pybroker.logs import event
from pybroker.security.password_encoder import PasswordEncoder, Undecodable

log = logging.getLogger(__name__)

NO_SECRET = f"{ENCODER_SECRET} is not set"


def is_password(name: str) -> bool:
    """Is it a setting whose value is encrypted?"""
    setting = setting_of(name) or changes_of_listener(name)
    return setting is not None and setting.sensitive


def check_can_be_kept(config: BrokerConfig, after: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Raises ConfigError for a password that is new where none can be encrypted."""
    name = next((n for n in after if is_password(n) and before.get(n) != after[n]), None)
    if name is not None and PasswordEncoder.of(config) is None:
        raise ConfigError(f"{name} cannot be kept without encryption: {NO_SECRET} where the broker is started")


async def decoded(config: BrokerConfig, held: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What a node holds with its passwords in plain, and {setting: why} of those that cannot be told."""
    names = [name for name in held if is_password(name)]
    if not names:
        return dict(held), {}
    encoder = PasswordEncoder.of(config)
    found, why = dict(held), dict[str, str]()
    for name in names:
        try:
            found[name] = await _decode(encoder, held[name])
        except Undecodable as problem:
            del found[name]
            why[name] = str(problem)
    return found, why


async def encoded(
    config: BrokerConfig, after: Mapping[str, str], held: Mapping[str, str], before: Mapping[str, str],
    dropped: Collection[str] | None,
) -> dict[str, str]:  # fmt: skip
    """What a node is to hold so that `after` is what it says. It holds `held`, which said `before`.

    Passwords that cannot be told stay, but those of `dropped`; None: none of them stays. Check before that they can be
    kept."""
    encoder = PasswordEncoder.of(config)
    untold = held.keys() - before.keys()
    stay = {n: held[n] for n in untold if is_password(n) and dropped is not None and n not in dropped}
    for name, text in after.items():
        if not is_password(name):
            stay[name] = text
        elif name in held and before.get(name) == text:
            stay[name] = held[name]
        else:
            assert encoder is not None
            stay[name] = await asyncio.to_thread(encoder.encode, text)
    return stay


async def encode_anew(session: Session, config: BrokerConfig, broker_id: int) -> None:
    """Have what is encrypted by password.encoder.old.secret be encrypted by the present one. Raises StoreError."""
    present, before = PasswordEncoder.of(config), PasswordEncoder.of_before(config)
    if present is None or before is None:
        return
    path = nodes.broker_config(broker_id)
    while True:
        data, stat = await read(session, path)
        held = nodes.load_config(data)
        anew = await asyncio.to_thread(partial(_anew, present, before), held)
        if not anew:
            return
        try:
            await commit(session, [Set(path, nodes.dump_config(held | anew), stat.version)])
        except BadVersion:
            continue
        event(log, logging.INFO, "passwords encrypted anew", settings=",".join(sorted(anew)))
        return


def _anew(present: PasswordEncoder, before: PasswordEncoder, held: Mapping[str, str]) -> dict[str, str]:
    """What only the secret before decrypts, by the present one."""
    found = {}
    for name in filter(is_password, held):
        try:
            present.decode(held[name])
        except Undecodable:
            try:
                found[name] = present.encode(before.decode(held[name]))
            except Undecodable:
                continue  # whoever loads it says so
    return found


async def _decode(encoder: PasswordEncoder | None, text: str) -> str:
    if encoder is None:
        raise Undecodable(NO_SECRET)
    return await asyncio.to_thread(encoder.decode, text)
