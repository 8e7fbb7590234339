"""``pavane get|describe|watch|apply|delete``."""

import asyncio
import contextlib
import difflib
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from pavane.parts import jsonpath
from pavane_cli import output
from pavane_cli.completing import kinds, names
from pavane_cli.failures import ExitCode, UserError, as_user_error
from pavane_cli.gathering import One, Place, about_one, in_place
from pavane_cli.live import LiveView, stage_of
from pavane_cli.options import Timeout, Wait
from pavane_cli.output import Format
from pavane_cli.target import KINDS, Where, cluster, has_pods, parse_reference, run
from pavane_operator import kube
from pavane_operator.kube.informer import Informer
from pavane_operator.kube.resources import CORE_EVENTS

MANAGER = "pavane-cli"
BACKUP = "Backup"
COORDINATOR = "Coordinator"
EVENTS_SHOWN_MAX = 20
WATCH_LOST_S = 300.0  # without the API server: as long as a command waits for a rollout unless it is told otherwise

Kind = Annotated[
    str, typer.Argument(metavar="KIND[/NAME]", autocompletion=kinds, help="For example raft or raft/quickstart.")
]
Kinds = Annotated[
    str, typer.Argument(metavar="KIND[,…]|all", autocompletion=kinds, help="As raft/quickstart, as raft,swim, or all.")
]
Name = Annotated[str | None, typer.Argument(help="Name of the resource.", autocompletion=names)]
Everywhere = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Show all namespaces.")]
Followed = Annotated[
    bool, typer.Option("--watch", "-w", help="Print a line whenever one changes, until Ctrl-C, as `pavane watch` does.")
]
Files = Annotated[
    list[Path],
    typer.Option(
        "--file", "-f", exists=True, allow_dash=True, help="YAML or JSON: a file, a folder of them, - for input."
    ),
]
SUFFIXES = (".yaml", ".yml", ".json")
"""Of the files in a folder that are applied, as kubectl does."""


Labels = Annotated[
    str, typer.Option("--selector", "-l", metavar="LABELS", help="Only those with these labels: app=bank,tier!=test.")
]
Printed = Annotated[
    str,
    typer.Option("--output", "-o", metavar="FORMAT", help=f"How to print: {', '.join(Format)}, jsonpath={{.spec}}."),
]
JSONPATH = "jsonpath="


@in_place
def get(
    place: Place,
    kind: Kinds,
    name: Name = None,
    everywhere: Everywhere = False,
    form: Printed = Format.TABLE,
    followed: Followed = False,
    labels: Labels = "",
) -> None:
    """List resources, of several kinds or of all, or show one."""
    listed = KINDS if kind == "all" else kind.split(",")
    wanted = dict.fromkeys(parse_reference(each, name) for each in listed)
    space = None if everywhere else place.namespace
    if not (form in set(Format) or form.startswith(JSONPATH)):
        raise UserError(f"--output {form}: there are {', '.join(Format)} and {JSONPATH}TEMPLATE", ExitCode.USAGE)
    if len(wanted) > 1 and (followed or any(each for _, each in wanted)):
        raise UserError("a name, and --watch, are for one kind", ExitCode.USAGE)
    if labels and any(each for _, each in wanted):
        raise UserError("give a name or --selector, not both", ExitCode.USAGE)
    if followed and form != Format.TABLE:
        raise UserError("--watch prints lines: leave out --output", ExitCode.USAGE)
    run(_watch(place, *next(iter(wanted)), space, labels) if followed else _get(place, wanted, space, form, labels))


