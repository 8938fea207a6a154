"""Guards of delegation tokens: creating one for another owner and describing others' tokens need rights."""

from __future__ import annotations

from pybroker import errors
from pybroker.decisions.caller import Call
from pybroker.protocol import messages as m
from pybroker.security.acls import Operation, ResourceType
from pybroker.server.api.dispatch import Answered, Handler
from pybroker.server.api.guards.auth_helper import AuthHelper, Guarded, after, refusal
from pybroker.server.api.handlers.delegation_tokens import check_caller


def created(
    auth: AuthHelper, handler: Handler[m.CreateDelegationTokenRequest, m.CreateDelegationTokenResponse]
) -> Guarded[m.CreateDelegationTokenRequest, m.CreateDelegationTokenResponse]:
    """CreateDelegationToken: allowed for the caller's own tokens; for another owner CreateTokens on that user."""

    def guarded(request: m.CreateDelegationTokenRequest, call: Call) -> Answered[m.CreateDelegationTokenResponse]:
        check_caller(call)
        name = request.owner_principal_name
        owner = f"{request.owner_principal_type}:{name}" if name else call.caller.principal
        if owner != call.caller.principal and not auth.may(
            call.caller, Operation.CREATE_TOKENS, ResourceType.USER, owner
        ):
            return refusal(handler, request, errors.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
        return handler.by(request, call)

    return guarded


def described(
    auth: AuthHelper, handler: Handler[m.DescribeDelegationTokenRequest, m.DescribeDelegationTokenResponse]
) -> Guarded[m.DescribeDelegationTokenRequest, m.DescribeDelegationTokenResponse]:
    """DescribeDelegationToken: returns tokens of which the caller is owner, requester or renewer, or has Describe."""

    def guarded(request: m.DescribeDelegationTokenRequest, call: Call) -> Answered[m.DescribeDelegationTokenResponse]:
        caller = call.caller

        def may(token: m.DescribeDelegationTokenResponse.Tokens) -> bool:
            owner = f"{token.principal_type}:{token.principal_name}"
            requester = f"{token.token_requester_principal_type}:{token.token_requester_principal_name}"
            renewers = (f"{each.principal_type}:{each.principal_name}" for each in token.renewers)
            return (
                caller.principal in (owner, requester, *renewers)
                or auth.may(caller, Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id, told=False)
                or auth.may(caller, Operation.DESCRIBE_TOKENS, ResourceType.USER, owner, told=False)
            )

        def finish(answer: m.DescribeDelegationTokenResponse) -> m.DescribeDelegationTokenResponse:
            answer.tokens = [token for token in answer.tokens if may(token)]
            return answer

        return after(handler.by(request, call), finish)

    return guarded
