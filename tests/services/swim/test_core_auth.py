"""Who may join, as one core judges it (docs/specs/swim.md 6.4, 6.5)."""

from typing import Any

import pytest

from pavane.swim.config import Config, RequireToken
from pavane.swim.core.outputs import Own
from pavane.swim.errors import ConfigError
from pavane.swim.state.auth import label, proof, response
from pavane.swim.wire.messages import ERROR_DOMAIN, JoinAck, JoinNak, JoinRedirect, JoinReq, Message
from pavane.swim.wire.payload import Payload
from pavane.swim.wire.refusals import Refusal
from pavane.swim.wire.values import Address, NodeInfo
from tests.services.swim.lone import Lone, info, only, place

PSK, OTHER = b"correct horse battery staple", b"something else entirely"


def asked(lone: Lone, node: int, auth: bytes | None, *, psk: bytes = PSK, as_: NodeInfo | None = None) -> Message:
    """Let ``node`` take a token and ask with ``auth``, or with the right one for ``psk``."""
    asker = as_ or info(node)
    _, nak = only(lone.hear(place(node), JoinReq(asker, auth=auth or b"")))
    assert isinstance(nak, JoinNak)
    token = nak.etag.encode()
    if auth is None:
        auth = response(psk, token, asker, lone.core._node.config.group)
    return only(lone.hear(place(node), JoinReq(asker, token, auth)))[1]


def test_a_psk_is_needed_to_be_admitted_and_the_answer_proves_that_it_is_known() -> None:
    lone = Lone(psks=(PSK, OTHER), group="prod")
    lone.join()
    for wrong in (b"", b"x" * 16, label("prod")):
        assert asked(lone, 2, wrong) == JoinNak(ERROR_DOMAIN, Refusal.AUTH_FAILED)
    assert asked(lone, 2, None, psk=b"a key that nobody has") == JoinNak(ERROR_DOMAIN, Refusal.AUTH_FAILED)
    assert not lone.sees()
    _, nak = only(lone.hear(place(2), JoinReq(info(2))))
    assert isinstance(nak, JoinNak)
    for psk, node in ((PSK, 2), (OTHER, 3)):
        ack = asked(lone, node, None, psk=psk)
        assert isinstance(ack, JoinAck)
    auth = response(PSK, b"", info(4), "prod")
    assert isinstance(ack, JoinAck)
    assert ack.payload.proof is not None
    assert ack.payload.proof != proof(PSK, auth, lone.core.info)


def test_a_psk_is_believed_about_an_address_that_a_stranger_is_not() -> None:
    elsewhere = NodeInfo(2, 1, Address.parse("10.9.9.9:1"))
    lone, open_ = Lone(psks=(PSK,)), Lone()
    for one in (lone, open_):
        one.join()
        assert isinstance(asked(one, 2, None, as_=elsewhere), JoinAck)
    assert {member.address for member in lone.core.members()} > {elsewhere.address}
    assert {member.address for member in open_.core.members()} > {place(2)}


def join_at(lone: Lone, sign: bytes | None) -> Own:
    """Let ``lone`` dial 2, which admits it with a proof by ``sign``."""
    lone.join(place(2))
    _, request = only(lone.take())
    assert isinstance(request, JoinReq)
    _, request = only(lone.hear(place(2), JoinNak(ERROR_DOMAIN, Refusal.TOKEN_EXPECTED, "token")))
    auth = response(PSK, b"token", lone.core.info, "")
    assert request == JoinReq(lone.core.info, b"token", auth)
    shown = None if sign is None else proof(sign, auth, info(2))
    lone.hear(place(2), JoinAck(info(2), Payload(proof=shown)))
    return lone.core.own


@pytest.mark.parametrize(("sign", "own"), [(None, Own.DIALING), (OTHER, Own.DIALING), (PSK, Own.MEMBER)])
def test_a_joiner_with_a_psk_believes_no_seed_that_does_not_know_it(sign: bytes | None, own: Own) -> None:
    lone = Lone(psks=(PSK,))
    assert join_at(lone, sign) is own
    assert lone.core.dropped["proof"] == (own is Own.DIALING)


def test_groups_of_other_names_are_told_so() -> None:
    lone = Lone(group="prod")
    lone.join()
    assert asked(lone, 2, label("test")) == JoinNak(ERROR_DOMAIN, Refusal.WRONG_GROUP)
    assert asked(lone, 2, b"") == JoinNak(ERROR_DOMAIN, Refusal.WRONG_GROUP)
    assert isinstance(asked(lone, 2, label("prod")), JoinAck)
    joiner = Lone(group="prod")
    joiner.join(place(2))
    _, request = only(joiner.take())
    assert isinstance(request, JoinReq)
    assert request.auth == label("prod")


@pytest.mark.parametrize("verdict", [True, False, JoinNak(0x1234, 1, "no"), JoinRedirect(place(9), 0x1234, 2)], ids=str)
def test_a_hook_decides_about_joins(verdict: bool | JoinNak | JoinRedirect) -> None:
    seen: list[tuple[bytes, NodeInfo, Address]] = []

    def authorize(token: bytes, auth: bytes, asker: NodeInfo, source: Address) -> bool | JoinNak | JoinRedirect:
        assert token
        seen.append((auth, asker, source))
        return verdict

    lone = Lone(authorize=authorize)
    lone.join()
    _, nak = only(lone.hear(place(2), JoinReq(info(2))))
    assert isinstance(nak, JoinNak)
    answers = [message for _, message in lone.hear(place(2), JoinReq(info(2), nak.etag.encode(), b"a bearer token"))]
    assert seen == [(b"a bearer token", info(2), place(2))]
    if verdict is True:
        assert isinstance(answers[0], JoinAck)
    else:
        assert answers == ([verdict] if verdict else [])
    assert (2 in lone.sees()) == (verdict is True)


def test_a_joiner_shows_what_its_hook_makes() -> None:
    lone = Lone(credentials=lambda token, asker: b"signed " + token + bytes([asker.id]))
    lone.join(place(2))
    lone.take()
    _, request = only(lone.hear(place(2), JoinNak(ERROR_DOMAIN, Refusal.TOKEN_EXPECTED, "t")))
    assert isinstance(request, JoinReq)
    assert request.auth == b"signed t\1"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"psks": (PSK,), "require_token": RequireToken.OFF}, "psks need tokens"),
        ({"seal": True}, "need keys"),
        ({"accept_plaintext": True}, "need keys"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(**config).validate()
