"""The passwords among a broker's settings: encrypted in the store, as Kafka's brokers keep them, and plain in memory.

    the node /config/brokers/N  --decoded-->  the broker's configuration
             ^── encoded: unchanged passwords keep their encrypted text ──┘

Only settings of one broker, most of them of one listener, can be passwords, so no other broker writes them: each broker
may have its own secret. A password that cannot be decrypted is logged, not applied, and left in the store.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from functools import partial

from pybroker.config import BrokerConfig, ConfigError, setting_of
from pybroker.config.listener_settings import changes_of_listener
from pybroker.config.security_settings import ENCODER_SECRET
from pybroker.coordination.commit import commit, read
from pybroker.coordination.store import BadVersion, Session, Set
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.security.password_encoder import PasswordEncoder, Undecodable

log = logging.getLogger(__name__)

NO_SECRET = f"{ENCODER_SECRET} is not set"


def is_password(name: str) -> bool:
    """True if the value of this setting is encrypted."""
    setting = setting_of(name) or changes_of_listener(name)
    return setting is not None and setting.sensitive


def check_can_be_kept(config: BrokerConfig, after: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Raise ConfigError for a new password if this broker cannot encrypt it."""
    name = next((n for n in after if is_password(n) and before.get(n) != after[n]), None)
    if name is not None and PasswordEncoder.of(config) is None:
        raise ConfigError(f"{name} cannot be stored unencrypted: {NO_SECRET} where the broker is started")


async def decoded(config: BrokerConfig, held: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The settings of a node with passwords in plain, and {setting: why} of those that cannot be decrypted."""
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
    """The settings to write for `after`, with passwords encrypted. The node has `held`, decrypted `before`.

    Passwords that cannot be decrypted stay in the node, except those in `dropped`, or all if it is None. Call
    `check_can_be_kept` first."""
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
    """Encrypt again, with the present secret, what password.encoder.old.secret encrypted. Raises StoreError."""
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
        event(log, logging.INFO, "passwords re-encrypted", settings=",".join(sorted(anew)))
        return


def _anew(present: PasswordEncoder, before: PasswordEncoder, held: Mapping[str, str]) -> dict[str, str]:
    """The passwords that only the old secret decrypts, encrypted with the present one."""
    found = {}
    for name in filter(is_password, held):
        try:
            present.decode(held[name])
        except Undecodable:
            try:
                found[name] = present.encode(before.decode(held[name]))
            except Undecodable:
                continue  # `decoded` reports it
    return found


async def _decode(encoder: PasswordEncoder | None, text: str) -> str:
    if encoder is None:
        raise Undecodable(NO_SECRET)
    return await asyncio.to_thread(encoder.decode, text)
