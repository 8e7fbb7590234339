"""A SwimGroup's pod as a process: alone, led by a stream, drained, fenced (docs/specs/operator.md 2.12, 3.2)."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from pavane.compute.wire.common import Epoch, Token
from pavane.pods.swim_member import SwimPod
from pavane.pods.swim_settings import SwimSettings, active_generation, live_settings, load
from pavane.runtime.process import EXIT_FAILED, Process
from pavane.runtime.settings import SettingsError
from pavane.stage.client import StageStream
from pavane.stage.errors import StageUnreachable
from pavane.swim.config import LOCAL, Config, id_of_name
from pavane.swim.core.outputs import Happened
from pavane.swim.member import SwimMember
from pavane.swim.wire.values import NodeStage
from pavane.wire import Stage
from tests.services.eventually import eventually
from tests.services.pods.raft_pods import ANSWER_S, PROGRAM, claimed_address
from tests.services.swim.lone import place
from tests.services.swim.test_member import KEYS, key_file

WAIT_S = 40.0


class SwimPods:
    """The pods of one SwimGroup, as the process kubelet starts them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stack = contextlib.ExitStack()
        self.addresses: dict[str, str] = {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.keys = key_file(folder / "keys", KEYS[0])
        self.activate(1)

    def activate(self, generation: int) -> None:
        (self.folder / "active").write_text(f"{generation}\n")

    def name(self, generation: int, index: int = 0) -> str:
        return f"group-member-g{generation}-{index}"

    def environment(self, generation: int, index: int = 0, **settings: Any) -> dict[str, str]:
        name = self.name(generation, index)
        if name not in self.addresses:
            self.addresses[name] = self.stack.enter_context(claimed_address())
        home = self.folder / name
        home.mkdir(exist_ok=True)
        seeds = [f"{address}:7946" for address in list(self.addresses.values())[:2]]
        config = {"group": "default/group", "profile": "local", "seeds": seeds, **settings}
        (home / "config.yaml").write_text(yaml.safe_dump(config))
        return {
            **{key: value for key, value in os.environ.items() if not key.startswith(("PAVANE_", "OTEL_"))},
            "PAVANE_RESOURCE": "group",
            "PAVANE_KIND": "SwimGroup",
            "PAVANE_ROLE": "member",
            "PAVANE_GENERATION": str(generation),
            "PAVANE_CONFIG": str(home / "config.yaml"),
            "PAVANE_SWIM_ACTIVE": str(self.folder / "active"),
            "PAVANE_SWIM_KEYS_FILE": str(self.keys),
            "PAVANE_TERMINATION_LOG": str(home / "termination"),
            "XDG_RUNTIME_DIR": str(home),
            "POD_NAME": name,
            "POD_NAMESPACE": "default",
            "POD_IP": self.addresses[name],
        }

    def start(self, generation: int, index: int = 0, **settings: Any) -> str:
        environment = self.environment(generation, index, **settings)
        name = self.name(generation, index)
        with (self.folder / name / "output").open("ab") as output:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-c", PROGRAM], env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        return name

    async def stream(self, generation: int, index: int = 0) -> StageStream:
        """A stream as the operator opens it, dialled until the pod listens."""
        address = self.addresses[self.name(generation, index)]
        while True:
            stream = StageStream(f"{address}:7070", epoch=Epoch(1, 1), kind="swim", generation=generation)
            with contextlib.suppress(StageUnreachable):
                await stream.open()
                return stream
            assert self.running[self.name(generation, index)].poll() is None
            await asyncio.sleep(0.05)

    async def get(self, name: str, path: str) -> httpx2.Response | None:
        async with httpx2.AsyncClient(trust_env=False, timeout=ANSWER_S) as client:
            with contextlib.suppress(httpx2.TransportError):
                return await client.get(f"http://{self.addresses[name]}:7071{path}")
        return None

    async def members(self, name: str) -> Any:
        """What a pod tells of its group."""
        answer = await self.get(name, "/members")
        assert answer is not None
        return answer.json()

    async def reaches(self, name: str, stage: str, *, leads: bool) -> None:
        """Wait by `/stage`, without any stream."""
        async with asyncio.timeout(WAIT_S):
            while True:
                answer = await self.get(name, "/stage")
                state = {} if answer is None else answer.json()
                if (state.get("stage"), state.get("leads")) == (stage, leads):
                    return
                await asyncio.sleep(0.05)

    async def end(self, name: str) -> int:
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(process.wait, 20)

    def stop(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait(timeout=20)
        self.stack.close()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SwimPods]:
    made = SwimPods(tmp_path)
    yield made
    made.stop()


@pytest.mark.long
async def test_generations_take_over_while_foreign_members_watch_nobody_die(group: SwimPods) -> None:
    first = group.start(1)
    # The first pod of a group has nobody to admit it; it allows itself, without any operator.
    await group.reaches(first, "ReadWrite", leads=True)
    second = group.start(1, 1)
    await group.reaches(second, "ReadWrite", leads=True)
    ready = await group.get(second, "/readyz")
    assert ready is not None
    assert ready.status_code == 200

    seed = f"{group.addresses[first]}:7946"
    foreign = SwimMember(Config(profile=LOCAL, group="default/group"), ("127.0.0.1", 0), [seed], keys_file=group.keys)
    async with foreign:
        dead: list[int] = []

        async def watch() -> None:
            async for event in foreign.events():
                if event.kind is Happened.DEAD and event.member is not None:
                    dead.append(event.member.id)  # noqa: PERF401 - read while it grows

        watching = asyncio.create_task(watch())
        await eventually(lambda: len(foreign.members()) == 3)

        third = group.start(2)
        stream = await group.stream(2)
        await stream.lead_up()
        await stream.wait_for(lambda report: report.stage is Stage.READ_ONLY and report.progress == report.target > 0)
        assert stream.report is not None
        assert (stream.report.leads, stream.report.unit) == (False, "periods")
        stages = {member.id: (member.stage, member.rollout) for member in foreign.members()}
        number = id_of_name(f"default/{third}")
        assert stages[number] == (NodeStage.READ_ONLY, 2)
        told = await group.members(first)
        assert (told["own"], told["dead"], told["id"]) == ("member", 0, id_of_name(f"default/{first}"))
        assert {each["id"]: (each["stage"], each["rollout"]) for each in told["members"]} == {
            **{id_of_name(f"default/{name}"): ("read_write", 1) for name in (first, second)},
            foreign.info.id: ("read_write", 0),
            number: ("read_only", 2),
        }
        assert foreign.digest is not None
        assert told["digest"] == foreign.digest.xor.hex()  # the newcomer is caught up, so all agree
        group.activate(2)
        await stream.allow_writes(Token(2, 1))
        await stream.wait_for(lambda report: report.stage is Stage.READ_WRITE and report.leads)
        await stream.close()

        for name in (first, second):
            assert await group.end(name) == 0
        await eventually(lambda: {member.id for member in foreign.members()} == {foreign.info.id, number})
        await eventually(
            lambda: (
                {member.id: (member.stage, member.rollout) for member in foreign.members()}[number]
                == (NodeStage.READ_WRITE, 2)
            )
        )
        group.start(1)
        words = group.folder / first / "termination"
        assert "fenced" in await eventually(lambda: words.exists() and words.read_text())
        ready = await group.get(first, "/readyz")
        assert ready is not None
        assert ready.status_code == 503
        assert dead == []
    await watching


async def test_a_pod_of_a_coming_generation_waits_and_says_for_what(group: SwimPods) -> None:
    pod = group.start(2)
    stream = await group.stream(2)
    early = await group.get(pod, "/members")
    assert early is not None
    assert early.status_code == 503
    await stream.lead_up()
    await stream.wait_for(lambda report: [blocker.reason for blocker in report.blockers] == ["NoGroup"])
    await stream.allow_writes(Token(2, 1))
    assert stream.report is not None
    assert stream.report.stage is Stage.READ_ONLY  # alone in the world it has caught up with nobody
    group.activate(2)
    await group.reaches(pod, "ReadWrite", leads=True)
    await stream.close()
    metrics = await group.get(pod, "/metrics")
    assert metrics is not None
    assert "pavane_stage 4\n" in metrics.text
    assert "pavane_swim_is_member 0\n" in metrics.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capcity": 3}, "unknown key capcity; known are capacity"),
        ({"capacity": "many"}, "capacity: 'many' is not a whole number"),
        ({"capacity": 2}, "capacity 2"),
        ({"profile": "moon"}, "profile: 'moon'"),
        ({"seeds": "here:1"}, "seeds: a list"),
        ({"seeds": ["typo..example:1"]}, "no host can have that name"),
    ],
)
def test_wrong_settings_are_told_by_file_and_key(
    group: SwimPods, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    for name, value in group.environment(1, **settings).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=message):
        load(SwimSettings.load())


