import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from pavane_cli import output
from pavane_cli.commands import resources
from pavane_cli.commands.resources import is_current, is_settled, summary
from pavane_cli.commands.trace import BAR_COLUMNS, duration, waterfall
from pavane_cli.commands.tree import picture
from pavane_cli.commands.why import explain
from pavane_cli.gathering import One
from pavane_cli.target import KINDS, Where
from pavane_operator.kube import Change, Gone, KubeClient, KubeError, ObjectList, Unavailable

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def test_columns_are_as_wide_as_their_widest_cell(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("NAME", "AGE"), [("quickstart", "5s"), ("q", None)])
    assert capsys.readouterr().out == "NAME         AGE\nquickstart   5s\nq\n"


@pytest.mark.parametrize(
    ("since", "text"),
    [
        ("2026-01-01T23:59:15Z", "45s"),
        ("2026-01-01T23:48:00Z", "12m"),
        ("2026-01-01T21:00:00Z", "3h"),
        ("2025-12-25T00:00:00Z", "8d"),
        ("2026-01-02T00:00:05Z", "0s"),
        (None, ""),
    ],
)
def test_ages_are_short(since: str | None, text: str) -> None:
    assert output.age(since, NOW) == text


def test_an_entry_is_one_line_whatever_it_holds() -> None:
    assert output.printable(b"hello\nworld\x00\xff \xc3\xbc") == "hello\\nworld\\x00\\xff ü"


@pytest.mark.parametrize(("nanoseconds", "text"), [(1500, "2 µs"), (12_340_000, "12.3 ms"), (2_500_000_000, "2.50 s")])
def test_durations_take_the_unit_that_reads_best(nanoseconds: int, text: str) -> None:
    assert duration(nanoseconds) == text


def _span(number: int, trace: str, start: int, end: int, parent: int = 0, error: str = "") -> dict[str, Any]:
    return {
        "trace_id": trace * 32,
        "span_id": str(number),
        "parent_span_id": str(parent) if parent else "",
        "name": f"span-{number}",
        "service": "pavane-api",
        "instance": "",
        "start_ns": start,
        "end_ns": end,
        "error": error,
    }


def test_a_waterfall_shows_time_nesting_links_and_errors() -> None:
    lines = [
        line.plain
        for line in waterfall(
            [_span(1, "a", 0, 1000), _span(2, "a", 500, 1000, parent=1), _span(3, "b", 0, 250, error="no quorum")]
        )
    ]
    assert lines[0].startswith("━" * BAR_COLUMNS)
    assert lines[1].startswith(" " * 16 + "━" * 16)
    assert "  span-2" in lines[1]
    assert lines[2].startswith("━" * 8 + " ")
    assert "~ ! span-3" in lines[2]
    assert lines[2].endswith("no quorum")
    assert waterfall([]) == []


def _condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


STALLED = (("Stalled", "True"), ("UpToDate", "False"))


def test_why_says_that_nothing_is_waited_for() -> None:
    fine = [_condition("Ready", "True", "Ready"), _condition("UpToDate", "True", "Applied")]
    document = {"metadata": {"name": "q"}, "status": {"activeGeneration": 2, "conditions": fine}}
    assert explain(document, "raft/q") == "raft/q waits for nothing: generation 2 is active."


def test_why_names_blocker_pod_and_what_to_do() -> None:
    blocker = {
        "pod": "q-server-g2-1",
        "reason": "ImagePull",
        "message": "no such image",
        "since": "2026-01-01T00:00:00Z",
    }
    document: dict[str, Any] = {
        "metadata": {"name": "q"},
        "status": {
            "activeGeneration": 1,
            "nextGeneration": 2,
            "rollout": {"state": "CreatingNext", "blockers": [blocker]},
        },
    }
    text = explain(document, "raft/q")
    assert "CreatingNext with generation 2, generation 1 is active and untouched" in text
    assert "q-server-g2-1: ImagePull – no such image" in text
    assert "correct spec.image" in text


def test_why_tells_once_what_two_conditions_say() -> None:
    said = [_condition(kind, status, "KeysLost", "Secret q-keys is gone") for kind, status in STALLED]
    text = explain({"metadata": {"name": "q"}, "status": {"activeGeneration": 1, "conditions": said}}, "raft/q")
    assert text.count("Secret q-keys is gone") == 1


