"""ApiVersions: what this broker serves, to anybody who asks, whatever else is wrong (KIP-35, KIP-511)."""

import re
from typing import Any

from pybroker import errors
from pybroker.cluster.caller import Call
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.protocol.apis import APIS

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
SOFTWARE_VERSION = 3
"""From here on a client says which program it is."""


def api_versions(request: Any, call: Call) -> Any:
    if call.version >= SOFTWARE_VERSION:
        for said in (request.client_software_name, request.client_software_version):
            if not _SOFTWARE.fullmatch(said):
                raise KafkaError(errors.INVALID_REQUEST, f"{said!r} is not the name or version of a program")
    kind = m.ApiVersionsResponse
    keys = [
        kind.ApiKeys(api_key=api.key, min_version=api.min_version, max_version=api.max_version) for api in APIS.values()
    ]
    return kind(api_keys=keys)


def failed(request: Any, code: int, message: str) -> Any:
    return m.ApiVersionsResponse(error_code=code)
