"""OpenAPI: the document that describes a server, made from what it serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.state.schema import Schema
from headgate.state.table import Table
from headgate.transactions import Transaction
from headgate.web.bodies import ARROW, EPOCH_HEADER, JSON, PARAMETER_TYPES
from headgate.web.json_values import describe, describe_event
from headgate.web.server_metrics import MEDIA as METRICS
from headgate.web.target import Served

VERSION = "3.1.0"
KEY_HEADER = "Idempotency-Key"
KEY_PATTERN = r"[!-~]{1,255}"
OUTCOMES = ["committed", "aborted", "rejected", "late"]
EVENTS = "text/event-stream"
_TEXT = {"type": "string"}
_INTEGER = {"type": "integer"}


def make_document(served: Served, version: str, needs_token: bool) -> dict[str, Any]:
    """The whole document, for the tables and transactions there are now."""
    paths: dict[str, Any] = {
        "/health": {"get": {**_health(), "security": []}},
        "/metrics": {"get": _metrics()},
        "/openapi.json": {"get": _document()},
        "/tables": {"get": _list_tables()},
        "/transactions": {"get": _list_transactions()},
        "/sql": {"post": _sql()},
        "/results": {"get": _follow("all transactions")},
    }
    for table in served.tables.values():
        paths[f"/tables/{table.name}/row"] = {"get": _get_row(table)}
    for name, transaction in served.transactions.items():
        paths[f"/transactions/{name}"] = {"post": _call(transaction)}
    for name in {**served.streams, **served.transactions}:
        paths[f"/transactions/{name}/results"] = {"get": _follow(name)}
    schemes = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": VERSION,
        "info": {"title": "Headgate", "version": version, "description": _DESCRIPTION},
        "security": [{"token": []}] if needs_token else [],
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR, "Answer": _ANSWER},
            "securitySchemes": schemes if needs_token else {},
        },
    }


_DESCRIPTION = (
    "Tables that streams of transactions keep, and the transactions themselves. Integers are JSON "
    "integers of 64 bits, decimals are strings, timestamps are ISO 8601 in UTC, and the floats "
    'that JSON lacks are "NaN", "Infinity" and "-Infinity".'
)
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "request"],
            "properties": {"code": _TEXT, "message": _TEXT, "request": _TEXT},
        }
    },
}
_ANSWER = {
    "type": "object",
    "required": ["epoch", "columns", "rows"],
    "properties": {
        "epoch": _INTEGER,
        "columns": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "type"],
                "properties": {"name": _TEXT, "type": _TEXT},
            },
        },
        "rows": {"type": "array", "items": {"type": "array"}},
    },
}
_REASONS = {
    400: "what was sent does not fit",
    401: "no token, an unknown one, or one that has expired",
    403: "a host or an origin that the server does not take",
    404: "there is no such thing",
    405: "the address has other methods",
    406: "the client accepts no answer that there is",
    408: "the request did not arrive in time",
    409: "what is asked for does not fit what is there",
    410: "these results were removed",
    413: "the body is too long",
    415: "the body is not JSON",
    422: "the query finds too much or takes too long",
    431: "the head of the request is too long",
    503: "the server is busy, its engine has stopped, or its store is not there",
}


def _operation(
    summary: str, media: Mapping[str, Any], *refused: int, **more: Any
) -> dict[str, Any]:
    error = {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    responses: dict[str, Any] = {"200": {"description": "done", "content": dict(media)}}
    for status in (400, 401, 403, 405, 408, 413, 431, *refused):
        responses[str(status)] = {"description": _REASONS[status], "content": error}
    return {"summary": summary, "responses": responses, **more}


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {JSON: {"schema": dict(schema)}}


def _object(properties: Mapping[str, Any], closed: bool = False) -> dict[str, Any]:
    found = {"type": "object", "required": list(properties), "properties": dict(properties)}
    return {**found, "additionalProperties": False} if closed else found


def _columns(schema: Schema, nullable: bool = False) -> dict[str, Any]:
    """The columns of rows or results; those declared NULL, or all of them, may be null."""
    found = {}
    for column in schema:
        told, is_null = describe(column.type), nullable or column.nullable
        found[column.name] = {"anyOf": [told, {"type": "null"}]} if is_null else told
    return found


def _health() -> dict[str, Any]:
    shape = _object({"status": {"enum": ["ok"]}, "epoch": _INTEGER})
    return _operation("Whether the server serves, with the newest epoch", _json(shape), 503)


def _metrics() -> dict[str, Any]:
    return _operation("Counts, for Prometheus", {METRICS: {"schema": _TEXT}})


def _document() -> dict[str, Any]:
    return _operation("This document", _json({"type": "object"}))


_NAMED_TYPES = {"type": "array", "items": _object({"name": _TEXT, "type": _TEXT})}


def _list_tables() -> dict[str, Any]:
    table = _object(
        {
            "name": _TEXT,
            "columns": _NAMED_TYPES,
            "key": {"type": "array", "items": _TEXT},
            "check": {"anyOf": [_TEXT, {"type": "null"}]},
        }
    )
    shape = _object({"epoch": _INTEGER, "tables": {"type": "array", "items": table}})
    return _operation("The tables and their columns", _json(shape))


def _list_transactions() -> dict[str, Any]:
    one = _object({"name": _TEXT, "event": _NAMED_TYPES, "output": _NAMED_TYPES})
    shape = _object({"transactions": {"type": "array", "items": one}})
    return _operation("The transactions that can be called", _json(shape))


_PARAMETER = {
    "anyOf": [
        {"type": ["null", "boolean", "number", "string", "array"]},
        _object({"type": {"enum": list(PARAMETER_TYPES)}, "value": _TEXT}, closed=True),
    ],
    "description": 'a value; of a type that JSON lacks: {"type": "date", "value": "2024-01-01"}',
}


def _sql() -> dict[str, Any]:
    body = {
        "type": "object",
        "required": ["query"],
        "additionalProperties": False,
        "properties": {
            "query": {"type": "string", "minLength": 1, "examples": ["select 1"]},
            "parameters": {
                "anyOf": [
                    {"type": "array", "items": _PARAMETER},
                    {"type": "object", "additionalProperties": _PARAMETER},
                    {"type": "null"},
                ],
                "description": "values for ? or for $name",
            },
            "epoch": {
                "anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}],
                "description": "the tables as they were at this epoch, the newest by default",
            },
        },
    }
    answer = {"schema": {"$ref": "#/components/schemas/Answer"}}
    found = _operation(
        "Run one SELECT, in DuckDB's SQL, over one epoch",
        {JSON: answer, ARROW: {"schema": {"type": "string", "format": "binary"}}},
        406,
        415,
        422,
        503,
        requestBody={"required": True, "content": _json(body)},
    )
    found["responses"]["200"]["headers"] = {EPOCH_HEADER: {"schema": _INTEGER}}
    return found


def _get_row(table: Table) -> dict[str, Any]:
    parameters = [
        {"name": column.name, "in": "query", "required": True, "schema": describe(column.type)}
        for column in table.key_columns
    ]
    shape = _object({"row": _object(_columns(table.schema))})
    return _operation(
        f"The row of {table.name} with this key", _json(shape), 404, 503, parameters=parameters
    )


def _call(transaction: Transaction) -> dict[str, Any]:
    key = {
        "name": KEY_HEADER,
        "in": "header",
        "required": False,
        "schema": {"type": "string", "pattern": f"^{KEY_PATTERN}$"},
        "description": "calls with one key run once, and all get the result of the first",
    }
    result = {
        "epoch": _INTEGER,
        "position": _INTEGER,
        "transaction": _TEXT,
        "outcome": {"enum": OUTCOMES},
        "reason": {"anyOf": [_TEXT, {"type": "null"}]},
        **(_columns(transaction.output, nullable=True) if transaction.output else {}),
    }
    columns = {column.name: describe_event(column.type) for column in transaction.event}
    event = _object(columns, closed=True)
    return _operation(
        f"Run {transaction.name} over one event",
        _json(_object(result)),
        409,
        415,
        503,
        parameters=[key],
        requestBody={"required": True, "content": _json(event)},
    )


def _follow(what: str) -> dict[str, Any]:
    place = {"type": "string", "pattern": "^(latest|earliest|[0-9]{1,18}(/[0-9]{1,18})?)$"}
    parameters = [
        {"name": "after", "in": "query", "required": False, "schema": place},
        {"name": "Last-Event-ID", "in": "header", "required": False, "schema": place},
    ]
    return _operation(
        f"Follow the results of {what} as server-sent events, from a place on",
        {EVENTS: {"schema": _TEXT}},
        404,
        409,
        410,
        503,
        parameters=parameters,
    )
