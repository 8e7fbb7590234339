"""The folder in which a member keeps its generation."""

from pathlib import Path

import pytest

from pavane.swim.config import Config, id_of_name
from pavane.swim.core.outputs import Persist, Send
from pavane.swim.errors import ConfigError
from pavane.swim.member import SwimMember
from pavane.swim.store import FILE, GenerationStore
from pavane.swim.wire.messages import JoinReq, decode
from pavane.swim.wire.values import NodeId, State
from tests.services.swim.lone import UNIX_S, Lone, place


def test_what_was_saved_is_there_after_a_restart(tmp_path: Path) -> None:
    store = GenerationStore(tmp_path / "data")
    assert store.last is None
    store.save(NodeId(7, 1))
    store.save(NodeId(7, 2))
    store.close()
    (tmp_path / "data" / "generation.tmp").write_text("a crash left this")
    again = GenerationStore(tmp_path / "data")
    assert again.last == NodeId(7, 2)
    again.save(NodeId(7, 3))
    again.close()
    assert GenerationStore(tmp_path / "data").last == NodeId(7, 3)


def test_two_members_cannot_share_a_folder(tmp_path: Path) -> None:
    store = GenerationStore(tmp_path)
    with pytest.raises(ConfigError, match="in use"):
        GenerationStore(tmp_path)
    store.close()
    GenerationStore(tmp_path).close()


@pytest.mark.parametrize("content", ["", "7", "7 x", "7 1 2", "7 4294967296", "7 -1"])
def test_a_file_that_is_no_generation_is_not_guessed_at(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    for _ in range(2):  # the folder is free again after the refusal
        with pytest.raises(ConfigError, match="no generation"):
            GenerationStore(tmp_path)


def test_a_generation_is_durable_before_a_datagram_names_it() -> None:
    lone = Lone(stored_gen=UNIX_S + 500, first_gen=None)
    lone.core.join([place(9)], lone.now)
    outputs = [output for output in lone.core.outputs() if isinstance(output, Persist | Send)]
    stored, sent = outputs[:2]
    assert stored == Persist(1, UNIX_S + 501)
    assert isinstance(sent, Send)
    request = decode(sent.datagram)
    assert isinstance(request, JoinReq)
    assert request.src.gen == UNIX_S + 501


def test_a_refutation_is_durable_before_it_is_told(lone: Lone) -> None:
    stored = Lone(stored_gen=0)
    stored.join()
    stored.admit(2, 3)
    assert stored.saved == [10]
    stored.news(2, dead=(NodeId(1, 40), NodeId(1, 50)))
    assert stored.saved == [10, 51]
    lone.news(2, dead=(NodeId(1, 40),))
    assert lone.core.info.gen == 41
    assert lone.saved == []  # nobody has given this one a store
    assert lone.sees()[2] == (1, State.ALIVE.name)


async def test_a_member_goes_on_where_it_ended(tmp_path: Path) -> None:
    config = Config(id=id_of_name("a"), stored_gen=None)
    ahead = 4_000_000_000
    store = GenerationStore(tmp_path)
    store.save(NodeId(id_of_name("a"), ahead))
    store.close()
    async with SwimMember(config, ("127.0.0.1", 0), data=tmp_path) as member:
        assert member.info.gen == ahead + 1
        with pytest.raises(ConfigError, match="in use"):
            await SwimMember(config, ("127.0.0.1", 0), data=tmp_path).__aenter__()
    async with SwimMember(config, ("127.0.0.1", 0), data=tmp_path) as member:
        assert member.info.gen == ahead + 2
    for other, message in ((Config(id=5), "belongs to member"), (Config(), "needs an id")):
        with pytest.raises(ConfigError, match=message):
            await SwimMember(other, ("127.0.0.1", 0), data=tmp_path).__aenter__()
