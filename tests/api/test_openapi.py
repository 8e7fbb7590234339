import json
from pathlib import Path

from openapi_spec_validator import OpenAPIV31SpecValidator

from pavane_api.openapi import document, main

ROOT = Path(__file__).parents[2]


def test_the_description_is_a_valid_one() -> None:
    assert [str(error) for error in OpenAPIV31SpecValidator(json.loads(document())).iter_errors()] == []


def test_errors_are_described_as_they_are_sent() -> None:
    described = json.loads(document())
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    # Exporters of spans are refused in the words of OTLP.
                    also = ["application/x-protobuf"] if path == "/v1/traces" and status != "422" else []
                    assert sorted(answer["content"]) == ["application/problem+json", *also], (method, path, status)


def test_a_write_that_needs_a_precondition_says_so() -> None:
    described = json.loads(document())
    operations = [each for path in described["paths"].values() for each in path.values() if "428" in each["responses"]]
    assert len(operations) > 10
    for operation in operations:
        needed = {each["name"]: each["required"] for each in operation["parameters"] if each["name"].startswith("if-")}
        # One of two, which a description cannot tell.
        assert needed in ({"if-match": True}, {"if-match": False, "if-none-match": False}), operation["operationId"]


def test_the_committed_description_is_fresh() -> None:
    assert main(["--check"]) == 0