def test_why_names_a_full_volume_and_what_to_do() -> None:
    fine = [_condition("Ready", "True", "Ready"), _condition("UpToDate", "True", "Applied")]
    room = _condition("VolumesHaveRoom", "True", "HasRoom")
    document: dict[str, Any] = {
        "metadata": {"name": "q"},
        "status": {"activeGeneration": 1, "conditions": [*fine, room]},
    }
    assert explain(document, "raft/q") == "raft/q waits for nothing: generation 1 is active."
    full = _condition("VolumesHaveRoom", "False", "VolumeFull", "the volume of q-server-g1-0 is full")
    document["status"]["conditions"] = [*fine, full]
    text = explain(document, "raft/q")
    assert "waits for nothing" not in text
    assert "VolumeFull – the volume of q-server-g1-0 is full. Raise spec.storage.size" in text


def test_why_names_a_replica_that_is_missing() -> None:
    fine = [_condition("Ready", "True", "Ready"), _condition("UpToDate", "True", "Applied")]
    missing = _condition(
        "Replicated", "False", "ReplicaMissing", "1 of 2 replicas compute the views, not main-replica-g1-1"
    )
    document = {"metadata": {"name": "main"}, "status": {"activeGeneration": 1, "conditions": [*fine, missing]}}
    text = explain(document, "compute/main")
    assert "waits for nothing" not in text
    assert "ReplicaMissing – 1 of 2 replicas compute the views, not main-replica-g1-1. The views go on while" in text


def test_why_names_pods_that_wait_for_the_same_together() -> None:
    blockers = [
        {"pod": f"g-{number}", "reason": "NoGroup", "message": "nobody admits it", "since": "2026-01-01T00:00:00Z"}
        for number in range(2)
    ]
    rollout = {"state": "Promoting", "blockers": blockers}
    text = explain({"metadata": {"name": "g"}, "status": {"nextGeneration": 1, "rollout": rollout}}, "swim/g")
    assert "it waits for g-0, g-1: NoGroup – nobody admits it. " in text
    assert text.count("nobody admits it") == 1


def test_a_line_about_a_resource_says_why_an_idle_one_is_not_up_to_date() -> None:
    document = {"metadata": {"name": "q"}, "status": {"conditions": [_condition("UpToDate", "False", "Paused")]}}
    assert summary(document) == "q  Idle  not up to date: Paused"


def test_why_tells_what_a_backup_waits_for_and_what_became_of_it() -> None:
    def said(phase: str, reason: str, message: str) -> str:
        conditions = [_condition(kind, str(kind == phase), reason, message) for kind in ("Complete", "Failed")]
        status = {"phase": phase, "conditions": conditions}
        return explain({"kind": "Backup", "metadata": {"name": "b"}, "status": status}, "bk/b")

    assert said("Complete", "Verified", "read back") == "bk/b waits for nothing: read back."
    text = said("Pending", "ClusterMissing", "there is no RaftCluster q")
    assert text == "bk/b is Pending: ClusterMissing – there is no RaftCluster q. Create it; it then continues."
    for reason in ("AttemptsFailed", "DeadlineExceeded", "ClusterMissing"):
        assert said("Failed", reason, "no such bucket") == f"bk/b is Failed: {reason} – no such bucket."
    running = {"kind": "Backup", "metadata": {"name": "b"}, "status": {"phase": "Running"}}
    assert summary(running) == "b  Running"
    assert not is_current(running)
    assert is_current({**running, "status": {"phase": "Complete"}})


def test_why_tells_of_a_resource_that_no_operator_has_seen() -> None:
    assert "not been seen by an operator" in explain({"metadata": {"name": "q"}}, "raft/q")


def test_why_names_the_command_that_shows_more() -> None:
    blocker = {"reason": "DigestDisagrees", "since": "2026-01-01T00:00:00Z"}
    rollout = {"state": "Retiring", "blockers": [blocker]}
    document = {"metadata": {"name": "g"}, "status": {"activeGeneration": 2, "rollout": rollout}}
    text = explain(document, "swim/g")
    assert text.startswith("swim/g is Retiring: generation 2 is active.")
    assert "`pavane swim members swim/g`" in text