async def _get(
    where: Where, wanted: Iterable[tuple[kube.Resource, str | None]], namespace: str | None, form: str, labels: str
) -> None:
    several, single = len(list(wanted)) > 1, any(name for _, name in wanted)
    async with cluster(where) as client:
        if form in {Format.TABLE, Format.WIDE}:
            found = [(each, await client.table(each, namespace, name=name, labels=labels)) for each, name in wanted]
            tables = [(each, table) for each, table in found if table.get("rows")]
            if not tables:
                output.note("No resources found.")
            for number, (each, table) in enumerate(tables):
                if number:
                    output.say()
                prefix = f"{each.kind.lower()}/" if several else ""
                print_table(table, wide=form == Format.WIDE, namespaced=namespace is None, prefix=prefix)
            return
        items: list[kube.Object] = []
        for each, name in wanted:
            listed = (await client.list_all(each, namespace, labels=labels)).items if name is None else ()
            items += map(_ordered, listed if name is None else [await client.get(each, name, namespace)])
    if form == Format.NAME:
        for item in items:
            output.say(f"{item['kind'].lower()}/{item['metadata']['name']}")
        return
    document: Any = items[0] if single else {"apiVersion": "v1", "kind": "List", "items": items}
    if form in set(Format):
        output.structured(document, Format(form))
        return
    with as_user_error(ValueError, code=ExitCode.USAGE):
        sys.stdout.write(jsonpath.render(form.removeprefix(JSONPATH), document))


def _ordered(document: kube.Object) -> kube.Object:
    """Return a resource as people read it: what it is first, and without ``managedFields``, as kubectl shows it."""
    metadata = {key: value for key, value in document["metadata"].items() if key != "managedFields"}
    first: kube.Object = {key: document[key] for key in ("apiVersion", "kind") if key in document}
    return {**first, "metadata": metadata, **{key: document[key] for key in ("spec", "status") if key in document}}


def print_table(table: dict[str, Any], *, wide: bool, namespaced: bool, prefix: str) -> None:
    """Print a server's Table; ``namespaced`` adds the namespace in front, and ``prefix`` stands before names."""
    rows = table["rows"]
    columns = table["columnDefinitions"]
    shown = [index for index, column in enumerate(columns) if wide or not column.get("priority")]
    headers = [columns[index]["name"].upper() for index in shown]
    cells = [[f"{prefix}{row['cells'][0]}", *(row["cells"][index] for index in shown[1:])] for row in rows]
    if namespaced:
        headers = ["NAMESPACE", *headers]
        cells = [[row["object"]["metadata"]["namespace"], *line] for row, line in zip(rows, cells, strict=True)]
    output.table(headers, [["<none>" if cell is None else cell for cell in line] for line in cells])


@about_one
def describe(one: One) -> None:
    """Show a resource with its generations, conditions, blockers and events."""
    run(show(one))


async def show(one: One) -> None:
    """Print what is known of a resource."""
    async with cluster(one.where) as client:
        document = await client.get(one.resource, one.name, one.namespace)
        events = (await client.list_all(CORE_EVENTS, one.namespace)).items
    status = document.get("status") or {}
    rollout = status.get("rollout") or {}
    output.say(
        f"{one.resource.kind} {one.namespace}/{one.name}, {output.age(document['metadata']['creationTimestamp'])} old"
    )
    if has_pods(one.resource):
        output.say(f"  active generation {status.get('activeGeneration', '–')}, rollout {rollout.get('state', 'Idle')}")
    for item in status.get("endpoints") or ():
        output.say(f"  {item['name']}: {item['address']}:{item['port']}")
    _section("Generations", ("NUMBER", "ROLE", "STAGE", "READY", "PROGRESS", "IMAGE"), [
        (item["number"], item["role"], stage_of(status, item), f"{item['podsReady']}/{item['pods']}",
         f"{item.get('progress', '–')}/{item.get('target', '–')}", item.get("image", ""))
        for item in status.get("generations") or ()
    ])  # fmt: skip
    _section("Views", ("NAME", "FRONTIER", "LAG", "FAILURE"), [
        (item["name"], item.get("frontier", "–"), item.get("lag", "–"), item.get("failure", ""))
        for item in status.get("views") or ()
    ])  # fmt: skip
    _section("Conditions", ("TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"), [
        (item["type"], item["status"], item["reason"], output.age(item["lastTransitionTime"]), item.get("message", ""))
        for item in status.get("conditions") or ()
    ])  # fmt: skip
    _section("Blockers", ("REASON", "POD", "SINCE", "MESSAGE"), [
        (item["reason"], item.get("pod", ""), output.age(item["since"]), item.get("message", ""))
        for item in rollout.get("blockers") or ()
    ])  # fmt: skip
    own = [event for event in events if (event.get("involvedObject") or {}).get("uid") == document["metadata"]["uid"]]
    own.sort(key=_event_time)
    _section("Events", ("AGE", "TYPE", "REASON", "MESSAGE"), [
        (output.age(_event_time(event)), event.get("type", ""), event.get("reason", ""), event.get("message", ""))
        for event in own[-EVENTS_SHOWN_MAX:]
    ])  # fmt: skip


