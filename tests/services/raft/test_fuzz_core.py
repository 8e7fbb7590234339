"""Whatever a peer is sent, in whatever order: no exception, no broken promise, and an answer to the next question."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fuzz.raft_attack import attack

ENTRIES_BEYOND_ALL_INDICES = bytes.fromhex(
    "00cc1726232fcbfee5f000a43b0207006d6d7500a2a7bfd4dbe6ecfafafdfe14001b383b4047004d4e5165696a6d777d088c1caeb5bf"
    "c1c1c9e6ef444c54565a6073859fa7b1c0cdcfe2002764686da630383a3e4c87081bad0159b95dc2d81c9a26e7ff65b84544d6132632"
    "4c647e00afe5e9f4f700090c001e1f1f2527272d3844494b4f535a5c5d5e626264656c6e72747576767878797a7b7d800000008b8d8f"
    "00009396171b1ca2aaabacaeb3b4b7bebfc0c2c2c3c3cfd2d3d5d5d6d9d9cdd9e1e2efe2e2eef1f1201d22364d56687e008991afb8c2"
    "f2"
)


@settings(max_examples=120)
@example(ENTRIES_BEYOND_ALL_INDICES)
@given(st.binary(min_size=200, max_size=600))
def test_a_peer_survives_any_attack(data: bytes) -> None:
    attack(data)
