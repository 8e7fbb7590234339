"""``pavane swim members``: who is in a group, as a pod of a SwimGroup or a member on this machine sees it."""

from typing import Annotated, Any

import typer

from pavane_cli import completing
from pavane_cli.commands.swim_control import Name, Socket, ask_one, path_of
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.options import Api, Context, Kubeconfig, Namespace, Token
from pavane_cli.output import Format, Output, note, printable, say, structured, table

Group = Annotated[
    str | None,
    typer.Argument(
        metavar="GROUP",
        autocompletion=completing.names,
        help="A SwimGroup; default: the group of a member on this machine.",
    ),
]


def members(
    group: Group = None,
    name: Name = None,
    socket: Socket = None,
    form: Output = Format.TABLE,
    namespace: Namespace = "",
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    api: Api = None,
    token: Token = None,
) -> None:
    """List the members of a group, as a pod of the SwimGroup or a member on this machine sees them."""
    if group is None:
        answer, show = ask_one(path_of(name, socket), {"do": "members"}), _here
    elif name is not None or socket is not None:
        raise UserError("give a SwimGroup, or --name or --socket of a member that runs here", ExitCode.USAGE)
    else:
        from pavane_cli.reach import plane_of  # noqa: PLC0415 - for a member here nothing of it is needed
        from pavane_cli.target import run_with  # noqa: PLC0415 - for a member here nothing of it is needed

        plane = plane_of(namespace=namespace, context=context, kubeconfig=kubeconfig, api=api, token=token)
        path = f"{plane.path_of('swim', group)}/members"
        answer, show = run_with(plane.rest(), lambda rest: rest.get(path)), _there
    if form.structured:
        structured(answer, form)
    else:
        show(answer, form)


def _here(answer: dict[str, Any], form: Format) -> None:
    named = [{**each, "state": _camel(each["state"]), "stage": _camel(each["stage"])} for each in answer["members"]]
    rows = [(*_common(each), each["gen"], "*" if each["id"] == answer["id"] else "", _meta(each)) for each in named]
    _print(("ID", "ADDRESS", "STATE", "STAGE", "ROLLOUT", "INCARNATION", "SELF", "META"), rows, form)
    if answer["own"] != "member":
        note(f"this member is {answer['own']}: it has not found a group, or has left it")


def _there(answer: dict[str, Any], form: Format) -> None:
    rows = [(each["pod"] or "<foreign>", *_common(each), each["incarnation"], _meta(each)) for each in answer["items"]]
    if form is Format.NAME:
        rows = [(each["pod"] or each["id"],) for each in answer["items"]]
    _print(("MEMBER", "ID", "ADDRESS", "STATE", "STAGE", "ROLLOUT", "INCARNATION", "META"), rows, form)
    if form is not Format.NAME:
        dead = f"; it remembers {answer['dead']} as dead" if answer["dead"] else ""
        note(f"as {answer['asked']} sees it{dead}")


def _common(member: dict[str, Any]) -> tuple[object, ...]:
    return (member["id"], member["address"], member["state"], member["stage"], member["rollout"])


def _camel(name: str) -> str:
    """``read_write`` as the control plane writes it: ``ReadWrite``."""
    return name.title().replace("_", "")


def _meta(member: dict[str, Any]) -> str:
    return printable((member["meta"] or "").encode())


def _print(headers: tuple[str, ...], rows: list[tuple[object, ...]], form: Format) -> None:
    if form is Format.NAME:
        for row in rows:
            say(str(row[0]))
    else:
        table(headers, rows)
