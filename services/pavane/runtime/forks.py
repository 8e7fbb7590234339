"""Which process this is: a fork makes another of it, with everything that the first one holds in memory.

Sockets, event loops and threads of the first process are of no use in the second, and what shall be unique must be
drawn anew. An object that must not be used on the other side of a fork keeps a ``Process`` and asks ``is_this``.
"""

import os
from dataclasses import dataclass, field

_forks = 0  # between the first program and this process; a process id alone may come again


def _forked() -> None:
    global _forks  # noqa: PLW0603 - the interpreter has one such hook, and it takes no argument
    _forks += 1


os.register_at_fork(after_in_child=_forked)


@dataclass(frozen=True, slots=True)
class Process:
    """The process in which it was made."""

    id: int = field(default_factory=os.getpid)
    forks: int = field(default_factory=lambda: _forks)

    @property
    def is_this(self) -> bool:
        """Whether that is the process that asks."""
        return self.forks == _forks and self.id == os.getpid()
