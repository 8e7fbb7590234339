"""``pavane raft peer``: one Raft peer without any of the platform (docs/specs/raft.md 17)."""

import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from pavane.raft.config import PRESETS, Config
from pavane.raft.curve import CurveServer
from pavane.raft.machine import machine_of
from pavane.raft.server import CannotBind, Exit, ForeignStore, RaftServer, StoreError
from pavane.runtime.garbage import freeze_survivors
from pavane.runtime.names import bracketed
from pavane.runtime.process import Process, run
from pavane_cli.failures import ExitCode, UserError, as_user_error
from pavane_cli.secret import SecretEnv, SecretFile, secret_in

_ANYWHERE = ("*", "0.0.0.0", "::")
_TIMES = ", ".join(f"{name} {least}/{greatest} ms" for name, (least, greatest) in PRESETS.items())

ClusterId = Annotated[
    str, typer.Option("--cluster-id", help="Id stored in the folder; it then works only for this cluster.")
]


def peer(
    id: Annotated[str, typer.Option("--id", metavar="ID", help="Name of this peer.")],  # noqa: A002 - the flag's name
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Folder of its log; created if missing.")],
    peers: Annotated[
        str, typer.Option("--peers", metavar="ID=URL,…", help="Initial configuration; a peer not in it is a learner.")
    ],
    bind: Annotated[str | None, typer.Option("--bind", metavar="URL", help="Where to listen; default: --url.")] = None,
    pub: Annotated[str, typer.Option("--pub", metavar="URL", help="Where to publish applied entries.")] = "",
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="URL for the others; default: as in --peers.")
    ] = None,
    source: Annotated[str, typer.Option("--source", metavar="ADDRESS", help="Address to connect from.")] = "",
    cluster_id: ClusterId = "",
    machine: Annotated[
        str,
        typer.Option("--machine", help="Broadcast, KeyValue, Tree, or an installed machine."),
    ] = "Broadcast",
    snapshot_entries: Annotated[
        int, typer.Option("--snapshot-entries", help="Entries between two snapshots; Broadcast takes none.")
    ] = 10_000,
    log_retention: Annotated[
        int, typer.Option("--log-retention", help="Entries kept in the log before a snapshot.")
    ] = 5000,
    preset: Annotated[str, typer.Option("--preset", help="Election time-outs: " + _TIMES)] = "lan",
    election_min_ms: Annotated[
        int | None, typer.Option("--election-min-ms", help="Shortest election time-out; overrides the preset.")
    ] = None,
    election_max_ms: Annotated[
        int | None, typer.Option("--election-max-ms", help="Longest election time-out; overrides the preset.")
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option("--secret", metavar="TEXT", help="Cluster secret. Every user of the machine can read it."),
    ] = None,
    secret_file: SecretFile = None,
    secret_env: SecretEnv = None,
    curve_secret_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Encrypt by CURVE: secret key of the cluster, in Z85.")
    ] = None,
    curve_clients: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder with the public key of each client, *.pub; default: any.")
    ] = None,
) -> None:
    """Run one peer without the platform. On SIGTERM it hands over leadership and stops."""
    ident = _secret(secret, secret_file, secret_env)
    members = members_of("--peers", peers)
    own_url = url or dict(members).get(id) or bind
    listen = bind or own_url
    if own_url is None or listen is None:
        raise UserError(f"{id!r} is not in --peers: say by --bind where it listens", ExitCode.USAGE)
    if preset not in PRESETS:
        raise UserError(f"--preset: unknown {preset!r}; known: {_TIMES}", ExitCode.USAGE)
    least, greatest = PRESETS[preset]
    config = Config(
        id=id,
        ident=ident,
        url=own_url,
        peers=members,
        machine=machine,
        broadcast_url=announced_url(pub, own_url),
        snapshot_entries=snapshot_entries,
        log_retention=log_retention,
        election_min=least if election_min_ms is None else election_min_ms,
        election_max=greatest if election_max_ms is None else election_max_ms,
    )
    with as_user_error(ValueError, code=ExitCode.USAGE):
        config.validate()
        state_machine = machine_of(machine)
    curve = curve_of(curve_secret_file, curve_clients)

    async def body(process: Process) -> None:
        server = RaftServer(
            config,
            data=data,
            bind=listen,
            publish=pub,
            source=source,
            cluster_id=cluster_id,
            machine=state_machine,
            curve=curve,
        )
        server.failure.add_done_callback(
            lambda done: process.exit(done.result().exit_code, done.result().reason) if not done.cancelled() else None
        )
        try:
            await server.start()
        except ForeignStore as error:
            process.exit(Exit.FOREIGN, str(error))
        except CannotBind as error:
            process.exit(Exit.FAILED, str(error))
        except (StoreError, OSError) as error:
            process.exit(Exit.DISK, str(error))
        else:
            sys.stdout.write(f"up {id}\n")
            sys.stdout.flush()
        await process.ended()
        await server.stop()

    freeze_survivors()
    raise typer.Exit(run(body, service="pavane-raft-peer"))


def _secret(text: str | None, file: Path | None, variable: str | None) -> bytes:
    given = [value for value in (text, file, variable) if value is not None]
    if len(given) != 1:
        raise UserError("give the cluster secret by one of --secret, --secret-file, --secret-env", ExitCode.USAGE)
    if text is not None:
        return text.encode()
    return secret_in(file, variable)


def curve_of(secret_file: Path | None, clients: Path | None) -> CurveServer | None:
    """Return the cluster's key pair, None for a cluster in clear."""
    if secret_file is None:
        return None
    try:
        return CurveServer.read(secret_file, clients)
    except (OSError, ValueError) as error:
        raise UserError(f"--curve-secret-file {secret_file}: {error}", ExitCode.USAGE) from error


def members_of(option: str, text: str) -> tuple[tuple[str, str], ...]:
    """Return the members in ``ID=URL,…``, the value of ``option``."""
    members = []
    for part in text.split(","):
        peer_id, separator, url = part.partition("=")
        if not separator:
            raise UserError(f"{option}: {part!r} must be ID=URL", ExitCode.USAGE)
        members.append((peer_id.strip(), url.strip()))
    return tuple(members)


def announced_url(pub: str, own_url: str) -> str:
    """Return the url that subscribers are told: where PUB is bound, with a host that they can reach."""
    host = urlsplit(own_url).hostname or ""
    for anywhere in _ANYWHERE:
        if pub.startswith(f"tcp://{bracketed(anywhere)}:"):
            return f"tcp://{bracketed(host)}:{pub.rpartition(':')[2]}"
    return pub
