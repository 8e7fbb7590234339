"""Ports for tests: free, distinct, below the ephemeral range."""

import socket

from tests.services.ports import FIRST, LAST, free_ports


def test_ports_are_free_and_never_given_twice() -> None:
    given = free_ports(20) + free_ports(20)
    assert len(set(given)) == 40
    assert all(FIRST <= port < LAST for port in given)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", given[0]))


def test_a_port_in_use_is_passed_over() -> None:
    first = free_ports(1)[0]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 1))
        taken.listen()
        assert first + 1 not in free_ports(5)
