"""Guards of delegation tokens: who may have one in another's name, and see those of others."""

from typing import Any

from pybroker import errors
from pybroker.cluster.caller import Call
from pybroker.security.acls import Operation, ResourceType
from pybroker.server.dispatch import Handler
from pybroker.server.guards.auth_helper import AuthHelper, Guarded, after, refusal
from pybroker.server.handlers.delegation_tokens import check_caller


def created(auth: AuthHelper, handler: Handler) -> Guarded:
    """Everybody may have tokens of their own."""

    def guarded(request: Any, call: Call) -> Any:
        check_caller(call)
        name = request.owner_principal_name
        owner = f"{request.owner_principal_type}:{name}" if name else call.caller.principal
        if owner != call.caller.principal and not auth.may(
            call.caller, Operation.CREATE_TOKENS, ResourceType.USER, owner
        ):
            return refusal(handler, request, errors.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
        return handler.by(request, call)

    return guarded


def described(auth: AuthHelper, handler: Handler) -> Guarded:
    """Everybody may see the tokens that are theirs: as owners, requesters, renewers."""

    def guarded(request: Any, call: Call) -> Any:
        caller = call.caller

        def may(token: Any) -> bool:
            owner = f"{token.principal_type}:{token.principal_name}"
            requester = f"{token.token_requester_principal_type}:{token.token_requester_principal_name}"
            renewers = (f"{each.principal_type}:{each.principal_name}" for each in token.renewers)
            return (
                caller.principal in (owner, requester, *renewers)
                or auth.may(caller, Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id, told=False)
                or auth.may(caller, Operation.DESCRIBE_TOKENS, ResourceType.USER, owner, told=False)
            )

        def finish(answer: Any) -> Any:
            answer.tokens = [token for token in answer.tokens if may(token)]
            return answer

        return after(handler.by(request, call), finish)

    return guarded