def test_why_tells_of_a_failed_attempt_and_how_to_repeat_it() -> None:
    failed = {"generation": 2, "reason": "Cancelled", "at": "2026-01-01T00:00:00Z", "id": "x"}
    stalled = [_condition("UpToDate", "False", "Cancelled"), _condition("Stalled", "True", "Cancelled")]
    document = {"metadata": {"name": "q"}, "status": {"activeGeneration": 1, "failed": failed, "conditions": stalled}}
    text = explain(document, "raft/q")
    assert "generation 2" in text
    assert "pavane rollout retry raft/q" in text
    crash = {**failed, "reason": "CrashLoop", "message": "pod q-0 restarted 6 times"}
    document["status"] = {"activeGeneration": 1, "failed": crash}
    assert "CrashLoop (pod q-0 restarted 6 times)" in explain(document, "raft/q")


def test_a_tree_shows_generations_and_their_pods() -> None:
    document: dict[str, Any] = {
        "kind": "RaftCluster",
        "metadata": {"name": "q"},
        "status": {
            "generations": [
                {
                    "number": 1,
                    "role": "Active",
                    "stage": "ReadWrite",
                    "podsReady": 1,
                    "pods": 2,
                    "progress": 3,
                    "target": 4,
                    "image": "pavane:1",
                }
            ]
        },
    }
    pod = {
        "metadata": {
            "name": "q-server-g1-0",
            "labels": {"pavane.dev/generation": "1", "app.kubernetes.io/component": "server"},
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"restartCount": 2}],
        },
    }
    root = picture(document, (pod,))
    assert "RaftCluster q" in str(root.label)
    (generation,) = root.children
    assert str(generation.label) == "generation 1  Active  ReadWrite  1/2 ready  progress 3 of 4  pavane:1"
    (leaf,) = generation.children
    assert str(leaf.label) == "q-server-g1-0  server  Running  ready  2 restarts"


def test_a_table_on_a_narrow_terminal_breaks_no_word() -> None:
    url = "tcp://quickstart-server-g1-0.quickstart-server-g1.default.svc:8047"
    cells = [["MEMBER", "ROLE", "URL"], ["quickstart-server-g1-0", "Follower", url]]
    assert list(output.lines_of(cells, 80)) == [
        "MEMBER                   ROLE",
        "   URL",
        "quickstart-server-g1-0   Follower",
        f"   {url}",
    ]
    assert list(output.lines_of(cells, 120))[1].endswith(f"Follower   {url}")
    words = [["CHECK", "MESSAGE"], ["right", "computeclusters, coordinators, raftclusters in namespace default"]]
    shown = list(output.lines_of(words, 40))
    assert max(map(len, shown)) <= 40
    assert {"computeclusters,", "coordinators,", "raftclusters"} <= {word for line in shown for word in line.split()}
    assert list(output.lines_of(words, None))[1].endswith("namespace default"), "a pipe gets lines as long as they are"


def test_a_generation_that_lost_the_right_to_write_is_called_fenced() -> None:
    one = {"number": 1, "role": "Retiring", "stage": "ReadWrite", "pods": 3, "podsReady": 3}
    two = {"number": 2, "role": "Active", "stage": "ReadWrite", "pods": 3, "podsReady": 3}
    document: dict[str, Any] = {
        "kind": "RaftCluster",
        "metadata": {"name": "q"},
        "status": {"activeGeneration": 2, "rollout": {"state": "Retiring"}, "generations": [two, one]},
    }
    assert "g1 Retiring fenced 3/3 ready" in summary(document)
    assert "generation 1  Retiring  fenced" in str(picture(document, ()).children[1].label)
    aborted = {**document, "status": {**document["status"], "activeGeneration": 0}}
    assert "fenced" not in summary(aborted)


def test_a_generation_that_bakes_is_at_rest_and_says_what_stands_by() -> None:
    following = "generation 1 follows with 3 pods and 3 volumes until noon"
    told = [*(_condition(each, "True", "Fine") for each in ("Ready", "UpToDate"))]
    told.append(_condition("CanSwitchBack", "True", "Following", following))
    one = {"number": 1, "role": "Standby", "stage": "ReadWrite", "pods": 3, "podsReady": 2}
    two = {"number": 2, "role": "Active", "stage": "ReadWrite", "pods": 3, "podsReady": 3}
    status = {"activeGeneration": 2, "rollout": {"state": "Baking"}, "generations": [two, one], "conditions": told}
    document: dict[str, Any] = {"kind": "RaftCluster", "metadata": {"name": "q"}, "status": status}
    assert explain(document, "raft/q") == f"raft/q is Baking: generation 2 is active; {following}."
    assert is_settled(document)
    assert "g1 Standby fenced 2/3 ready" in summary(document)


