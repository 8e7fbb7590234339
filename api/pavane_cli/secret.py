"""The secret of a Raft cluster from options; never an argument but for a peer without any platform."""

import os
from pathlib import Path
from typing import Annotated

import typer

from pavane.raft.keys import ident_in
from pavane_cli.failures import ExitCode, UserError

SecretFile = Annotated[Path | None, typer.Option("--secret-file", metavar="FILE", help="File with the cluster secret.")]
SecretEnv = Annotated[
    str | None, typer.Option("--secret-env", metavar="NAME", help="Environment variable with the cluster secret.")
]


def secret_in(file: Path | None, variable: str | None) -> bytes:
    """Return the secret from the one source that is given; raises ``UserError``."""
    if file is not None:
        try:
            return ident_in(file.read_bytes())
        except OSError as error:
            raise UserError(f"the secret cannot be read: {error}", ExitCode.USAGE) from error
    value = os.environ.get(variable or "")
    if value is None:
        raise UserError(f"the environment variable {variable} is not set", ExitCode.USAGE)
    return value.encode()
