"""Answers authorization queries by the current ACLs, and reports denials."""

from collections.abc import Callable
from typing import Final

from pybroker.security.acls import Operation, ResourceType
from pybroker.security.authorizer import AclRules
from pybroker.security.principals import host_text

FOUND_MAX: Final = 4096
NAME_MAX: Final = 255
"""The longest name, in characters, for which an answer is cached."""

Denied = Callable[[str, str, Operation, ResourceType, str], object]
"""Called with principal, host, operation, type and name."""


class Access:
    """Authorizes for one broker, by rules that are replaced as a whole when ACLs change."""

    def __init__(self, super_users: frozenset[str], allow_everyone: bool, denied: Denied) -> None:
        self.super_users = super_users
        self.number = 1
        """The version of the current rules."""
        self.on_replaced: list[Callable[[int], object]] = []
        """Called with the new version when the rules are replaced."""
        self._rules = AclRules(super_users, allow_everyone)
        self._found: dict[tuple[str, str, ResourceType, str], int] = {}  # cached answers of these rules, as bits
        self._denied = denied

    @property
    def rules(self) -> AclRules:
        return self._rules

    def replace(self, rules: AclRules) -> None:
        """Replace the current rules."""
        self._rules = rules
        self._found = {}
        self.number += 1
        for hear in self.on_replaced:
            hear(self.number)

    def is_super(self, principal: str) -> bool:
        """True if this principal may do everything, regardless of ACLs."""
        return principal in self.super_users

    def may(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str, *, told: bool = True
    ) -> bool:
        """True if an operation is allowed. `host` is the peer's socket address. A denial is reported by default."""
        key = principal, host, kind, name
        bits = self._found.get(key)
        if bits is None:
            bits = self.rules.allowed(principal, host_text(host), kind, name)
            if len(name) <= NAME_MAX:
                if len(self._found) >= FOUND_MAX:
                    self._found.clear()
                self._found[key] = bits
        allowed = bool(bits >> operation & 1)
        if told and not allowed:
            self._denied(principal, host, operation, kind, name)
        return allowed

    def may_to_any(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        """True if an operation is allowed on any resource of a type (KIP-679)."""
        allowed = self.rules.authorize_any(principal, host_text(host), operation, kind)
        if not allowed:
            self._denied(principal, host, operation, kind, "(any)")
        return allowed

    def operations(self, principal: str, host: str, kind: ResourceType, name: str) -> int:
        """The allowed operations, as bits."""
        return self.rules.authorized_operations(principal, host_text(host), kind, name)
