"""One version of an application takes over the state of the one before it (docs/specs/ambrosia.md 6.4, 18.6)."""

import random
from collections.abc import Mapping

from pavane.ambrosia.client.errors import ImmortalError
from pavane.ambrosia.client.immortal import Immortal, definition
from pavane.ambrosia.client.snapshot import ImmortalSnapshot
from pavane.ambrosia.client.values import ShuffledSet

Kinds = Mapping[int, type[Immortal]]
"""The class of an application from each version on; what has none keeps the class before."""


def versions(kind: type[Immortal], version: int | None, upgrade: type[Immortal] | None) -> Kinds:
    """Return the classes of an application as ``serve`` gets them."""
    return {0: kind} if upgrade is None else {0: kind, version or 1: upgrade}


def kind_of(kinds: Kinds, version: int) -> type[Immortal]:
    """Return the class of ``version``; of a version before all of them the first one."""
    return kinds[max((each for each in kinds if each <= version), default=min(kinds))]


def state_of(made: Immortal) -> dict[str, bytes]:
    """Return the attributes of the state as bytes; raises ``ImmortalError`` for what an annotation does not allow."""
    found = {}
    for name, field in definition(type(made)).fields.items():
        try:
            found[name] = field.codec.pack(getattr(made, name))
        except (ValueError, TypeError) as error:
            text = f"{type(made).__qualname__}.{name} holds what its annotation does not allow: {error}"
            raise ImmortalError(text.splitlines()[0]) from error
    return found


def put_back(made: Immortal, saved: ImmortalSnapshot, shuffle: random.Random | None) -> None:
    """Give an object the state of a checkpoint; raises ``ImmortalError``. ``shuffle`` gives sets a random order."""
    title, fields = type(made).__qualname__, definition(type(made)).fields
    for name, data in saved.state.items():
        if name not in fields:
            text = f"the checkpoint of version {saved.version} holds {name}, which {title} has not"
            raise ImmortalError(f"{text}; start it with the former class and give the new one as `upgrade`")
        try:
            value = fields[name].codec.unpack(data)
        except ValueError as error:
            text = f"{title}.{name} of the checkpoint does not fit its annotation: {error}"
            raise ImmortalError(text.splitlines()[0]) from error
        if shuffle is not None and type(value) is set:
            value = ShuffledSet(value, shuffle)
        object.__setattr__(made, name, value)


def take_over(made: Immortal, state: Mapping[str, bytes]) -> None:
    """Give a new object the state of the class before.

    Raises ``ImmortalError`` for what does not fit, unless the class has an ``upgrade`` of its own to see to it.
    """
    kind = type(made)
    fields = definition(kind).fields
    for name, data in state.items():
        problem = "is no longer there"
        if name in fields:
            try:
                object.__setattr__(made, name, fields[name].codec.unpack(data))
                continue
            except ValueError:
                problem = "has another type"
        if kind.upgrade is Immortal.upgrade:
            text = f"{kind.__qualname__}.{name} {problem}, and the state holds it: write in the class"
            raise ImmortalError(f"{text} `def upgrade(self, old_version, old)`, which makes the new state")
