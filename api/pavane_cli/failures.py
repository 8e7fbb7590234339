"""How commands fail: one line that says what to do next, and an exit code that scripts can tell apart."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command (docs/specs/operator.md 8.1)."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    TIME_OUT = 5
    ATTEMPT_FAILED = 6
    INTERRUPTED = 130


class UserError(Exception):
    """A failure that the user can do something about; shown without a traceback."""

    def __init__(self, message: str, code: ExitCode = ExitCode.ERROR) -> None:
        super().__init__(message)
        self.code = code