def _event_time(event: dict[str, Any]) -> str:
    series = event.get("series") or {}
    told = series.get("lastObservedTime") or event.get("eventTime") or event.get("lastTimestamp")
    return str(told or event["metadata"]["creationTimestamp"])


def _section(title: str, headers: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    if rows:
        output.say()
        output.say(f"{title}:")
        output.table(headers, rows)


@in_place
def watch(place: Place, kind: Kind, name: Name = None, everywhere: Everywhere = False) -> None:
    """Print a line whenever a resource changes, until Ctrl-C."""
    resource, wanted = parse_reference(kind, name)
    run(_watch(place, resource, wanted, None if everywhere else place.namespace))


async def _watch(
    where: Where, resource: kube.Resource, name: str | None, namespace: str | None, labels: str = ""
) -> None:
    lines: dict[tuple[str, str], str] = {}
    async with cluster(where) as client, changes(client, resource, namespace, name, labels) as seen:
        async for change in seen:
            metadata = change.object["metadata"]
            line = summary(change.object, "gone" if change.type == "DELETED" else None)
            if lines.get(key := (metadata["namespace"], metadata["name"])) != line:
                output.say(line)
            lines[key] = line


def changes(
    client: kube.KubeClient, resource: kube.Resource, namespace: str | None, name: str | None, labels: str = ""
) -> contextlib.aclosing[AsyncGenerator[kube.Change, None]]:
    """Give the present resources as ADDED and then every change, for ever; a broken watch goes on where it was.

    Raises ``kube.Unavailable`` when the API server could not be reached for WATCH_LOST_S.
    """
    fields = f"metadata.name={name}" if name else ""
    informer = Informer(client, resource, namespace, labels=labels, fields=fields, patience_s=WATCH_LOST_S)
    return contextlib.aclosing(informer.changes())


def summary(document: dict[str, Any], state: str | None = None) -> str:
    """Return one line about a resource: generations, state, stage and progress of the next one, first blocker."""
    status = document.get("status") or {}
    rollout = status.get("rollout") or {}
    parts = [document["metadata"]["name"], state or status.get("phase") or rollout.get("state", "Idle")]
    for item in status.get("generations") or ():
        ready = f"{item['podsReady']}/{item['pods']} ready"
        parts.append(f"g{item['number']} {item['role']} {stage_of(status, item)} {ready}")
    blockers = rollout.get("blockers") or ()
    current = condition(document, "UpToDate") or {}
    if blockers:
        parts.append(f"waits: {blockers[0]['reason']} {blockers[0].get('pod', '')}".rstrip())
    elif rollout.get("state", "Idle") == "Idle" and current.get("status") == "False":
        parts.append(f"not up to date: {current['reason']}")
    return "  ".join(parts)


@in_place
def apply(
    place: Place,
    files: Files,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and change nothing.")] = False,
    wait: Wait = False,
    timeout: Timeout = 300.0,
) -> None:
    """Create or change resources from files."""
    if wait and dry_run:
        raise UserError("--dry-run changes nothing that --wait could wait for", ExitCode.USAGE)
    run(_apply(place, files, dry_run, wait, timeout))


@in_place
def diff(place: Place, files: Files) -> None:
    """Show what applying files would change, and whether a generation starts. Exit code 1 if they change anything."""
    if run(_diff(place, files)):
        raise typer.Exit(ExitCode.ERROR)


def read_documents(files: list[Path]) -> list[dict[str, Any]]:
    """Return the documents of YAML or JSON files, of those in a folder, and of standard input (``-``).

    Raises ``UserError`` for what is no resource.
    """
    return [document for _, document in _read(files)]


def _read(files: list[Path]) -> list[tuple[Path, dict[str, Any]]]:
    documents: list[tuple[Path, dict[str, Any]]] = []
    for path in (each for given in files for each in _files(given)):
        try:
            text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
            loaded = [item for item in yaml.safe_load_all(text) if item]
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: not YAML: {error}", ExitCode.USAGE) from error
        for item in loaded:
            if (
                not isinstance(item, dict)
                or not isinstance(item.get("metadata"), dict)
                or "name" not in item["metadata"]
            ):
                raise UserError(f"{path}: a document without metadata.name", ExitCode.USAGE)
            documents.append((path, item))
    if not documents:
        raise UserError("the files hold no resource", ExitCode.USAGE)
    return documents


def _files(given: Path) -> list[Path]:
    if not given.is_dir():
        return [given]
    return sorted(path for path in given.iterdir() if path.suffix in SUFFIXES and path.is_file())


def _type_of(path: Path, document: dict[str, Any]) -> kube.Resource:
    try:
        resource, _ = parse_reference(str(document.get("kind", "")))
    except UserError as error:
        raise UserError(f"{path}: {document['metadata']['name']}: {error}", error.code) from error
    if document.get("apiVersion") != resource.api_version:
        told = f"{path}: {resource.kind} {document['metadata']['name']} has apiVersion {document.get('apiVersion')}"
        raise UserError(f"{told}: write {resource.api_version}", ExitCode.USAGE)
    return resource


Typed = list[tuple[Path, kube.Resource, dict[str, Any]]]


def _typed(files: list[Path]) -> Typed:
    return [(path, _type_of(path, document), document) for path, document in _read(files)]


async def _applied(
    client: kube.KubeClient, place: Place, typed: Typed, *, dry_run: bool
) -> AsyncIterator[tuple[kube.Resource, kube.Object | None, kube.Object]]:
    """Apply the files; yield of each resource its type, and with ``dry_run`` what was there, and what is there then."""
    for path, resource, document in typed:
        name, space = document["metadata"]["name"], document["metadata"].get("namespace", place.namespace)
        before = None
        try:
            with contextlib.suppress(kube.NotFound):
                before = await client.get(resource, name, space) if dry_run else None
            after = await client.apply(resource, document, space, manager=MANAGER, strict=True, dry_run=dry_run)
        except kube.Invalid as error:
            from pavane_operator.crds.fields import in_words  # noqa: PLC0415 - the models take a third of a second

            raise in_words(error, resource.kind, name, str(path)) from error
        yield resource, before, after


async def _apply(place: Place, files: list[Path], dry_run: bool, wait: bool, timeout_s: float) -> None:
    typed = _typed(files)
    async with cluster(place) as client:
        applied = []
        async for resource, before, after in _applied(client, place, typed, dry_run=dry_run):
            space, name = after["metadata"]["namespace"], after["metadata"]["name"]
            output.say(f"{resource.kind.lower()}/{name} {effect_of(resource, before, after) if dry_run else 'applied'}")
            applied.append((resource, space, name))
        for resource, space, name in applied if wait else ():
            await wait_ready(client, resource, space, name, timeout_s)


async def _diff(place: Place, files: list[Path]) -> bool:
    differs, typed = False, _typed(files)
    async with cluster(place) as client:
        async for resource, before, after in _applied(client, place, typed, dry_run=True):
            old, new = (_compared(each).splitlines() if each else [] for each in (before, after))
            name = f"{resource.kind.lower()}/{after['metadata']['name']}"
            for line in difflib.unified_diff(old, new, f"{name} now", f"{name} applied", lineterm=""):
                differs = True
                output.say(line)
            output.note(f"{name}: {effect_of(resource, before, after)}")
    return differs


def _compared(document: kube.Object) -> str:
    kept = {name: document["metadata"].get(name) for name in ("labels", "annotations")}
    return yaml.safe_dump({"metadata": kept, "spec": document["spec"]}, allow_unicode=True)


def effect_of(resource: kube.Resource, before: kube.Object | None, after: kube.Object) -> str:
    """Return what a change does, in words."""
    from pavane_operator.crds.effects import effect  # noqa: PLC0415 - as above

    return effect(resource.kind, before, after)


async def wait_ready(
    client: kube.KubeClient, resource: kube.Resource, namespace: str, name: str, timeout_s: float
) -> dict[str, Any]:
    """Return the resource once its present spec is Ready, up to date, nothing is under way, and all its pods are ready.

    Raises ``UserError`` as `wait_until` does.
    """
    return await wait_until(client, resource, namespace, name, is_settled, timeout_s)


async def wait_until(
    client: kube.KubeClient,
    resource: kube.Resource,
    namespace: str,
    name: str,
    done: Callable[[dict[str, Any]], bool],
    timeout_s: float,
) -> dict[str, Any]:
    """Return the resource once it is ``done``.

    Meanwhile it tells on standard error what happens. Raises ``UserError`` with exit code 5 and the blockers at the
    time-out, 6 when the attempt failed, 3 when it goes.
    """
    last: dict[str, Any] = {}
    with contextlib.suppress(TimeoutError), LiveView() as view:
        async with asyncio.timeout(timeout_s):
            async with changes(client, resource, namespace, name) as seen:
                async for change in seen:
                    last = change.object
                    if change.type == "DELETED":
                        raise UserError(f"{resource.kind} {name} was deleted", ExitCode.NOT_FOUND)
                    view.update(last, summary(last))
                    if done(last):
                        break
                    lasting = (last.get("status") or {}).get("failed")
                    failed = condition(last, "Stalled") if lasting else condition(last, "Failed")
                    if failed and failed["status"] == "True":
                        raise UserError(
                            f"{name}: {failed['reason']}: {failed.get('message', '')}", ExitCode.ATTEMPT_FAILED
                        )
    if last and done(last):
        output.note(view.closing(last))
        return last
    raise UserError(f"time-out: {summary(last) if last else name + ' was not seen'}", ExitCode.TIME_OUT)


def condition(document: dict[str, Any], kind: str) -> dict[str, Any] | None:
    """Return the condition of that type, if the resource has it."""
    conditions = (document.get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item["type"] == kind), None)


