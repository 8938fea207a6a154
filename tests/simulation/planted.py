"""Planted bugs, to check that the simulation finds them; each lasts until it is undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pybroker.controller.topic_deletion import Deletions
from pybroker.decisions import reassignment
from pybroker.decisions.image import PartitionState
from pybroker.decisions.isr import FollowerState, laggards, may_join
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.errors import KafkaError
from pybroker.replication import isr
from pybroker.replication.isr import IsrKeeper, LedPartition, WantedIsr
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.replica import Replica

Plant = Callable[[pytest.MonkeyPatch], None]


def truncation_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A new follower truncates to its high watermark, as before KIP-101, and not to the point of divergence."""
    follow = Replica.become_follower

    def cut_and_follow(
        replica: Replica, leader: int, leader_epoch: int, partition_epoch: int, *, wait: bool
    ) -> None:
        follow(replica, leader, leader_epoch, partition_epoch, wait=wait)
        log = replica.partition()
        log.truncate(log.high_watermark, leader_epoch=leader_epoch)

    patch.setattr(Replica, "become_follower", cut_and_follow)


def acks_before_replication(patch: pytest.MonkeyPatch) -> None:
    """A leader counts its own writes as committed, with none of them at its followers."""
    lead = Replica.become_leader

    def alone(self: Replica, leader_epoch: int, partition_epoch: int, *others: Any, wait: bool) -> None:
        lead(self, leader_epoch, partition_epoch, wait=wait)

    patch.setattr(Replica, "become_leader", alone)


def deletions_not_announced(patch: pytest.MonkeyPatch) -> None:
    """Brokers do not hear of deleted topics."""
    patch.setattr(Deletions, "tell_gone", lambda self, topics: None)


def stale_controller_obeyed(patch: pytest.MonkeyPatch) -> None:
    """A broker obeys a controller after a later one."""
    check, update = ReplicaManager._check, MetadataCache.update

    def obey(manager: ReplicaManager, request: Any) -> None:
        known = manager._controller_epoch
        manager._controller_epoch = min(known, request.controller_epoch)
        try:
            check(manager, request)
        except KafkaError:
            manager._controller_epoch = known
            raise

    def believe(metadata: MetadataCache, request: Any) -> None:
        known = min(metadata.image.controller_epoch, request.controller_epoch)
        metadata.image = replace(metadata.image, controller_epoch=known)
        update(metadata, request)

    patch.setattr(ReplicaManager, "_check", obey)
    patch.setattr(MetadataCache, "update", believe)


def growth_at_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A follower with all below the high watermark joins the ISR, although a new leader's high watermark is behind the
    committed records, and however long ago the follower caught up."""

    def join(follower: FollowerState, high_watermark: int, epoch_start: int, registered_epoch: int | None) -> bool:
        return may_join(follower, high_watermark, 0, registered_epoch)

    def none_late(_: Any, members: Any, log_end: int, since_ms: int, *times_ms: int) -> set[int]:
        return set() if since_ms < 0 else laggards(_, members, log_end, since_ms, *times_ms)

    patch.setattr(isr, "may_join", join)
    patch.setattr(isr, "laggards", none_late)


def loss_of_power_not_reported(patch: pytest.MonkeyPatch) -> None:
    """A broker does not report that its log may lack its end."""
    known = ReplicaManager.known

    async def known_as_whole(manager: ReplicaManager, keys: Any) -> Any:
        return {key: each._replace(power_lost=False) for key, each in (await known(manager, keys)).items()}

    patch.setattr(ReplicaManager, "known", known_as_whole)


def fetch_counted_for_a_later_life(patch: pytest.MonkeyPatch) -> None:
    """A leader confirms a follower by a fetch of an earlier life of its broker."""
    wait_and_ask = IsrKeeper._await

    def ask(keeper: IsrKeeper, led: LedPartition, wanted: WantedIsr) -> None:
        wait_and_ask(keeper, led, wanted._replace(epochs={}))

    patch.setattr(IsrKeeper, "_await", ask)


def the_leader_moves_too_early(patch: pytest.MonkeyPatch) -> None:
    """The controller takes the target's replicas as in sync before they are, and one of them leads."""
    advance = reassignment.advance

    def early(state: PartitionState, live: Any, **named: Any) -> PartitionState | None:
        assumed = state._replace(isr=tuple(dict.fromkeys((*state.isr, *reassignment.target(state)))))
        return advance(assumed, live, **named)

    patch.setattr(reassignment, "advance", early)


def logs_are_deleted_too_early(patch: pytest.MonkeyPatch) -> None:
    """The logs of replicas that leave are deleted when the reassignment begins."""
    patch.setattr(reassignment, "to_delete", lambda state: (*state.removing, *state.given_up))


def a_cancel_keeps_the_target(patch: pytest.MonkeyPatch) -> None:
    """A cancel only forgets what is under way: the replicas that were added stay."""
    patch.setattr(reassignment, "original", lambda state: state.replicas)