def test_why_advises_no_abort_of_an_attempt_that_has_ended() -> None:
    said = [_condition(kind, status, "DeadlineExceeded", "generation 2: too late") for kind, status in STALLED]
    document: dict[str, Any] = {
        "metadata": {"name": "q"},
        "status": {"activeGeneration": 1, "conditions": said, "rollout": {"state": "Idle"}},
    }
    text = explain(document, "raft/q")
    assert "rollout abort" not in text
    assert "pavane rollout retry raft/q" in text
    document["status"]["rollout"]["state"] = "CatchingUp"
    assert "rollout abort raft/q" in explain(document, "raft/q")


@pytest.mark.parametrize(
    ("called", "on_path", "told"),
    [
        ("{here}/.venv/bin/pavane", False, ".venv/bin/pavane"),
        ("{here}/.venv/bin/pavane", True, "pavane"),
        ("/usr/lib/python3/site-packages/pavane_cli/main.py", False, "pavane"),
    ],
)
def test_a_command_is_printed_as_it_can_be_typed(
    called: str, on_path: bool, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / ".venv" / "bin" / "pavane"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(program.parent) if on_path else "/nowhere")
    monkeypatch.setattr("sys.argv", [called.format(here=tmp_path), "demo"])
    assert output.program() == told


async def test_a_watch_prints_no_line_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = {"metadata": {"name": "q", "namespace": "default"}, "status": {"rollout": {"state": "CatchingUp"}}}
    other = {**one, "status": {"rollout": {"state": "Idle"}}}

    async def changes() -> AsyncGenerator[Change, None]:
        for document in (one, one, other, other, one):
            yield Change("MODIFIED", document)

    @asynccontextmanager
    async def cluster(_: Where) -> AsyncIterator[None]:
        yield None

    monkeypatch.setattr(resources, "changes", lambda *_: aclosing(changes()))
    monkeypatch.setattr(resources, "cluster", cluster)
    await resources._watch(Where(), KINDS["raft"], None, "default")
    assert capsys.readouterr().out.splitlines() == ["q  CatchingUp", "q  Idle", "q  CatchingUp"]


@pytest.mark.looptime
async def test_a_watch_that_breaks_goes_on_where_it_was_and_ends_once_nobody_answers_for_long() -> None:
    loop = asyncio.get_running_loop()
    asked: list[str] = []

    class Client:
        async def list_all(self, *_: Any, **__: Any) -> ObjectList:
            return ObjectList((), "3", None)

        async def watch(self, *_: Any, resource_version: str, **__: Any) -> AsyncIterator[Change]:
            asked.append(resource_version)
            if len(asked) == 3:
                yield Change("MODIFIED", {"metadata": {"uid": "q", "resourceVersion": "7"}})
            raise Unavailable("nothing came")

    client = cast("KubeClient", Client())
    began = loop.time()
    with pytest.raises(Unavailable):
        async with resources.changes(client, KINDS["raft"], "default", "q") as seen:
            _ = [each async for each in seen]
    assert (asked[:3], set(asked[3:])) == (["3", "3", "3"], {"7"})
    assert loop.time() - began >= resources.WATCH_LOST_S


@pytest.mark.looptime
async def test_a_delete_waits_over_watches_that_break_and_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    present = {"metadata": {"name": "q", "namespace": "default", "uid": "ours", "resourceVersion": "1"}}
    recreated = {"metadata": {**present["metadata"], "uid": "another"}}
    lists = [(present,), (present,), (recreated,)]
    watches: list[KubeError | None] = [Unavailable("broken"), None, Gone("too old"), Gone("too old")]

    class Client:
        async def get(self, *_: Any) -> Any:
            return present

        async def delete(self, *_: Any, uid: str) -> None:
            assert uid == "ours"

        async def list_all(self, *_: Any, **__: Any) -> ObjectList:
            return ObjectList(lists.pop(0), "3", None)

        async def watch(self, *_: Any, **__: Any) -> AsyncIterator[Change]:
            error = watches.pop(0)
            yield Change("MODIFIED", present)
            if error is not None:
                raise error

    @asynccontextmanager
    async def cluster(_: Where) -> AsyncIterator[Client]:
        yield Client()

    monkeypatch.setattr(resources, "cluster", cluster)
    await resources._delete(One(KINDS["raft"], "q", "default", Where()), 600)
    assert (lists, watches) == ([], [])
    assert capsys.readouterr().out.splitlines()[-1] == "raftcluster/q is gone"
