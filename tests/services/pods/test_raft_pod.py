"""A RaftCluster's pod as a process: led by a stream, walking by itself, fenced, lost (docs/specs/operator.md 2.12)."""

import asyncio
import json
import shutil
import signal

import pytest

from pavane.compute.wire.common import Epoch, Token
from pavane.pods import common, raft_server
from pavane.pods.raft_settings import RaftSettings, load
from pavane.raft.server import RaftServer
from pavane.runtime.process import Process
from pavane.stage.client import StageStream
from pavane.wire import Stage
from tests.services.eventually import eventually
from tests.services.pods.raft_pods import SECRET, Pod, Pods


async def written(pods: Pods, *peers: Pod) -> list[bytes]:
    """What clients have appended, in order."""
    async with pods.client(*peers) as client:
        data = [bytes(entry.data) async for entry in client.entries()]
    return [value for value in data if value.startswith(b"entry")]


async def test_a_pod_is_led_to_read_write_and_comes_back_by_itself(pods: Pods) -> None:
    pod = pods.add(1)
    pod.start()
    stream = await pod.stream(Epoch(1, 1))
    assert stream.report is not None
    assert stream.report.stage is Stage.INITIALIZATION
    ready = await pod.get("/readyz")
    assert ready is not None
    assert ready.status_code == 503
    members = json.dumps([[pod.name, pod.url]])
    assert (await stream.lead_up({"bootstrap": "entry", "initial": members})).stage is Stage.READ_ONLY
    await stream.allow_writes(Token(1, 1))
    report = await stream.wait_for(lambda report: report.leads)
    assert (report.stage, report.fence_seen, report.first_write_ms) == (Stage.READ_WRITE, Token(1, 1), 0)
    async with pods.client(pod) as client:
        for number in range(5):
            await client.update(b"entry %d" % number)
    report = await stream.wait_for(lambda report: report.progress >= 7)
    assert 0 < report.first_write_ms <= report.last_write_ms
    assert report.progress == report.target
    await stream.close()
    pod.kill()

    pod.start()
    state = await pod.reaches("ReadWrite", leads=True)
    assert (state["generation"], state["fence"], state["blockers"]) == (1, 1, [])
    assert await written(pods, pod) == [b"entry %d" % number for number in range(5)]
    for path in ("/livez", "/readyz"):
        probe = await pod.get(path)
        assert probe is not None
        assert probe.status_code == 200
    metrics = await pod.get("/metrics")
    assert metrics is not None
    assert "pavane_stage 4\n" in metrics.text
    assert "pavane_raft_is_leader 1\n" in metrics.text
    stream = await pod.stream(Epoch(1, 1))
    assert stream.report is not None
    assert stream.report.stage is Stage.READ_WRITE
    await stream.close()
    assert pod.process is not None
    pod.process.send_signal(signal.SIGTERM)
    assert await pod.exit_code() == 0
    assert not pod.termination_log.exists()


async def test_an_empty_pod_that_nobody_told_its_members_starts_no_cluster(pods: Pods) -> None:
    pod = pods.add(1)
    pod.start()
    stream = await pod.stream(Epoch(1, 1))
    await stream.lead_up()
    await stream.allow_writes(Token(1, 1))
    report = await stream.wait_for(lambda report: report.stage is Stage.READ_WRITE)
    assert not report.leads
    assert report.progress == 0
    await stream.close()
    pod.kill()
    await pods.bootstrap(pod, Epoch(1, 2))
    assert (await pod.stage())["leads"]


async def test_members_that_are_none_are_a_blocker(pods: Pods) -> None:
    pod = pods.add(1)
    pod.start()
    stream = await pod.stream(Epoch(1, 1))
    for minor, initial in enumerate(("not json", "{}", '["a"]', "[]", '[["a"]]'), start=2):
        await stream.lead_up({"bootstrap": "entry", "initial": initial})
        await stream.allow_writes(Token(1, 1))
        report = await stream.wait_for(lambda report: any(b.reason == "InvalidConfig" for b in report.blockers))
        assert report.stage is Stage.READ_ONLY
        await stream.close()
        stream = await pod.stream(Epoch(1, minor))
    await stream.lead_up({"bootstrap": "entry", "initial": json.dumps([[pod.name, pod.url]])})
    await stream.allow_writes(Token(1, 1))
    report = await stream.wait_for(lambda report: report.leads)
    assert report.blockers == ()
    await stream.close()


