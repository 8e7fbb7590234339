"""Internal errors: one line for the user, and the traceback in a file for a bug report."""

import sys
import tempfile
import textwrap
import traceback

from pavane_cli.failures import ExitCode

SHOWN_CHARACTERS = 300  # of an error's own words, which may hold a whole answer of a server


def tell(error: Exception) -> ExitCode:
    """Print what happened and the name of the file that keeps the trace; returns the exit code."""
    trace = "".join(traceback.format_exception(error))
    words = textwrap.shorten(f"{type(error).__name__}: {error}", SHOWN_CHARACTERS, placeholder=" …")
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="pavane-", suffix=".trace", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as kept:
            kept.write(trace)
        where = f"please report it with the trace in {kept.name}"
    except OSError as refused:
        sys.stderr.write(trace)
        where = f"please report it with the trace above, for which there is no file: {refused}"
    sys.stderr.write(f"pavane: this is a fault of pavane, not yours ({words}); {where}\n")
    return ExitCode.FAULT
