"""Coverage-guided fuzzing, ``python -m tests.fuzz core|wire|swim|… [options of libFuzzer]``; ``make fuzz``.

``core`` attacks a whole Raft peer (``raft_attack.py``), ``swim`` a whole SWIM member (``swim_attack.py``),
``wire`` and ``swim-wire`` the decoders alone. ``waltz``, ``waltz-storage`` and ``waltz-admin`` attack the three ports
of a log, decoders and what is behind them (``waltz_attack.py``), ``ambrosia`` a coordinator, its peers and its
application, ``ambrosia-wire`` its decoders (``ambrosia_attack.py``). What is found is written to a file, which
``python -m tests.fuzz core FILE`` replays; then it becomes a test.
"""

import sys
from importlib import import_module

atheris = import_module("atheris")  # only ``make fuzz`` installs it

with atheris.instrument_imports(include=["pavane.raft", "pavane.swim", "pavane.waltz", "pavane.ambrosia"]):
    from pavane.raft.wire import pv, pv_update, replies
    from pavane.raft.wire.decoder import decode_broadcast, decode_reply, decode_request
    from tests.fuzz import ambrosia_attack, raft_attack, swim_attack, waltz_attack
    from tests.fuzz.choices import Choices
    from tests.services.raft.ensemble import IDENT

MODULES = (pv, pv_update, replies)
REPLIES = [kind for each in MODULES for name, kind in vars(each).items() if name.endswith("Reply")]


def decode(data: bytes) -> None:
    """Decode frames, cut as the bytes themselves say, as everything that they could be."""
    choices = Choices(data)
    frames = [choices.bytes(60) for _ in range(choices.number(12))]
    for message in (frames, [*frames[:2], IDENT, *frames[2:]], [IDENT, *frames]):
        decode_request(message, IDENT)
        decode_broadcast(message, IDENT)
    for kind in REPLIES:
        decode_reply(kind, frames)


TARGETS = {
    "core": raft_attack.attack,
    "wire": decode,
    "swim": swim_attack.attack,
    "swim-wire": swim_attack.decode_any,
    "waltz": waltz_attack.attack_server,
    "waltz-storage": waltz_attack.attack_storage,
    "waltz-admin": waltz_attack.attack_admin,
    "ambrosia": ambrosia_attack.attack,
    "ambrosia-wire": ambrosia_attack.decode_any,
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: python -m tests.fuzz {'|'.join(TARGETS)} [options of libFuzzer]")
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()
