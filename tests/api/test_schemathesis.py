"""The REST API holds what its description says, whatever is sent: fuzzed from the description, calls after calls.

`PAVANE_SCHEMATHESIS_S=600` looks for ten minutes instead of seconds, with other requests each time.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.api.plane import plane, served

SECONDS = int(os.environ.get("PAVANE_SCHEMATHESIS_S", "0"))
QUICK_EXAMPLES = 2
"""Requests of each kind to each operation, where no time is given."""
QUICK_PATHS = r"/raftclusters(/\{name\}(/(keys|txn|leases|log|tree|scale).*)?)?$|/traces"
"""All kinds have the same routes."""
PROGRAM = "from schemathesis.cli import schemathesis; schemathesis()"
# What there is gets most requests. Streams have no end that a fuzzer could wait for, and tests of their own.
# Where a description cannot say what belongs together (a prefix, or start and end), 400, 412 and 428
# say so; 410 is for what ended meanwhile. 422 is for what breaks the description, and for nothing else.
CONFIG = """
[checks]
positive_data_acceptance.expected-statuses = ["2xx", "3xx", 400, 401, 403, 404, 409, 410, 412, 428, 429, "5xx"]
missing_required_header.expected-statuses = [400, 401, 403, 415, 422, 428]
[[operations]]  # also for an Idempotency-Key of another request, what is no SELECT, what the cluster refuses
include-path-regex = "/(entries|keys/.*|leases|txn|sql|scale)$"
checks.positive_data_acceptance.expected-statuses = [
  "2xx", "3xx", 400, 401, 403, 404, 409, 410, 412, 422, 428, 429, "5xx"]
[[operations]]  # 503 where no peer has a revision of the future yet
include-path-regex = "/raftclusters/.*/(keys|tree)"
include-method = "GET"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 503]
[dictionaries.names]
values = ["q", "t", "other"]
[dictionaries.namespaces]
values = ["default", "elsewhere"]
[parameters]
"path.namespace" = {dictionary = "namespaces", probability = 0.9}
"path.name" = {dictionary = "names", probability = 0.8}
"query.watch" = false
"""


def linked(description: dict[str, Any]) -> dict[str, Any]:
    """The description with links that say which operations use what another one made or found."""
    paths = description["paths"]

    def link(start: str, method: str, status: str, below: str, **given: str) -> None:
        links = {
            operation["operationId"]: {"operationId": operation["operationId"], "parameters": given}
            for path, operations in paths.items()
            for operation in operations.values()
            if path.startswith(below)
        }
        paths[start][method]["responses"][status]["links"] = links

    for path in [path for path in paths if path.endswith("clusters/{name}") or path.endswith("s/{name}")]:
        link(path, "get", "200", path, namespace="$request.path.namespace", name="$request.path.name")
    raft = "/api/v1/namespaces/{namespace}/raftclusters/{name}"
    where = {"namespace": "$request.path.namespace", "name": "$request.path.name"}
    link(f"{raft}/keys/{{key}}", "put", "200", f"{raft}/keys/{{key}}", **where, key="$request.path.key")
    link(f"{raft}/leases", "post", "201", f"{raft}/leases/{{lease}}", **where, lease="$response.body#/lease")
    return description


@pytest.mark.timeout(SECONDS + 300)
async def test_whatever_is_sent_the_answer_is_a_described_one(tmp_path: Path) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    async with plane(tmp_path) as api, served(api, tmp_path, "KeyValue", "q"), served(api, tmp_path, "Tree", "t"):
        description = tmp_path / "openapi.json"
        description.write_text(json.dumps(linked((await api.http.get("/api/v1/openapi.json")).json())))
        bounds = ["--max-time", str(SECONDS)] if SECONDS else ["--max-examples", str(QUICK_EXAMPLES), "--seed", "1"]
        command = (
            *(sys.executable, "-c", PROGRAM, "--config-file", str(config), "run"),
            *(str(description), "--url", str(api.http.base_url)),
            *(() if SECONDS else ("--include-path-regex", QUICK_PATHS)),
            *("--header", f"Authorization: Bearer {api.token}", "--exclude-path", "/api/v1/resources"),
            *("--phases", "examples,coverage,fuzzing,stateful", "--continue-on-failure", "--no-color"),
            *bounds,
        )
        process = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
