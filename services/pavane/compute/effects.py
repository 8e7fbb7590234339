"""Carrying out what calls of a core have led to."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Effect = TypeVar("Effect")


class EffectLoop(Generic[Effect]):
    """Called with effects, it calls ``carry_out`` with each, in order. Calls from inside wait their turn."""

    def __init__(self, carry_out: Callable[[Effect], None]) -> None:
        self._carry_out = carry_out
        self._waiting: deque[Effect] = deque()
        self._busy = False

    def __call__(self, effects: Iterable[Effect]) -> None:
        """Carry out ``effects`` after those that are in hand."""
        self._waiting.extend(effects)
        if self._busy:
            return
        self._busy = True
        try:
            while self._waiting:
                self._carry_out(self._waiting.popleft())
        finally:
            self._busy = False