def is_current(document: dict[str, Any]) -> bool:
    """Whether the status speaks of the present spec, Ready and UpToDate hold and nothing is under way."""
    status = document.get("status") or {}
    if document.get("kind") == BACKUP:
        return status.get("phase") == "Complete"
    seen = status.get("observedGeneration") == document["metadata"].get("generation")
    if (condition(document, "Reconciling") or {}).get("status") == "True":
        return False
    holds = all((condition(document, kind) or {}).get("status") == "True" for kind in ("Ready", "UpToDate"))
    return seen and holds and (status.get("rollout") or {}).get("state", "Idle") in ("Idle", "Baking")


def is_settled(document: dict[str, Any]) -> bool:
    """Whether it is current and has exactly the pods that it shall have, all of them ready.

    A majority makes a resource Ready: some pods may still start, or go. Of a Coordinator the pod that leads is ready,
    and the others wait.
    """
    generations = (document.get("status") or {}).get("generations") or ()
    leads = document.get("kind") == COORDINATOR
    needed = [item for item in generations if item.get("role") != "Standby"]
    return is_current(document) and all(item["podsReady"] == (1 if leads else item["pods"]) > 0 for item in needed)


@about_one
def delete(one: One, wait: Wait = False, timeout: Timeout = 150.0) -> None:
    """Delete a resource; its volumes stay unless its deletionPolicy is Delete."""
    run(_delete(one, timeout if wait else None))


async def _delete(one: One, timeout_s: float | None) -> None:
    async with cluster(one.where) as client:
        document = await client.get(one.resource, one.name, one.namespace)
        uid = document["metadata"]["uid"]
        await client.delete(one.resource, one.name, one.namespace, uid=uid)
        output.say(f"{one.reference} is being deleted")
        if timeout_s is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                fields = f"metadata.name={one.name}"
                informer = Informer(client, one.resource, one.namespace, fields=fields, patience_s=timeout_s)
                async with contextlib.aclosing(informer.lists_and_changes()) as seen:
                    async for found in seen:
                        if isinstance(found, kube.ObjectList):
                            gone = uid not in [each["metadata"]["uid"] for each in found.items]
                        else:
                            gone = found.type == "DELETED"
                        if gone:
                            output.say(f"{one.reference} is gone")
                            return
        except TimeoutError as error:
            text = f"still being deleted after {timeout_s:.0f} s: `pavane why {one.reference}` says what holds it up"
            raise UserError(f"{one.reference} is {text}", ExitCode.TIME_OUT) from error
