"""Users, ACLs and quotas, and the ACL that decides what a user may do."""

from collections.abc import Callable
from typing import Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from pybroker.client.admin import AclBinding, Admin
from pybroker.console.guard import viewer_of
from pybroker.console.pages import ROWS_MAX, BadRequest, Pages
from pybroker.errors import KafkaError
from pybroker.operations.acl_reasons import WantedAccess, acl_text, reason_of
from pybroker.security.acls import CLUSTER_NAME, Operation, ResourceType
from pybroker.security.operations import OPERATIONS

TYPES: Final = tuple(each for each in ResourceType if each in OPERATIONS and each is not ResourceType.USER)
ASKABLE: Final = tuple(each for each in Operation if each.concrete and each is not Operation.ALL)
ANY_HOST: Final = "-"
"""An address that no ACL names."""
DEFAULT: Final = "(default)"
T = TypeVar("T")


class SecurityPages:
    """The page about users and their rights."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def show(self, request: Request) -> Response:
        asked = {
            name: request.query_params.get(name, default).strip()[:500]
            for name, default in (("user", ""), ("host", ""), ("operation", "Read"), ("type", "Topic"), ("name", ""))
        }
        clients = viewer_of(request).clients
        with clients.admin() as admin:
            users, no_users = _part(admin, lambda: admin.users())
            acls, no_acls = _part(admin, lambda: admin.acls())
            quotas, no_quotas = _part(admin, lambda: sorted(admin.quotas().items(), key=lambda each: str(each[0])))
        limits = [
            (" with ".join(f"{kind} {name or DEFAULT}" for kind, name in entity), sorted(values.items()))
            for entity, values in quotas
        ]
        access = access_of(asked) if asked["user"] else None
        reason = reason_of(access, acls) if access is not None and not no_acls else None
        return self._pages.page(
            request, "security.html", asked=asked, users=users[:ROWS_MAX], no_users=no_users, more_users=len(users),
            acls=shown_acls(acls, asked["user"]), no_acls=no_acls, total_acls=len(acls), quotas=limits[:ROWS_MAX],
            no_quotas=no_quotas, total_quotas=len(limits), rows_max=ROWS_MAX, types=[each.text for each in TYPES],
            operations=[each.text for each in ASKABLE], reason=reason,
            rules=[acl_text(each) for each in reason.acls[:ROWS_MAX]] if reason is not None else [],
        )  # fmt: skip


def _part(admin: Admin, ask: Callable[[], list[T]]) -> tuple[list[T], str]:
    """Return an answer of the cluster, or why it gives none to this viewer."""
    try:
        return ask(), ""
    except KafkaError as error:
        return [], error.message


def shown_acls(acls: list[AclBinding], user: str) -> list[str]:
    """Return the ACLs as sentences, those of the user that is asked for first."""
    principal = f"User:{user.removeprefix('User:')}"
    ordered = sorted(acls, key=lambda each: (each.acl.principal != principal, each))
    return [acl_text(each) for each in ordered[:ROWS_MAX]]


def access_of(asked: dict[str, str]) -> WantedAccess:
    """Return the access that a form asks about. BadRequest if there is no such access."""
    try:
        operation, kind = Operation.of(asked["operation"]), ResourceType.of(asked["type"])
    except ValueError as error:
        raise BadRequest(str(error)) from error
    if kind not in OPERATIONS or not OPERATIONS[kind] >> operation & 1:
        raise BadRequest(f"{operation.text} is not an operation on a {kind.text}")
    name = CLUSTER_NAME if kind is ResourceType.CLUSTER else asked["name"]
    if not name:
        raise BadRequest(f"name the {kind.text}")
    user = asked["user"]
    return WantedAccess(user if ":" in user else f"User:{user}", asked["host"] or ANY_HOST, operation, kind, name)
