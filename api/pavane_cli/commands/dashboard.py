"""``pavane dashboard``."""

import webbrowser
from typing import Annotated

import typer

from pavane_cli import output
from pavane_cli.options import Api, Context, Kubeconfig, Token
from pavane_cli.target import Where, control_plane_url, explained, kubeconfig_token, run, signing_in

Open = Annotated[bool, typer.Option("--open", help="Open the link in the browser of this machine.")]


def dashboard(
    api: Api = None, token: Token = None, context: Context = None, kubeconfig: Kubeconfig = None, show: Open = False
) -> None:
    """Print the link of the dashboard, which signs its reader in.

    The token stands behind the # of the link, which browsers do not send; who has the link may do what you may do.
    """
    where = Where(kubeconfig, context)
    with explained():
        address = (api or run(control_plane_url(where))).rstrip("/")
    link = signing_in(address, token or kubeconfig_token(where))
    output.say(link)
    if show:
        webbrowser.open(link)
