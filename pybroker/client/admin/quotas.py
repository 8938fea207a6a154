"""Client quotas (KIP-546) of users, client ids and addresses. The types are those of
`pybroker.security.quotas`."""

from collections.abc import Mapping

from pybroker.client.admin.base import AdminBase, only, raise_for
from pybroker.protocol import messages as m
from pybroker.security.quotas import ClientQuotaFilterComponent, Entity

EXACT, DEFAULT, ANY = range(3)


class QuotasAdmin(AdminBase):
    """Operations on client quotas."""

    def quotas(self, *wanted: ClientQuotaFilterComponent, strict: bool = False) -> dict[Entity, dict[str, float]]:
        """The quotas of entities that have these components, and with `strict` no others; of all where none is given.

        Raises KafkaError."""
        kind = m.DescribeClientQuotasRequest
        components = [
            kind.Components(entity_type=each.type, match_type=_number(each), match=None if each.any else each.name)
            for each in wanted
        ]
        answer = self.cluster.any().request(kind(components=components, strict=strict))
        raise_for(answer.error_code, "the quotas", answer.error_message)
        return {
            tuple((each.entity_type, each.entity_name) for each in entry.entity): {
                each.key: each.value for each in entry.values
            }
            for entry in answer.entries or ()
        }

    def alter_quotas(self, entity: Entity, changes: Mapping[str, float | None]) -> None:
        """Set quotas of an entity, or remove those whose value is None; the others stay. Raises KafkaError."""
        kind = m.AlterClientQuotasRequest.Entries
        entry = kind(
            entity=[kind.Entity(entity_type=type_, entity_name=name) for type_, name in entity],
            ops=[
                kind.Ops(key=key, value=0.0 if value is None else value, remove=value is None)
                for key, value in changes.items()
            ],
        )
        answer = self.cluster.controller().request(m.AlterClientQuotasRequest(entries=[entry]))
        result = only(answer.entries, "one entity")
        raise_for(result.error_code, "the quotas", result.error_message)


def _number(wanted: ClientQuotaFilterComponent) -> int:
    if wanted.any:
        return ANY
    return DEFAULT if wanted.name is None else EXACT
