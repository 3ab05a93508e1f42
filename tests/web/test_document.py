"""The OpenAPI document tells the truth: what it describes is answered so, what it does not is not.

Schemathesis makes requests out of the document, sound ones and broken ones, and sends them to a
real server.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.web.conftest import Running

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]


@pytest.fixture(scope="module")
def operations(server: Running) -> list[Any]:
    """What can be asked; but for what is followed, which has no end and tests of its own."""
    url = f"{server.url}/openapi.json"
    api = schemathesis.openapi.from_url(url, headers=server.headers)
    found = [result.ok() for result in api.get_all_operations()]
    return [operation for operation in found if not operation.path.endswith("results")]


def ask(server: Running, operation: Any, mode: GenerationMode, examples: int) -> Counter[int]:
    """Send requests made from one operation and judge the answers; how often each status came."""
    answered: Counter[int] = Counter()
    # Not every text is a query, so of SQL only the refusals are judged.
    checks = CHECKS if operation.path == "/sql" else [*CHECKS, positive_data_acceptance]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    def send(case: Any) -> None:
        answer = case.call_and_validate(headers=server.headers, checks=checks)
        answered[answer.status_code] += 1

    try:
        send()
    except Unsatisfiable:
        assert mode == GenerationMode.NEGATIVE  # nothing about it can be wrong
    return answered


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_the_server_answers_as_the_document_says(
    server: Running, operations: list[Any], mode: GenerationMode, long_run: bool
) -> None:
    examples = 500 if long_run else 25
    answered = sum((ask(server, one, mode, examples) for one in operations), Counter())
    assert answered[200 if mode == GenerationMode.POSITIVE else 400] > 50


def test_the_document_is_sound(server: Running) -> None:
    """A server that answers otherwise than its document says would be noticed."""
    with server.http() as http:
        document = http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    api = schemathesis.openapi.from_dict(document)
    api.validate()
    paths = {operation.ok().path for operation in api.get_all_operations()}
    assert {"/sql", "/transactions/transfer", "/tables/things/row", "/health"} <= paths


def test_a_document_that_lies_is_caught(server: Running) -> None:
    with server.http() as http:
        document = http.get("/openapi.json").json()
    result = document["paths"]["/transactions/transfer"]["post"]["responses"]["200"]
    result["content"]["application/json"]["schema"]["properties"]["epoch"] = {"type": "string"}
    api = schemathesis.openapi.from_dict(document)
    api.config.update(base_url=server.url)
    case = api["/transactions/transfer"]["POST"].Case(
        body={"src": 1, "dst": 2, "amount": 0}, media_type="application/json"
    )
    with pytest.raises(BaseExceptionGroup):
        case.call_and_validate(headers=server.headers, checks=CHECKS)
