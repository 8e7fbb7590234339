"""Which code of the application runs, and what it may do (docs/specs/ambrosia.md 18.3, 18.6)."""

import random
from dataclasses import dataclass

from pavane.ambrosia.client.errors import OutsideHandler, StateInFlow


@dataclass(slots=True)
class Context:
    """What runs: ``mode`` is handler, flow, query, hook or upgrade."""

    title: str
    mode: str
    seed: str
    chance: random.Random | None = None


def sender(context: Context | None, what: str, *, sends: bool = True) -> Context:
    """Return what runs if it may do ``what``, which ``sends`` or changes the state; else raise in words."""
    if context is None:
        raise OutsideHandler(f"{what} outside a handler", remedy="use the handle that `serve` gives")
    if context.mode == "query":
        raise StateInFlow(f"{context.title} is a query and uses {what}", remedy="make it a method")
    if context.mode == "hook":
        raise OutsideHandler(f"{context.title} uses {what}", remedy="it may send Impulses only: `self.impulse`")
    if context.mode == "upgrade" and sends:
        remedy = "it changes the state only; send Impulses in `became_primary`"
        raise OutsideHandler(f"{context.title} uses {what}", remedy=remedy)
    return context
