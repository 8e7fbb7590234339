"""The entry point of the program. Ctrl-C ends it without a word while its parts are still imported."""

import signal


def main() -> None:
    """Import the commands and run the one that was called."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from pavane_cli.main import main as run  # noqa: PLC0415 - what takes a moment

    signal.signal(signal.SIGINT, handler)
    run()
