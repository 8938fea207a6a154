"""The channels to all live brokers, and which of them get a decision of the controller."""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.controller.broker_channel import BrokerChannel, OpenLink, Reports
from pybroker.controller.context import ControllerContext
from pybroker.controller.metadata_update import Merged, MetadataUpdate
from pybroker.decisions.reassignment import partial
from pybroker.model import TopicPartition


class Channels(dict[int, BrokerChannel]):
    """The channel of each live broker. They report the brokers' responses to `reports`."""

    def __init__(self, broker_id: int, open_link: OpenLink, reports: Reports) -> None:
        super().__init__()
        self._broker_id = broker_id
        self._open_link = open_link
        self._reports = reports
        self._merged = Merged()

    def open(self, context: ControllerContext, brokers: Iterable[int]) -> None:
        """Open channels to registered brokers."""
        for broker in brokers:
            self[broker] = BrokerChannel(
                self._broker_id, context.fence.epoch, context.brokers[broker], context.epochs[broker],
                self._open_link, self._reports, self._merged,
            )  # fmt: skip

    def close(self, brokers: Iterable[int]) -> None:
        """Close the channels to these brokers."""
        for broker in list(brokers):
            self.pop(broker).close()

    def lead_and_follow(
        self, context: ControllerContext, keys: Iterable[TopicPartition], new: Iterable[TopicPartition] = ()
    ) -> None:
        """Send LeaderAndIsr for these partitions to their replicas; those in `new` are new, and so are replicas that
        are being added, until they are in sync: if their logs are missing, they may be created."""
        by_broker: dict[int, list[TopicPartition]] = {}
        fresh = set(new)
        copies: dict[int, set[TopicPartition]] = {}
        for key in keys:
            state = context.state(key)
            if state is None:
                continue
            for broker in state.replicas:
                by_broker.setdefault(broker, []).append(key)
            for broker in partial(state):
                copies.setdefault(broker, set()).add(key)
        for broker, its in by_broker.items():
            if broker in self:
                self[broker].lead_and_follow(context.told(its, fresh | copies[broker] if broker in copies else fresh))

    def all_held(self, context: ControllerContext, broker: int) -> None:
        """Send one broker LeaderAndIsr for all partitions that it holds."""
        its = {key: state for key, state in context.states() if broker in state.replicas}
        copies = {key for key, state in its.items() if broker in partial(state)}
        self[broker].lead_and_follow(context.told(its, copies))

    def update_metadata(
        self, context: ControllerContext, keys: Iterable[TopicPartition], to: Iterable[int] | None = None, *,
        first: bool = False, full: bool = False,
    ) -> None:  # fmt: skip
        """Send UpdateMetadata for these partitions to all live brokers, or to some. `first` and `full` as in a channel;
        not `full` while topics cannot be read, or brokers would forget these."""
        update = MetadataUpdate(context.told(keys), dict(context.brokers), full=full and not context.damaged)
        for broker in self if to is None else to:
            self[broker].update_metadata(update, first=first)
