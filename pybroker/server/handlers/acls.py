"""DescribeAcls, CreateAcls, DeleteAcls of a broker without an authorizer: SECURITY_DISABLED for each thing asked.

An empty list would be no answer: librdkafka counts on a result for each ACL that it sends.
"""

from typing import Any

from pybroker import errors
from pybroker.cluster.caller import Call
from pybroker.protocol import messages as m

WHY = "there is no authorizer on this broker: everybody may do everything"


def describe(request: Any, call: Call) -> Any:
    return describe_failed(request, errors.SECURITY_DISABLED, WHY)


def create(request: Any, call: Call) -> Any:
    return create_failed(request, errors.SECURITY_DISABLED, WHY)


def delete(request: Any, call: Call) -> Any:
    return delete_failed(request, errors.SECURITY_DISABLED, WHY)


def describe_failed(request: Any, code: int, message: str) -> Any:
    return m.DescribeAclsResponse(error_code=code, error_message=message)


def create_failed(request: Any, code: int, message: str) -> Any:
    kind = m.CreateAclsResponse.Results
    return m.CreateAclsResponse(results=[kind(error_code=code, error_message=message) for _ in request.creations])


def delete_failed(request: Any, code: int, message: str) -> Any:
    kind = m.DeleteAclsResponse.FilterResults
    return m.DeleteAclsResponse(filter_results=[kind(error_code=code, error_message=message) for _ in request.filters])
