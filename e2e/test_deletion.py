"""A deletion without an operator hangs; docs/operations.md says how to end it and what stays behind."""

import re
import shlex
from pathlib import Path

from e2e.cluster import RaftTest
from e2e.waiting import eventually
from pavane_operator.kube.resources import SECRETS, SERVICES
from tests.requires import requires

PAGE = Path(__file__).parents[1] / "docs" / "operations.md"
requires("kubectl")
FINALIZER = "pavane.dev/cleanup"


def commands() -> list[list[str]]:
    """The words behind `kubectl` of each command under the heading, for resource `q`."""
    _, _, behind = PAGE.read_text("utf-8").partition("### A deletion that hangs\n")
    section = re.split(r"^#", behind, maxsplit=1, flags=re.MULTILINE)[0]
    assert FINALIZER in section
    found = re.findall(r"^    kubectl (.+)$", section, re.MULTILINE)
    return [shlex.split(re.sub(r"\bNAME\b", "q", each)) for each in found]


async def test_a_deletion_without_an_operator_ends_by_the_commands_of_the_page(raft: RaftTest) -> None:
    annotate, patch, delete_volumes = commands()
    await raft.apply(deletionPolicy="Delete", replicas=1)
    await raft.until_current()
    in_namespace = ("-n", raft.namespace)
    async with raft.operator_gone():
        raft.platform.kubectl("delete", "raftcluster", "q", "--wait=false", *in_namespace)
        raft.platform.kubectl(*annotate, *in_namespace)  # for an operator
        assert (await raft.get())["metadata"]["finalizers"] == [FINALIZER]
        raft.platform.kubectl(*patch, *in_namespace)
        assert await raft.kube.get_or_none(raft.type, "q", raft.namespace) is None

        async def owned_gone() -> bool:
            services = (await raft.kube.list_all(SERVICES, raft.namespace)).items
            secrets = (await raft.kube.list_all(SECRETS, raft.namespace)).items
            return not await raft.pods() and not [*services, *secrets]

        await eventually(owned_gone, "pods, Services and Secrets are gone")
        assert await raft.claims() == ["data-q-server-g1-0"]
        raft.platform.kubectl(*delete_volumes, *in_namespace)
        assert await raft.claims() == []
