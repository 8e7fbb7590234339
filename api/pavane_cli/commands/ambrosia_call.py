"""``pavane ambrosia call`` and ``query``: an immortal that runs on this machine, or a Coordinator of a cluster."""

import json
import time
import uuid
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import httpx2
import typer

from pavane_cli import output
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.reach import ControlPlane, through_plane
from pavane_cli.target import run_with
from pavane_operator import kube

DEFAULT_LOG = Path(".pavane/ambrosia")
RETRY_S = 0.25  # between two attempts while the immortal is started again

Name = Annotated[str, typer.Argument(help="Name of the instance.")]
Log = Annotated[Path, typer.Option("--log", help="Folder of logs, as given to `run`.")]
Arguments = Annotated[list[str] | None, typer.Argument(metavar="[ARGUMENT]…", help="JSON, or plain text.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait, even while the immortal restarts.")]


@through_plane
def call(
    plane: ControlPlane,
    name: Name,
    method: Annotated[str, typer.Argument(help="Name of the method.")],
    arguments: Arguments = None,
    key: Annotated[str | None, typer.Option(help="Calls with the same key take effect once.")] = None,
    log: Log = DEFAULT_LOG,
    timeout: Timeout = 60.0,
) -> None:
    """Call a method and print its result as JSON. A crash in between does not repeat it, because the call has a key.

    NAME is an immortal that runs on this machine, or else a Coordinator of the cluster.
    """
    headers = {"Idempotency-Key": key or str(uuid.uuid4())}
    body = [_value(argument) for argument in arguments or []]
    path = f"call/{quote(method, safe='')}"
    _say(answer_of(plane, "POST", path, log, name, timeout, headers, body))


@through_plane
def query(
    plane: ControlPlane,
    name: Name,
    query: Annotated[str, typer.Argument(help="Name of the query.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[NAME=VALUE]…")] = None,
    log: Log = DEFAULT_LOG,
    timeout: Timeout = 60.0,
) -> None:
    """Answer a query and print the result as JSON. NAME as for `call`."""
    parameters = {}
    for argument in arguments or []:
        parameter, separator, value = argument.partition("=")
        if not separator:
            raise UserError(f"{argument}: write NAME=VALUE", ExitCode.USAGE)
        parameters[parameter] = value
    path = f"query/{quote(query, safe='')}"
    _say(answer_of(plane, "GET", f"{path}?{urlencode(parameters)}", log, name, timeout))


def answer_of(
    plane: ControlPlane,
    verb: str,
    path: str,
    log: Path,
    name: str,
    timeout: float,
    headers: dict[str, str] | None = None,
    body: Any = None,
) -> Any:
    """Return what the immortal answers, wherever it runs. Raises ``UserError``."""
    if not _is_here(log, name):
        answer = _cluster_answers(plane, verb, path, body, headers, log=log, name=name)
        if answer is not None:
            return answer
    request = {} if body is None else {"json": body}
    return _ask(verb, log, name, f"/{path}", timeout, headers=headers or {}, **request)


def _say(answer: Any) -> None:
    output.say(json.dumps(answer["result"], ensure_ascii=False))


def _is_here(log: Path, name: str) -> bool:
    """Whether an immortal of this name was started on this machine, though it may be dead at the moment."""
    return (log / f"{name}.http").exists() or (log / f"{name}.coordinator.log").exists()


def _cluster_answers(
    plane: ControlPlane,
    verb: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
    *,
    log: Path,
    name: str,
) -> Any:
    """Return what a Coordinator of the cluster answers. None = the immortal is one of this machine after all.

    Right after `run … &` an immortal has left no trace yet: without a cluster to ask, the caller waits for it.
    """
    place = f"{plane.path_of('coord', name)}/{path}"
    try:
        return run_with(plane.rest(), lambda rest: rest.send(verb, place, body, headers))
    except UserError as error:
        if isinstance(error.__cause__, kube.ConnectError):
            return None
        if error.code != ExitCode.NOT_FOUND:
            raise
        if _is_here(log, name):
            return None
        raise UserError(f"{error}; nor was an immortal {name} started with --log {log}", error.code) from error


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _ask(verb: str, log: Path, name: str, path: str, timeout: float, **request: Any) -> Any:
    end = time.monotonic() + timeout
    start = f"start it: pavane ambrosia run MODULE:CLASS --name {name}"
    key = request.get("headers", {}).get("Idempotency-Key")
    while True:
        left = max(RETRY_S, end - time.monotonic())
        try:
            address = (log / f"{name}.http").read_text().strip()
            with httpx2.Client(timeout=left, trust_env=False) as client:
                answer = client.request(verb, f"http://{address}{path}", **request)
            if answer.status_code != httpx2.codes.SERVICE_UNAVAILABLE:
                break
            why = f"{answer.text}; {start}"
        except FileNotFoundError:
            why = f"no immortal {name} was started with --log {log}; {start}"
        except httpx2.ReadTimeout:
            again = f". The call goes on if it took it: ask again with --key {key}" if key else ""
            why = f"{name} has not answered within {timeout:g} s{again}"
        except httpx2.HTTPError as error:
            why = f"{name} does not answer ({error}); {start}"
        if time.monotonic() >= end:
            raise UserError(why, ExitCode.TIME_OUT)
        time.sleep(RETRY_S)
    try:
        content = answer.json()
    except ValueError as error:
        raise UserError(f"{name} has nothing at {path}: name a method or query of it", ExitCode.NOT_FOUND) from error
    if answer.is_success:
        return content
    code = ExitCode.NOT_FOUND if answer.status_code == httpx2.codes.NOT_FOUND else ExitCode.REFUSED
    raise UserError(f"{content['error']}: {content['detail']}", code)
