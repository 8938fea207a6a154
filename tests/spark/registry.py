"""A Schema Registry for tests: one process, one thread for each request, answers as Confluent's."""

from __future__ import annotations

import io
import itertools
import json
import os
import ssl
from http.server import BaseHTTPRequestHandler
from typing import Any

import fastavro

from tests.tokens import Web, say

NUMBERS = itertools.count()
MISSING = {"error_code": 40403, "message": "Schema not found"}


class Registry:
    """A registry of `schemas` by id, and of `subjects` by (subject, version). `fail` has a status for each of the next
    requests, or None to drop the connection. Its URL has a path of its own, as a later registry may get the port of an
    earlier one, whose schemas a process keeps by URL."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[tuple[str, int], dict[str, Any]] = {}
        self.login: str | None = None
        self.fail: list[int | None] = []
        self.paths: list[str] = []
        self.web = Web(self._answer)
        if tls is not None:
            self.web.server.socket = tls.wrap_socket(self.web.server.socket, server_side=True)
        self._path = f"/registry-{os.getpid()}-{next(NUMBERS)}"
        scheme = "http" if tls is None else "https"
        self.url = self.web.url.removesuffix("/keys").replace("http", scheme) + self._path

    def add(self, number: int, schema: Any, references: Any = (), **more: Any) -> None:
        document = {"schema": json.dumps(schema), **more}
        self.schemas[number] = document | ({"references": list(references)} if references else {})

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.removeprefix(self._path)
        self.paths.append(path)
        status, document = self._said(handler, path)
        if status is None:
            handler.connection.close()
            raise ConnectionResetError
        say(handler, json.dumps(document).encode(), status, Content_Type="application/vnd.schemaregistry.v1+json")

    def _said(self, handler: BaseHTTPRequestHandler, path: str) -> tuple[int | None, Any]:
        if self.fail:
            return self.fail.pop(0), {"error_code": 50001, "message": "the store is away"}
        if self.login is not None and handler.headers["Authorization"] != self.login:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        parts = path.strip("/").split("/")
        if parts[:2] == ["schemas", "ids"]:
            found: Any = self.schemas.get(int(parts[2]))
        elif parts[0] == "subjects":
            found = self.subjects.get((parts[1], int(parts[3])))
        else:
            return 404, "a page of a proxy"
        return (404, MISSING) if found is None else (200, found)


def record(name: str, **fields: Any) -> dict[str, Any]:
    """A record schema with these fields; a tuple is a type and its default."""
    made = []
    for each, kind in fields.items():
        made.append({"name": each, "type": kind[0], "default": kind[1]} if isinstance(kind, tuple) else
                    {"name": each, "type": kind})  # fmt: skip
    return {"type": "record", "name": name, "fields": made}


def encoded(schema: Any, row: Any) -> bytes:
    value = io.BytesIO()
    fastavro.schemaless_writer(value, fastavro.parse_schema(schema), row)
    return value.getvalue()


def framed(number: int, schema: Any, row: Any) -> bytes:
    return b"\0" + number.to_bytes(4) + encoded(schema, row)
