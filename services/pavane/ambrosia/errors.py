"""What can end a coordinator, with the codes that programs around it read (docs/specs/ambrosia.md 16.4)."""

from enum import IntEnum, StrEnum

from pavane.wire import ProtocolError


class Reason(StrEnum):
    """Why bytes were refused: stable words for counters and texts."""

    SHORT = "short"  # the enclosing bytes end too early
    VARINT = "varint"  # more groups or more bits than the number may have
    SIZE = "size"  # beyond a limit, or a message of less than one byte
    LENGTH = "length"  # a length below 0 or beyond what encloses it
    NAME = "name"  # not UTF-8, or longer than a name may be
    TYPE = "type"  # a message that has no place here
    COUNT = "count"  # a batch that holds more, less or other than it says
    KIND = "kind"  # no kind of call or return
    TRAILING = "trailing"  # bytes left over
    VERSION = "version"  # a hello of another protocol
    CHECK = "check"  # the check bytes are not those of the body
    SEQUENCE = "sequence"  # not the record that comes next
    COMMITTER = "committer"  # a record of another instance


class Fatal(IntEnum):
    """The number behind ``FATAL ERROR``; the process exits with it, 0 aside."""

    UNEXPECTED = 0
    VERSION = 1
    CHECKPOINT = 2
    LOG = 3
    STORAGE = 4
    LOG_WRITE = 5


EXIT_UNEXPECTED = 70  # a process that fails must not exit 0 (EX_SOFTWARE)


class FatalError(ProtocolError):
    """The coordinator must end: ``code`` as in 16.4, and what happened in words."""

    def __init__(self, fatal: Fatal, text: str) -> None:
        super().__init__(text)
        self.fatal = fatal

    @property
    def exit_code(self) -> int:
        """The exit code of the process."""
        return self.fatal or EXIT_UNEXPECTED


class Superseded(ProtocolError):
    """A newer process leads this instance (F3): stop, acknowledge nothing more, exit 0."""


class LogDamaged(FatalError):
    """A log lost records that were acknowledged: rot, a gap or a missing file (13.1)."""

    def __init__(self, text: str) -> None:
        super().__init__(Fatal.LOG, text)
