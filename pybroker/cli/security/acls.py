"""`pybroker acls`: list, add and remove ACLs."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from pybroker.cli import output
from pybroker.cli.options import admin_of, ask, cluster_options, say
from pybroker.cli.output import Document
from pybroker.config.settings import shown
from pybroker.decisions.topics import check_name
from pybroker.errors import KafkaError
from pybroker.logs import printable
from pybroker.operations.acl_reasons import acl_text
from pybroker.security import operations
from pybroker.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from pybroker.security.principals import acl_host

F = TypeVar("F", bound=Callable[..., object])
USER = "User"
OPERATIONS = {each.name.lower().replace("_", "-"): each for each in Operation if each.concrete}


def _resource_options(function: F) -> F:
    """Add the options that name resources, each repeatable."""
    for option in (
        click.option("--prefixed", is_flag=True, help="The names given are prefixes of resource names."),
        click.option("--cluster", is_flag=True, help="The cluster itself."),
        click.option("--transactional-id", "transactional_ids", multiple=True, metavar="ID", help="Repeatable."),
        click.option("--group", "-g", "groups", multiple=True, metavar="NAME", help="A group, or *; repeatable."),
        click.option("--topic", "-t", "topics", multiple=True, metavar="NAME", help="A topic, or *; repeatable."),
    ):
        function = option(function)
    return function


def _resources(how: Document) -> list[ResourcePattern]:
    pattern = PatternType.PREFIXED if how["prefixed"] else PatternType.LITERAL
    named = [(ResourceType.TOPIC, name) for name in how["topics"]]
    named += [(ResourceType.GROUP, name) for name in how["groups"]]
    named += [(ResourceType.TRANSACTIONAL_ID, name) for name in how["transactional_ids"]]
    found = [ResourcePattern(kind, name, pattern) for kind, name in named]
    if how["cluster"]:
        found.append(ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL))
    return found


@click.group(name="acls")
def command() -> None:
    """List, add and remove ACLs, of any broker that speaks Kafka's protocol.

    Exit codes: 0 done; 1 the broker refused or could not be reached; 2 the command or its options are wrong.
    """


@command.command(name="list")
@_resource_options
@click.option("--principal", metavar="TYPE:NAME", help="List ACLs of this principal only.")
@cluster_options
def list_acls(
    principal: str | None, bootstrap_server: str, timeout_s: float, as_json: bool, **how: Any
) -> None:
    """List ACLs: all, or those that apply to the resources named."""
    if principal is not None:
        _check_principal(principal)
    with admin_of(bootstrap_server, timeout_s) as admin:
        found = sorted({binding for wanted in _filters(how, principal) for binding in admin.acls(wanted)})
    if as_json:
        output.as_json([_document(binding) for binding in found])
        return
    output.table(
        ("resource", "pattern", "principal", "host", "permission", "operation"),
        [
            (f"{at.type.text} {at.name}", at.pattern.text, acl.principal, acl.host, acl.permission.text,
             acl.operation.text)
            for at, acl in found
        ],
    )  # fmt: skip


def _filters(how: Document, principal: str | None) -> list[AclFilter]:
    """The filters for the ACLs that apply to the resources, with any pattern."""
    named = _resources(how)
    rest = (principal, None, Operation.ANY, Permission.ANY)
    if not named:
        return [AclFilter(ResourceType.ANY, None, PatternType.ANY, *rest)]
    exact = how["prefixed"]
    return [
        AclFilter(at.type, at.name, PatternType.PREFIXED if exact else PatternType.MATCH, *rest) for at in named
    ]


def _change_options(function: F) -> F:
    """Add the options for principals, hosts and operations."""
    for option in (
        click.option("--host", "hosts", multiple=True, default=(WILDCARD,), show_default=True,
                     help="The address that clients connect from; repeatable."),
        click.option("--operation", "-o", "operations", multiple=True, required=True, metavar="OPERATION",
                     type=click.Choice(list(OPERATIONS), case_sensitive=False),
                     help=f"Repeatable: {', '.join(OPERATIONS)}."),
        click.option("--deny", multiple=True, metavar="TYPE:NAME", help="A principal to deny; repeatable."),
        click.option("--allow", multiple=True, metavar="TYPE:NAME", help="A principal to allow; repeatable."),
    ):  # fmt: skip
        function = option(function)
    return _resource_options(function)


def _host(text: str, *, strict: bool) -> str:
    """Return an address as brokers compare it: ::1 is 0:0:0:0:0:0:0:1. `strict` refuses anything else."""
    try:
        return acl_host(text)
    except ValueError as problem:
        if not strict:
            return text
        words = "would match no client: write an IPv4 or IPv6 address (no name, no network), or * for every address"
        raise click.UsageError(f"--host {shown(text)} {words}") from problem


def _check_principal(name: str, *, strict: bool = False) -> None:
    """UsageError for a malformed principal; `strict` also refuses one that no client can have."""
    kind, colon, who = name.partition(":")
    if not colon or (strict and not (kind and who)):
        like = printable(who if colon else kind) or "ann"
        raise click.UsageError(f"{shown(name)} is no principal: write its type and its name, like User:{like}")
    if not strict:
        return
    if kind != USER and kind.strip().lower() == USER.lower():
        raise click.UsageError(f"{shown(name)} would match no client: write {USER}:{printable(who)}")
    if not name.isprintable():
        raise click.UsageError(f"{shown(name)} would match no client: it has characters that cannot be printed")


def _check_names(resources: Sequence[ResourcePattern]) -> None:
    """UsageError for an impossible topic name, with which kafka-acls would make an ACL that matches nothing."""
    for at in resources:
        if at.type is not ResourceType.TOPIC or (at.name == WILDCARD and at.pattern is PatternType.LITERAL):
            continue
        try:
            check_name(at.name)
        except KafkaError as problem:
            words = f"--topic {shown(at.name)} would match no topic: {problem.message}"
            star = f"; all topics are {WILDCARD} without --prefixed, and --prefixed takes a prefix"
            raise click.UsageError(words + (star if WILDCARD in at.name else "")) from problem


def _check_operations(resources: Sequence[ResourcePattern], names: Sequence[str]) -> None:
    """UsageError for an operation that the resource does not have, as in kafka-acls: the ACL would allow nothing."""
    for kind in dict.fromkeys(at.type for at in resources):
        of_kind = [each for each in Operation if operations.OPERATIONS[kind] >> each & 1]
        for name in names:
            wanted = OPERATIONS[name.lower()]
            if wanted not in (Operation.ALL, *of_kind):
                takes = ", ".join(each.text for each in of_kind)
                raise click.UsageError(f"{wanted.text} is not an operation on a {kind.text}: it takes {takes} or All")


def _bindings(how: Document, *, strict: bool = True) -> list[AclBinding]:
    """Return the ACLs that the options describe. `strict` False is for existing ACLs, whose hosts others may have
    written."""
    resources = _resources(how)
    if not resources:
        raise click.UsageError("name a resource: --topic, --group, --transactional-id or --cluster")
    principals = [(name, Permission.ALLOW) for name in how["allow"]]
    principals += [(name, Permission.DENY) for name in how["deny"]]
    if not principals:
        raise click.UsageError("name a principal: --allow User:NAME or --deny User:NAME")
    for name, _ in principals:
        _check_principal(name, strict=strict)
    if strict:
        _check_names(resources)
        _check_operations(resources, how["operations"])
    return [
        AclBinding(at, Acl(principal, _host(host, strict=strict), OPERATIONS[operation.lower()], permission))
        for at in resources
        for principal, permission in principals
        for host in how["hosts"]
        for operation in how["operations"]
    ]


@command.command()
@_change_options
@cluster_options
def add(bootstrap_server: str, timeout_s: float, as_json: bool, **how: Any) -> None:
    """Add ACLs: one for each resource, principal, host and operation that is given."""
    bindings = _bindings(how)
    with admin_of(bootstrap_server, timeout_s) as admin:
        admin.create_acls(bindings)
    text = "\n".join(f"Added: {acl_text(each)}" for each in bindings)
    say(as_json, {"added": [_document(each) for each in bindings]}, text)


@command.command()
@_change_options
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@cluster_options
def remove(yes: bool, bootstrap_server: str, timeout_s: float, as_json: bool, **how: Any) -> None:
    """Remove the ACLs that `add` with the same options adds. A missing ACL is not a failure."""
    bindings = _bindings(how, strict=False)
    which = "this ACL" if len(bindings) == 1 else f"these {len(bindings)} ACLs"
    ask(f"Remove {which}?", yes, "nothing was removed")
    with admin_of(bootstrap_server, timeout_s) as admin:
        gone: list[AclBinding] = []
        for at, acl in bindings:
            wanted = AclFilter(*at, acl.principal, acl.host, acl.operation, acl.permission)
            try:
                gone += admin.delete_acls(wanted)
            except KafkaError as problem:
                done = f" ({len(gone)} ACLs were removed before that)" if gone else ""
                raise KafkaError(problem.code, problem.message + done) from problem
    say(as_json, {"removed": [_document(each) for each in gone]}, _summary(gone))


def _summary(gone: Sequence[AclBinding]) -> str:
    return "\n".join(f"Removed: {acl_text(each)}" for each in gone) or "There is no such ACL."


def _document(binding: AclBinding) -> dict[str, str]:
    at, acl = binding
    return {
        "resource_type": at.type.text, "name": at.name, "pattern": at.pattern.text, "principal": acl.principal,
        "host": acl.host, "permission": acl.permission.text, "operation": acl.operation.text,
    }  # fmt: skip
