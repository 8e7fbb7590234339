"""The description of the REST API is good for programs: a client that openapi-python-client generates from it works."""

import asyncio
import base64
import importlib
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.api.plane import ANSWER_S, plane, served

DESCRIPTION = Path(__file__).parents[2] / "api" / "openapi.json"
PACKAGE = "generated_pavane_client"


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that imports a module of the generated client."""
    program = Path(sys.executable).with_name("openapi-python-client")
    (config := tmp_path / "config.yaml").write_text("post_hooks: []")  # nobody formats it
    words = ["generate", "--path", str(DESCRIPTION), "--meta", "none", "--config", str(config), "--fail-on-warning"]
    made = subprocess.run(
        [program, *words, "--output-path", str(tmp_path / PACKAGE)],
        capture_output=True,
        text=True,
        timeout=ANSWER_S,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    monkeypatch.syspath_prepend(tmp_path)
    return lambda name: importlib.import_module(f"{PACKAGE}.{name}")


@pytest.mark.timeout(3 * ANSWER_S)
async def test_a_generated_client_makes_resources_and_writes_keys(tmp_path: Path, generated: Any) -> None:
    models, types = generated("models"), generated("types")
    put_key, list_keys = generated("api.keys.put_key"), generated("api.keys.list_keys")
    get_cluster = generated("api.raftclusters.get_raftcluster")
    put_cluster = generated("api.raftclusters.put_raftcluster")
    async with plane(tmp_path) as api, served(api, tmp_path, "Tree"):
        url = str(api.http.base_url)
        async with generated("client").AuthenticatedClient(url, api.token, httpx_args={"trust_env": False}) as client:
            found = await get_cluster.asyncio("default", "q", client=client)
            assert (found.spec.replicas, found.spec.state_machine.value) == (1, "Tree")
            body = models.PutRaftclusterDocument.from_dict({"spec": found.spec.to_dict()})
            made = await put_cluster.asyncio("default", "other", client=client, body=body, if_none_match="*")
            assert made.metadata["name"] == "other", made
            again = await put_cluster.asyncio("default", "other", client=client, body=body, if_none_match="*")
            assert (type(again).__name__, again.status) == ("ProblemDocument", 412)
            value = types.File(io.BytesIO(b"red"))
            # Its bodies of bytes are for programs without asyncio.
            written = await asyncio.to_thread(put_key.sync, "default", "q", "app/colour", client=client, body=value)
            client.get_httpx_client().close()
            listed = await list_keys.asyncio("default", "q", client=client, prefix="app/")
            (item,) = listed.items
            assert (base64.b64decode(item.key), item.mod_revision) == (b"app/colour", written.revision)
