"""Whatever a peer is sent, in whatever order: no exception, no broken promise, and an answer to the next question."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.raft_attack import attack


@settings(max_examples=120)
@given(st.binary(min_size=200, max_size=600))
def test_a_peer_survives_any_attack(data: bytes) -> None:
    attack(data)
