"""Watchers are found by what they watch (docs/specs/raft.md 12.6)."""

from hypothesis import given
from hypothesis import strategies as st

from pavane.raft.machines.commands import END_OF_KEYS, prefix_range
from pavane.raft.machines.history import Event, Happened, Scope, Watch
from pavane.raft.machines.interests import Interests

KEYS = st.binary(max_size=3) | st.sampled_from((b"a", b"ab", b"abc", b"b", b"a\xff", b"\xff"))
PATHS = st.lists(st.sampled_from((b"a", b"ab", b"b")), max_size=3).map(lambda names: b"/" + b"/".join(names))
OF_KEYS = frozenset((Happened.PUT, Happened.DELETE, Happened.EXPIRED))

watches = st.one_of(
    st.builds(lambda key: Watch(Scope.KEYS, key, b""), KEYS),
    st.builds(lambda prefix: Watch(Scope.KEYS, *prefix_range(prefix)), KEYS),
    st.builds(lambda start, end: Watch(Scope.KEYS, start, end), KEYS, KEYS | st.just(END_OF_KEYS)),
    st.builds(Watch, st.sampled_from([scope for scope in Scope if scope != Scope.KEYS]), PATHS, st.just(b"")),
)
events = st.sampled_from(Happened).flatmap(
    lambda kind: st.builds(lambda key: Event(kind, key, b"", 1, 0), KEYS if kind in OF_KEYS else PATHS)
)


@given(st.lists(watches, max_size=12), st.lists(events, max_size=6), st.data())
def test_an_event_finds_all_who_want_it_and_of_others_only_those_at_its_node(
    wanted: list[Watch], happened: list[Event], draw: st.DataObject
) -> None:
    interests = Interests[int]()
    present = dict(enumerate(wanted))
    for number, watch in present.items():
        interests.add(watch, number)
    for event in happened:
        if present:
            gone = draw.draw(st.sampled_from(sorted(present)))
            interests.remove(present.pop(gone), gone)
        found = list(interests.of(event))
        assert len(found) == len(set(found))
        interested = {number for number, watch in present.items() if watch.wants(event)}
        assert interested <= set(found) <= present.keys()
        for number in set(found) - interested:
            assert present[number].scope in (Scope.NODE, Scope.CHILDREN)
            assert present[number].start == event.key


def test_who_is_forgotten_leaves_nothing_behind() -> None:
    interests = Interests[int]()
    some = [
        Watch(Scope.KEYS, b"k", b""),
        Watch(Scope.KEYS, *prefix_range(b"k")),
        Watch(Scope.KEYS, b"a", b"k"),
        Watch(Scope.NODE, b"/a", b""),
        Watch(Scope.SUBTREE, b"/a", b""),
    ]
    for number, watch in enumerate(some * 2):
        interests.add(watch, number)
    for number, watch in enumerate(some * 2):
        interests.remove(watch, number)
    empty = Interests[int]()
    assert vars(interests) == vars(empty)
