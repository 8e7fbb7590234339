"""A new kind is files of its own and three lines in lists, no more (ARCHITECTURE.md, "Where a change goes").

The files are written to a temporary folder that the packages of a fresh process include. That process then rolls the
kind out on the model cluster, and serves it over REST and on the command line, with the control plane over an embedded
cluster.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

FILES = {
    "crds/toycluster.py": '''
        from pydantic import Field

        from pavane_operator.crds.base import Mark, marked
        from pavane_operator.crds.common import VolumesSpec
        from pavane_operator.crds.descriptor import Definition
        from pavane_operator.crds.status import Status


        class ToyClusterSpec(VolumesSpec):
            """Toys."""

            replicas: int = Field(default=3, ge=1, le=9, json_schema_extra=marked(Mark.LIVE))
            """Number of toys."""
            colour: str = Field(default="red", max_length=20, json_schema_extra=marked(Mark.POD))
            """Their colour."""


        DEFINITION = Definition(
            "ToyCluster", "toyclusters", "toy", ToyClusterSpec, Status, folder="toy", routers=("toys",)
        )
    ''',
    "kinds/toy/__init__.py": """
        from pavane_operator.crds.toycluster import DEFINITION
        from pavane_operator.plan.port import Kind, PromotionStep
        from pavane_operator.kinds.toy.promotion import ToyPromotion
        from pavane_operator.kinds.toy.render import ToyRenderer

        PERMIT = PromotionStep("Permit", allow_writes=True)


        def kind(defaults):
            return Kind(
                definition=DEFINITION,
                steps=(PERMIT, PromotionStep("Fence", irreversible=True)),
                bootstrap_steps=(PERMIT,),
                renderer=ToyRenderer(defaults),
                promotion=ToyPromotion,
            )
    """,
    "kinds/toy/promotion.py": """
        class ToyPromotion:
            def __init__(self, namespace, name, uid):
                raise AssertionError("the model cluster plays the store")
    """,
    "kinds/toy/render.py": """
        from pavane_operator.crds.toycluster import ToyClusterSpec
        from pavane_operator.kinds.base import BaseRenderer
        from pavane_operator.plan.port import NOTHING
        from pavane_operator.objects import generations, pods
        from pavane_operator.objects.generations import Content
        from pavane_operator.objects.names import Names
        from pavane_operator.objects.owned import service_account
        from pavane_operator.objects.pods import OPS, STAGE

        NAMES = Names("ToyCluster", "server")


        class ToyRenderer(BaseRenderer):
            model = ToyClusterSpec
            names = NAMES

            def references(self, resource, targets=NOTHING):
                return ()

            def problems(self, resource, references):
                return ()

            def content(self, inputs, spec):
                template = pods.template(inputs, NAMES, (), [], [], resources=spec.resources)
                return Content({"colour": spec.colour}, template, ports=(STAGE, OPS))

            def shared(self, resource, writers, references):
                return (service_account(resource, self.labels(resource)),)

            def public_service(self, resource, generation):
                return generations.public_service(resource, NAMES, self._defaults, generation, (OPS,))

            def generation(self, resource, revision):
                return generations.objects(resource, NAMES, revision, resource.spec.replicas)

            def expected_state(self, resource, generation, *, bootstrap):
                return {"bootstrap": "entry"} if bootstrap else {}  # as the store of the model cluster wants it
    """,
    "pods/toy_server.py": """
        def run():
            print("a toy serves")
            return 0
    """,
    "api/toys/__init__.py": "",
    "api/toys/endpoints.py": """
        from typing import Annotated

        from fastapi import APIRouter, Depends

        from pavane_api.auth import may
        from pavane_operator.crds.toycluster import DEFINITION
        from pavane_operator.kube.resources import custom

        RESOURCE = custom(DEFINITION.name, DEFINITION.plural)
        router = APIRouter(prefix="/namespaces/{namespace}/toyclusters/{name}")


        @router.get("/toys", operation_id="list_toys")
        async def list_toys(_: Annotated[object, Depends(may("get", RESOURCE))], name: str) -> list[str]:
            return [f"toy of {name}"]
    """,
    "commands/toy.py": """
        import typer

        from pavane_cli import output


        def toy() -> None:
            "Say it."
            output.say("a toy")
    """,
}

DRIVER = """
import asyncio, contextlib, io, os, sys
from pathlib import Path

import pavane.pods, pavane_api, pavane_cli.commands, pavane_operator.crds, pavane_operator.kinds

folder = Path(sys.argv[1])
for package, part in (
    (pavane_operator.crds, "crds"), (pavane_operator.kinds, "kinds"), (pavane.pods, "pods"), (pavane_api, "api"),
    (pavane_cli.commands, "commands"),
):
    package.__path__.append(str(folder / part))

# The three lines in lists.
from pavane_operator.crds import definitions, toycluster
definitions.KINDS = (*definitions.KINDS, toycluster.DEFINITION)
from pavane_cli import kinds as called
called.NAMES = (*called.NAMES, ("toy", "ToyCluster", "toyclusters"))
from pavane_cli import main, table
table.COMMANDS[table.LOCAL]["toy"] = table.Command("toy:toy")

from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.registry import kinds
from tests.api.plane import plane
from tests.operator.model_cluster import World
from tests.operator.model_cluster_script import rests_on
from tests.operator.test_plan_model_cluster import Run

def rolls(world):
    yield rests_on(1)
    world.change(colour="blue")
    yield rests_on(2)
    world.change(replicas=5)
    yield rests_on(2)

[kind] = [each for each in kinds(RenderDefaults("image", "1", None, b"-" * 32, "system")) if each.name == "ToyCluster"]
Run(rolls, World(kind)).finish()
print("rolled out")

async def rest():
    base = "/api/v1/namespaces/default/toyclusters/q"
    async with plane(folder / "plane") as api:
        body = {"metadata": {"name": "q"}, "spec": {"colour": "blue"}}
        created = await api.http.put(base, json=body, headers={"If-None-Match": "*"})
        assert created.status_code == 201, created.text
        assert created.json()["spec"]["replicas"] == 3, "the default of the model, by the server"
        refused = await api.http.patch(base, json={"spec": {"replicas": 10}}, headers={"If-Match": "*"})
        assert refused.status_code == 422, refused.text
        scaled = await api.http.post(f"{base}/scale", json={"replicas": 5})
        assert scaled.status_code == 202, scaled.text
        assert (await api.http.get(f"{base}/toys")).json() == ["toy of q"]
        def shown():
            sys.argv = ["pavane", "--kubeconfig", str(api.local.kubeconfig), "get", "toy/q", "-o", "yaml"]
            with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
                main.main()
            return text.getvalue()
        assert "colour: blue" in await asyncio.to_thread(shown)

asyncio.run(rest())
print("served")

os.environ |= {"PAVANE_KIND": "ToyCluster", "PAVANE_ROLE": "server"}
for command in ("toy", "pod"):
    sys.argv = ["pavane", command]
    with contextlib.suppress(SystemExit):
        main.main()
"""


def test_a_kind_is_added_without_touching_anything_else(tmp_path: Path) -> None:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = text.removeprefix("\n").splitlines()
        path.write_text("\n".join(line.removeprefix(" " * 8) for line in lines) + "\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.stdout.splitlines() == ["rolled out", "served", "a toy", "a toy serves"], done.stderr[-3000:]
