"""Arguments and options of commands that reach a cluster or its control plane; this module loads neither's client."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pavane_cli.completing import references


def _of_context(ctx: typer.Context, param: typer.CallbackParam, value: str) -> str:
    """Return the namespace that was named, else that of the kubeconfig's context, as kubectl does."""
    source = ctx.get_parameter_source(param.name or "")
    of_a_cluster = any(each.name == "kubeconfig" for each in ctx.command.params)
    if source is None or source.name != "DEFAULT" or not of_a_cluster:
        return value
    from pavane_cli.target import Where, namespace  # noqa: PLC0415 - it imports these options

    def given(option: str) -> Any:
        return ctx.params.get(option) or ctx.lookup_default(option)  # the latter stood before the command

    kubeconfig = given("kubeconfig")
    return namespace(Where(kubeconfig and Path(kubeconfig), given("context"))) or value


Namespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        "-n",
        help="Namespace of the resource; default: that of the kubeconfig's context.",
        show_default=False,
        callback=_of_context,
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
