"""ApiVersions: the APIs and versions that this broker serves, without any authorization (KIP-35, KIP-511)."""

from __future__ import annotations

import re

from pybroker import errors
from pybroker.decisions.caller import Call
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.protocol.apis import APIS

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
SOFTWARE_VERSION = 3
"""The first version in which a client sends its software name and version."""


def api_versions(request: m.ApiVersionsRequest, call: Call) -> m.ApiVersionsResponse:
    if call.version >= SOFTWARE_VERSION:
        for said in (request.client_software_name, request.client_software_version):
            if not _SOFTWARE.fullmatch(said):
                words = f"{said!r} is not a client software name or version: use letters, digits, - and ."
                raise KafkaError(errors.INVALID_REQUEST, words)
    kind = m.ApiVersionsResponse
    keys = [
        kind.ApiKeys(api_key=api.key, min_version=api.min_version, max_version=api.max_version) for api in APIS.values()
    ]
    return kind(api_keys=keys)


def failed(request: m.ApiVersionsRequest, code: int, message: str) -> m.ApiVersionsResponse:
    return m.ApiVersionsResponse(error_code=code)
