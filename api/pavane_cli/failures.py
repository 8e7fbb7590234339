"""How commands fail: one line that says what to do next, and an exit code that scripts can tell apart."""

from collections.abc import Iterator
from contextlib import contextmanager
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
    CONFLICT = 7
    OUTCOME_UNKNOWN = 8
    FAULT = 70
    """A fault of ours, as EX_SOFTWARE of sysexits.h."""
    INTERRUPTED = 130


ANSWERS = {
    400: ExitCode.USAGE,
    401: ExitCode.REFUSED,
    403: ExitCode.REFUSED,
    404: ExitCode.NOT_FOUND,
    409: ExitCode.REFUSED,
    410: ExitCode.NOT_FOUND,
    412: ExitCode.REFUSED,
    413: ExitCode.USAGE,
    415: ExitCode.USAGE,
    422: ExitCode.USAGE,
    429: ExitCode.TIME_OUT,
    503: ExitCode.TIME_OUT,
}
"""Of answers with this HTTP status; the rest is an ERROR."""
_PROBLEMS = {"lock-conflict": ExitCode.CONFLICT, "outcome-unknown": ExitCode.OUTCOME_UNKNOWN}


def exit_code(status: int, problem: str = "") -> ExitCode:
    """Return the exit code for an answer with this HTTP status, or for a kind of problem that has its own."""
    return _PROBLEMS.get(problem) or ANSWERS.get(status, ExitCode.ERROR)


class UserError(Exception):
    """A failure that the user can do something about; shown without a traceback."""

    def __init__(self, message: str, code: ExitCode = ExitCode.ERROR) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def as_user_error(*errors: type[Exception], code: ExitCode = ExitCode.ERROR) -> Iterator[None]:
    """Turn ``errors``, whose words are for the user, into ``UserError`` with ``code``."""
    try:
        yield
    except errors as error:
        raise UserError(str(error), code) from error


OURS = ("pavane", "pavane_operator", "pavane_local", "pavane_api", "pavane_cli")


def is_ours(error: ModuleNotFoundError) -> bool:
    """Whether the absent module is one of ours, which is a fault."""
    return (error.name or "").partition(".")[0] in OURS


def lacks(error: ModuleNotFoundError, extra: str) -> UserError:
    """Return the error for a package that is missing because the ``extra`` was not installed.

    A module of our own that is absent is a fault of ours: raises ``error``.
    """
    if is_ours(error):
        raise error
    return UserError(f"not installed ({error.name} is missing): pip install 'pavane[{extra}]'")
