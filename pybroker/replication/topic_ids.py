"""One topic id, one name: a follower fetches by id, and would truncate its log to match another topic's."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from pybroker.decisions.image import Image
from pybroker.decisions.metadata_cache import TopicStates
from pybroker.logs import event

log = logging.getLogger(__name__)


def shared(topics: Iterable[tuple[str, bytes]]) -> set[bytes]:
    """The ids that two or more of these (name, id) pairs share."""
    owners: dict[bytes, str] = {}
    return {topic_id for name, topic_id in topics if owners.setdefault(topic_id, name) != name}


def is_taken(name: str, topic_id: bytes, owners: Mapping[bytes, str]) -> bool:
    """True if another topic's log here has this id, by the names in `owners`; this is logged."""
    owner = owners.get(topic_id, name)
    if owner != name:
        reason = f"its topic id {topic_id.hex()} is that of {owner}, whose log is here"
        event(log, logging.ERROR, "topic id of another topic", topic=name, reason=reason)
    return owner != name


class KnownIds:
    """Decides which topics of an UpdateMetadata are accepted; a refused one is logged once until it is accepted."""

    def __init__(self) -> None:
        self._refused: dict[str, bytes] = {}

    def own(self, image: Image, told: Collection[TopicStates], deleted: Collection[str]) -> list[TopicStates]:
        """The topics of the request whose id no other topic has: none in the image, which keeps the id, and none
        earlier in the request. An id of zeros counts as no id."""
        named = {topic.name: topic.id for topic in told}
        owners: dict[bytes, str] = {}
        taken = []
        for topic in told:
            known = image.topic_by_id(topic.id)
            if known is not None and known.name not in deleted and named.get(known.name, topic.id) == topic.id:
                owners.setdefault(topic.id, known.name)
            owner = owners.setdefault(topic.id, topic.name)
            if owner == topic.name or not any(topic.id):
                taken.append(topic)
                self._refused.pop(topic.name, None)
            elif self._refused.get(topic.name) != topic.id:
                self._refused[topic.name] = topic.id
                reason = f"its topic id {topic.id.hex()} is that of {owner}"
                event(log, logging.ERROR, "topic id of another topic", topic=topic.name, reason=reason)
        return taken
