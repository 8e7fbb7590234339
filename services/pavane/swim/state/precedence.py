"""Which news about a peer counts, as a table (docs/specs/swim.md 5.3). The kind of news is the state that it tells."""

from enum import Enum

from pavane.swim.wire.values import State


class Verdict(Enum):
    """What to do with a piece of news about an entry."""

    IGNORE = "ignore"
    APPLY = "apply"
    CONFIRM = "confirm"  # another reporter of a suspicion that is known


class Rule(Enum):
    """When news with generation h beats an entry with generation g."""

    NEVER = "never"
    NEWER = "h > g"
    NOT_OLDER = "h >= g"
    CONFIRMS = "h > g, a confirmation at h = g"


RULES: dict[tuple[State, State], Rule] = {
    (State.ALIVE, State.ALIVE): Rule.NEWER,
    (State.ALIVE, State.SUSPECT): Rule.NEWER,
    (State.ALIVE, State.DEAD): Rule.NEWER,
    (State.ALIVE, State.LEFT): Rule.NEWER,
    (State.SUSPECT, State.ALIVE): Rule.NOT_OLDER,
    (State.SUSPECT, State.SUSPECT): Rule.CONFIRMS,
    (State.SUSPECT, State.DEAD): Rule.NEVER,
    (State.SUSPECT, State.LEFT): Rule.NEVER,
    (State.DEAD, State.ALIVE): Rule.NOT_OLDER,
    (State.DEAD, State.SUSPECT): Rule.NOT_OLDER,
    (State.DEAD, State.DEAD): Rule.NEWER,
    (State.DEAD, State.LEFT): Rule.NEWER,
    (State.LEFT, State.ALIVE): Rule.NOT_OLDER,
    (State.LEFT, State.SUSPECT): Rule.NOT_OLDER,
    (State.LEFT, State.DEAD): Rule.NOT_OLDER,
    (State.LEFT, State.LEFT): Rule.NEWER,
}
"""By (news, known state)."""


def judge(news: State, gen: int, known: State, known_gen: int) -> Verdict:
    """Say whether ``news`` at ``gen`` changes an entry that is ``known`` at ``known_gen``."""
    rule = RULES[news, known]
    if rule is not Rule.NEVER and gen > known_gen:
        return Verdict.APPLY
    if gen == known_gen and rule is Rule.NOT_OLDER:
        return Verdict.APPLY
    if gen == known_gen and rule is Rule.CONFIRMS:
        return Verdict.CONFIRM
    return Verdict.IGNORE
