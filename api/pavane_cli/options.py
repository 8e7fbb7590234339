"""Arguments and options of commands that reach a cluster or its control plane; `gathering` has those that go together.

This module loads neither's client.
"""

from pathlib import Path
from typing import Annotated

import typer

from pavane_cli.completing import references

Namespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        "-n",
        help="Namespace of the resource; default: that of the kubeconfig's context.",
        show_default=False,
    ),
]
Reference = Annotated[
    str,
    typer.Argument(metavar="KIND/NAME", autocompletion=references, help="For example raft/quickstart or swim/group."),
]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig.")]
Kubeconfig = Annotated[
    Path | None, typer.Option(help="Kubeconfig; default: the nearest .pavane/kubeconfig, else kubectl's.")
]
Api = Annotated[
    str | None, typer.Option(envvar="PAVANE_API_URL", help="URL of the control plane; default: the local cluster's.")
]
Token = Annotated[
    str | None,
    typer.Option(envvar="PAVANE_API_TOKEN", help="Bearer token for the control plane; default: the kubeconfig's."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is done.")]
Timeout = Annotated[float, typer.Option(help="Maximum wait in seconds; then exit code 5.")]