async def test_a_pod_whose_id_is_another_processs_starts_again(
    group: SwimPods, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in group.environment(1).items():
        monkeypatch.setenv(name, value)
    settings = SwimSettings.load()
    process = Process()
    pod = SwimPod(settings, load(settings), process)
    async with SwimMember(Config(id=7), ("127.0.0.1", 0)) as member:
        pod._role.member = member
        watching = asyncio.create_task(pod._end_with(member))
        await asyncio.sleep(0)
        member._core.call(lambda _: member._core.core._parts.rename(place(9)))
        end = await process.ended()
        assert (end.code, str(place(9)) in end.reason) == (EXIT_FAILED, True)
        watching.cancel()


def test_generations_of_other_resources_in_the_group_do_not_count(
    group: SwimPods, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in group.environment(2).items():
        monkeypatch.setenv(name, value)
    kin = load(SwimSettings.load()).member.kin
    assert kin is not None
    for name, generation, counts in (
        ("default/group-member-g3-0", 3, True),
        ("default/group-member-g3-999", 3, True),
        ("default/group-member-g3-0", 4, False),
        ("default/other-member-g3-0", 3, False),
        ("other/group-member-g3-0", 3, False),
    ):
        assert kin(id_of_name(name), generation) is counts


def test_live_settings_are_two(tmp_path: Path) -> None:
    assert live_settings({"profile": "local"}).profile is LOCAL
    assert live_settings({"seeds": ["a:1"]}).seeds == ("a:1",)
    with pytest.raises(ValueError, match="unknown key group"):
        live_settings({"group": "other"})
    assert active_generation(tmp_path / "none") is None
    (tmp_path / "odd").write_text("next")
    assert active_generation(tmp_path / "odd") is None
