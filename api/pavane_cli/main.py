"""The ``pavane`` program: one command for users and for what containers run; ``kubectl pavane`` is the same."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pavane_cli import lazy
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.lazy import Listed

LOCAL, RESOURCES, DATA, CONTAINERS = "Local cluster", "Resources", "Data and traces", "In containers, not for the shell"

COMMANDS: dict[str, Listed] = {
    "up": Listed(
        "local:up",
        "Run a local cluster until Ctrl-C, with operator, control plane and the resources of FILE….",
        LOCAL,
    ),
    "down": Listed("local:down", "Stop all pods in order, then the local cluster. Data stays, unless --purge.", LOCAL),
    "ps": Listed(
        "local:ps",
        "List the pods of the local cluster, of all namespaces, with their processes and addresses.",
        LOCAL,
    ),
    "logs": Listed("local:logs", "Print the log of a pod.", LOCAL),
    "kill": Listed(
        "local:kill",
        "Kill the processes of a pod (SIGKILL), like a crash; the restart policy applies.",
        LOCAL,
    ),
    "pause": Listed(
        "local:pause",
        "Stop the processes of a pod (SIGSTOP), like a long pause or a lost network.",
        LOCAL,
    ),
    "unpause": Listed("local:unpause", "Continue the processes of a paused pod (SIGCONT).", LOCAL),
    "demo": Listed(
        "demo:demo",
        "Start a local cluster, use it while everything is killed and rolled out, and show the proof. Ctrl-C stops it.",
        LOCAL,
    ),
    "apply": Listed("resources:apply", "Create or change resources from files.", RESOURCES),
    "delete": Listed(
        "resources:delete",
        "Delete a resource; its volumes stay unless its deletionPolicy is Delete.",
        RESOURCES,
    ),
    "get": Listed("resources:get", "List resources, or show one.", RESOURCES),
    "describe": Listed(
        "resources:describe",
        "Show a resource with its generations, conditions, blockers and events.",
        RESOURCES,
    ),
    "status": Listed(
        "status:status",
        "Show leader, members, quorum, blockers, last write gap and certificates of a resource on one screen.",
        RESOURCES,
    ),
    "watch": Listed("resources:watch", "Print a line whenever a resource changes, until Ctrl-C.", RESOURCES),
    "dashboard": Listed(
        "dashboard:dashboard",
        "Print the link of the dashboard, which signs its reader in.",
        RESOURCES,
    ),
    "tree": Listed("tree:tree", "Show a resource with its generations and pods.", RESOURCES),
    "rollout": Listed("rollout:app", "Watch a rollout and decide about it.", RESOURCES),
    "scale": Listed(
        "scaling:scale",
        "Add or remove members of a running resource. The other pods do not restart.",
        RESOURCES,
    ),
    "suspend": Listed("scaling:suspend", "Stop all pods and keep the volumes.", RESOURCES),
    "resume-resource": Listed(
        "scaling:resume_resource",
        "Start a suspended resource again: the same generation, on its volumes.",
        RESOURCES,
    ),
    "why": Listed("why:why", "Explain what a resource is waiting for and what you can do.", RESOURCES),
    "connection": Listed(
        "connection:connection",
        "Print addresses and keys of a RaftCluster for an application; treat it as a password.",
        RESOURCES,
    ),
    "check": Listed(
        "check:check",
        "Check server, definitions, your permissions, operator and resources. Exit code 1 if there is a problem.",
        RESOURCES,
    ),
    "raft": Listed("raft:app", "The log of a RaftCluster; a peer or a probe without a platform.", DATA),
    "swim": Listed("swim:app", "Membership of a SWIM group: run a member, and query one.", DATA),
    "waltz": Listed("waltz:app", "The log of a WaltzCluster: append, read and follow transactions.", DATA),
    "sql": Listed(
        "sql:app",
        "SQL over the log, kept up to date: check and run a script, query and follow its views.",
        DATA,
    ),
    "dataflow": Listed("dataflow:app", "Show the views of Dataflows.", DATA),
    "ambrosia": Listed("ambrosia:app", "Immortals: applications that survive failures, with exactly-once calls.", DATA),
    "trace": Listed("trace:app", "Traces over all message paths.", DATA),
    "operator": Listed("processes:operator", "Run the operator (in a container).", CONTAINERS),
    "api": Listed("processes:api", "Run the control plane (in a container).", CONTAINERS),
    "pod": Listed(
        "processes:pod",
        "Run a pod of a resource (in a container); PAVANE_KIND and PAVANE_ROLE say which.",
        CONTAINERS,
    ),
    "helm": Listed("helm:app", "Hooks of the Helm chart (in a container).", CONTAINERS),
}
"""Command → module below ``pavane_cli.commands`` and the function or sub-application in it, its help, its panel."""


app = typer.Typer(
    cls=lazy.group(COMMANDS),
    help="Coordination services on Kubernetes, rolled out by fenced generations.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool | None) -> None:
    if wanted:
        from importlib import metadata  # noqa: PLC0415 - no other command needs it

        sys.stdout.write(f"pavane {metadata.version('pavane')}\n")
        raise typer.Exit


@app.callback()
def _root(
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace of the resource.")] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
    kubeconfig: Annotated[Path | None, typer.Option(help="Kubeconfig.")] = None,
    version: Annotated[
        bool | None, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = None,
) -> None:
    """Coordination services on Kubernetes, rolled out by fenced generations.

    Options before a command work like options after it.
    """


def main() -> None:
    """Run the program; a known failure is one line on standard error and its exit code (docs/specs/operator.md 8.1)."""
    # kubectl calls a plugin by its file's name; its user typed two words.
    called = Path(sys.argv[0]).name
    try:
        app(prog_name="kubectl pavane" if called == "kubectl-pavane" else "pavane")
    except UserError as error:
        sys.stderr.write(f"pavane: {error}\n")
        sys.exit(error.code)
    except UnicodeEncodeError as error:
        if error.encoding != "utf-8":  # of the terminal
            raise
        sys.stderr.write(f"pavane: {error.object!r} is no text in UTF-8\n")
        sys.exit(ExitCode.USAGE)
    except OSError as error:
        if error.filename is None:  # not about a file that the user named: a fault of ours, shown whole
            raise
        sys.stderr.write(f"pavane: {error.filename}: {error.strerror}\n")
        sys.exit(ExitCode.ERROR)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    main()