async def promoted(pods: Pods, old: Pod, new: Pod) -> StageStream:
    """Roll from `old` to `new`, each one pod; returns the new pod's stream once its generation leads."""
    new.start()
    stream = await new.stream(Epoch(1, 1))
    await stream.lead_up()
    await stream.wait_for(lambda report: report.progress == report.target > 0)
    assert stream.report is not None
    assert (stream.report.stage, stream.report.leads) == (Stage.READ_ONLY, False)
    await stream.allow_writes(Token(2, 1))
    await stream.wait_for(lambda report: report.stage is Stage.READ_WRITE)
    async with pods.client(old) as client:
        await client.change_members([(new.name, new.url)])
    await stream.wait_for(lambda report: report.leads)
    pods.serve(2)
    return stream


async def test_a_generation_takes_over_and_the_old_one_is_fenced(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = pods.add(1), pods.add(2)
    pods.serve(1)
    await pods.bootstrap(old)
    async with pods.client(old) as client:
        await client.update(b"entry of the first generation")
    stream = await promoted(pods, old, new)
    async with pods.client(old, new) as client:
        await client.update(b"entry of the second generation")
    report = await stream.wait_for(lambda report: report.first_write_ms > 0)
    assert report.leads
    assert not (await old.stage())["leads"]
    await stream.close()
    assert await written(pods, new) == [b"entry of the first generation", b"entry of the second generation"]

    old.kill()
    old.start()
    words = await eventually(lambda: old.termination_log.exists() and old.termination_log.read_text())
    assert words.startswith("fenced")
    live, ready = await old.get("/livez"), await old.get("/readyz")
    assert live is not None
    assert ready is not None
    assert (live.status_code, ready.status_code, ready.text) == (200, 503, "fenced by a later generation\n")
    told = await old.stage()
    assert told["done"]
    assert "Fenced" in [blocker["reason"] for blocker in told["blockers"]]
    await follows_when_it_is_led(pods, old, new)
    old.kill()
    old.termination_log.unlink()
    old.start()
    await eventually(old.termination_log.exists)
    assert old.process is not None
    old.process.send_signal(signal.SIGTERM)
    assert await old.exit_code() == 0

    await rests_and_ends(old, monkeypatch)

    new.kill()
    new.start()
    await new.reaches("ReadWrite", leads=True)


async def follows_when_it_is_led(pods: Pods, rests: Pod, leader: Pod) -> None:
    """The operator wants a pod that rests to stand by (2.7): it follows, as one that never restarted."""
    stream = await rests.stream(Epoch(2, 1))
    await stream.lead_up()
    async with pods.client(leader) as client:
        await client.update(b"entry behind its restart")
    last = (await leader.stage())["target"]
    report = await stream.wait_for(lambda report: not report.done and report.progress >= last)
    assert report.blockers == ()
    await stream.close()


async def rests_and_ends(fenced: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same pod in this process, where its rest can be made short."""
    monkeypatch.setattr(common, "FENCED_SECONDS", 0.01)
    for name, value in fenced.environment().items():
        monkeypatch.setenv(name, value)
    settings = RaftSettings.load()
    process = Process()
    pod = raft_server.RaftPod(settings, load(settings), process)
    await pod.start()
    async with asyncio.timeout(30):
        end = await process.ended()
    await pod.stop()
    await process.cancel_tasks()
    assert end.code == 0
    assert end.reason.startswith("fenced")


@pytest.mark.long
async def test_a_member_that_lost_its_volume_stays_read_only(pods: Pods) -> None:
    members = [pods.add(1, index) for index in range(3)]
    initial = json.dumps([[pod.name, pod.url] for pod in members])
    streams = []
    for pod in members:
        pod.start()
    for pod in members:
        stream = await pod.stream(Epoch(1, 1))
        await stream.lead_up({"bootstrap": "entry", "initial": initial})
        streams.append(stream)
    for stream in streams:
        await stream.allow_writes(Token(1, 1))
    for stream in streams:
        await stream.wait_for(lambda report: report.leads)
    async with pods.client(*members) as client:
        await client.update(b"entry one")
    for stream in streams:
        await stream.close()
    lost = members[2]
    lost.kill()
    shutil.rmtree(lost.folder / "data")
    lost.start()
    await lost.reaches("ReadOnly")
    stream = await lost.stream(Epoch(2, 1))
    report = await stream.wait_for(lambda report: any(b.reason == "StateLost" for b in report.blockers))
    assert report.stage is Stage.READ_ONLY
    await stream.lead_up()
    await stream.allow_writes(Token(1, 2))
    async with pods.client(*members[:2]) as client:
        await client.update(b"entry two")
    report = await stream.wait_for(lambda _: True)
    assert (report.stage, report.fence_seen) == (Stage.READ_ONLY, None)
    await stream.close()


async def test_a_store_of_another_cluster_is_refused(pods: Pods) -> None:
    pod = pods.add(1)
    await pods.bootstrap(pod)
    pod.kill()
    pod.configure(cluster_id="another")
    pod.start()
    assert await pod.exit_code() == 5
    assert "another" in pod.termination_log.read_text()


async def test_a_pod_taken_for_another_generation_starts_afresh(pods: Pods) -> None:
    pod = pods.add(1)
    pod.start()
    await (await pod.stream(Epoch(1, 1))).close()
    wrong = StageStream(f"{pod.address}:7070", epoch=Epoch(1, 2), kind="raft", generation=2)
    opening = asyncio.create_task(wrong.open())
    assert await pod.exit_code() == 3
    await asyncio.wait({opening})
    assert opening.exception() is not None
    assert "this pod is raft of 1" in pod.termination_log.read_text()


async def test_the_secret_is_never_printed(pods: Pods) -> None:
    pod = pods.add(1)
    await pods.bootstrap(pod)
    metrics = await pod.get("/metrics")
    assert metrics is not None
    pod.kill()
    assert SECRET not in (pod.folder / "output").read_bytes()
    assert SECRET.decode() not in metrics.text


@pytest.mark.long
async def test_a_pod_that_stops_says_to_the_end_where_it_was(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    member = pods.add(1)
    await pods.bootstrap(member)
    member.kill()
    for name, value in member.environment().items():
        monkeypatch.setenv(name, value)
    answers = []
    real_stop = RaftServer.stop

    async def stop(server: RaftServer) -> None:
        answers.append(await member.stage())
        await real_stop(server)
        answers.append(await member.stage())

    monkeypatch.setattr(RaftServer, "stop", stop)
    settings = RaftSettings.load()
    process = Process()
    pod = raft_server.RaftPod(settings, load(settings), process)
    await pod.start()
    before = await member.reaches("ReadWrite", leads=True)
    process.exit(0, "asked to")
    await pod.stop()
    await process.cancel_tasks()
    assert [each["stage"] for each in answers] == ["ReadWrite"] * 2
    assert all(each["progress"] >= before["progress"] > 0 for each in answers)


@pytest.mark.long
async def test_a_pod_with_keys_takes_snapshots_as_its_live_settings_say(pods: Pods) -> None:
    pod = pods.add(1)
    pod.configure(machine="KeyValue")
    pod.start()
    stream = await pod.stream(Epoch(1, 1))
    members = json.dumps([[pod.name, pod.url]])
    await stream.lead_up({"bootstrap": "entry", "initial": members})
    await stream.allow_writes(Token(1, 1))
    await stream.wait_for(lambda report: report.leads)
    async with pods.client(pod) as client:
        await client.kv.put(b"first", b"1")
        pod.set_live(20, 5)
        number = 0
        while not (await client.log_info()).snapshot_bytes and number < 9000:  # 10 000 is the default
            number += 1
            await client.kv.put(b"key", b"%d" % number)
        assert (await client.log_info()).snapshot_bytes > 0
        metrics = await pod.get("/metrics")
        assert metrics is not None
        assert 'pavane_raft_snapshots_total{kind="taken"}' in metrics.text
    await stream.close()
    pod.kill()

    pod.start()
    await pod.reaches("ReadWrite", leads=True)
    async with pods.client(pod) as client:
        found = await client.kv.get(b"first")
        assert found is not None
        assert found.value == b"1"
