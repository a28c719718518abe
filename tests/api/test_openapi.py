"""The API document is complete, true and current, and its pages come from local files only."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from opus_sdn.api import examples, openapi, pages
from opus_sdn.api.job_documents import ArrivalsAnswer
from opus_sdn.api.problem_examples import EXAMPLES
from opus_sdn.intent.errors import STATUS, Problem
from tests.api.world import Controller

CHECKED_IN = Path(__file__).parents[2] / "openapi.json"
METHODS = ("get", "put", "post", "delete", "patch")

WITHOUT_BODY = {"observe_switch", "apply_plan"}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi.document()


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in METHODS
    ]


def test_the_document_in_the_repository_is_current(document: dict[str, Any]) -> None:
    assert json.loads(CHECKED_IN.read_text()) == document, "run `make openapi` and look at what changed"


def test_the_server_serves_the_document_in_the_repository(bare: Controller) -> None:
    assert bare.http.get("/openapi.json").json() == json.loads(CHECKED_IN.read_text())


def test_every_operation_is_named_verb_noun_once_with_summary_and_tag(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names)
    for _, _, operation in operations(document):
        assert re.fullmatch(r"[a-z]+(_[a-z]+)+", operation["operationId"])
        assert operation["summary"]
        assert operation["description"]
        assert operation["tags"]


def test_every_request_body_has_a_schema_and_an_example_that_is_valid(document: dict[str, Any]) -> None:
    models = {model.__name__: model for model in openapi.BODIES}
    with_body = [operation for _, method, operation in operations(document) if method in ("put", "post")]
    with_body = [operation for operation in with_body if operation["operationId"] not in WITHOUT_BODY]
    used = {
        operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for operation in with_body
    }
    assert used == set(models)
    for operation in with_body:
        content = operation["requestBody"]["content"]["application/json"]
        model = models[content["schema"]["$ref"].rpartition("/")[2]]
        TypeAdapter(model).validate_json(json.dumps(content["example"]))


def test_every_error_answer_is_a_problem_with_an_example_of_each_type(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        errors = {status: answer for status, answer in operation["responses"].items() if int(status) >= 400}
        assert {"422", "500"} <= errors.keys(), (path, method)
        for status, answer in errors.items():
            assert list(answer["content"]) == ["application/problem+json"]
            content = answer["content"]["application/problem+json"]
            assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
            assert content["examples"]
            for name, example in content["examples"].items():
                value = example["value"]
                assert (value["type"], value["status"]) == (f"urn:opus-sdn:problem:{name}", int(status))
                assert set(document["components"]["schemas"]["Problem"]["required"]) <= value.keys()


def test_every_problem_has_an_example_and_is_documented_somewhere(document: dict[str, Any]) -> None:
    assert set(EXAMPLES) == set(Problem) == set(STATUS)
    text = json.dumps(document)
    nowhere = {Problem.NOT_FOUND, Problem.METHOD_NOT_ALLOWED, Problem.UNKNOWN_GROUP}
    for problem in set(Problem) - nowhere:
        assert f"urn:opus-sdn:problem:{problem.value}" in text, problem


def test_every_reference_in_the_document_leads_somewhere(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for name in re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)):
        assert name in schemas


def test_examples_of_requests_are_of_one_small_job() -> None:
    assert len(examples.JOB["placement"]) == 8


@pytest.mark.parametrize("page", ["/docs", "/redoc"])
def test_the_pages_load_local_files_only_and_may_load_no_other(bare: Controller, page: str) -> None:
    answer = bare.http.get(page)
    assert answer.status_code == 200
    assert "//" not in answer.text.replace("<!doctype html>", "")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "http" not in policy
    assert "script-src 'self';" in policy
    local = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    assert len(local) >= 3
    for path in local:
        file = bare.http.get(path)
        assert file.status_code == 200, path
        assert file.content


def test_no_bundle_loads_anything_from_another_host() -> None:
    scripts = [path for path in pages.STATIC.rglob("*") if path.suffix in (".js", ".css")]
    assert len(scripts) == 5
    for path in scripts:
        text = path.read_text(encoding="utf-8")
        loads = re.findall(r'\bsrc\s*[:=]\s*"(https?://[^"]+)"', text)
        loads += re.findall(r"url\(\s*[\"']?(https?://[^)]+)\)", text)
        assert loads == [], path


def test_the_licences_of_the_bundles_are_with_them() -> None:
    for path in ("swagger-ui/LICENSE", "swagger-ui/NOTICE", "redoc/LICENSE", "README.md"):
        assert (pages.STATIC / path).read_text(encoding="utf-8")


def test_the_hot_route_answers_exactly_what_the_document_says(opus: Controller) -> None:
    def answered(rank: int, **more: Any) -> ArrivalsAnswer:
        answer = opus.post("/jobs/j/arrivals", opus.news(rank, **more))
        assert answer.status_code == 200
        document = ArrivalsAnswer.model_validate_json(answer.content, strict=True)
        assert document.model_dump(mode="json") == answer.json()
        return document

    arrival = [{"connection": "dp", "n": 0}]
    waiting = answered(0, arrivals=arrival)
    assert waiting.ranks[0].arrivals[0].reason is not None
    assert answered(1, arrivals=arrival, wait_s=30).ranks[0].grants
    opus.post("/jobs/j/abort", {"incarnation": 1, "rank": 0, "detail": "enough"})
    assert answered(0).ranks[0].failure is not None
