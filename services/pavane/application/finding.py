"""Where a RaftCluster or a log is and how to be let in: from a file, a mounted Secret, or what a kubeconfig names."""

import base64
import json
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx2
import yaml

from pavane.application import forwarding
from pavane.raft.curve import CurveKeys
from pavane.raft.keys import RaftKeys, ident_of
from pavane.runtime import names
from pavane.runtime.certificates import AUTHORITIES_FILE, CERTIFICATE_FILE, KEY_FILE
from pavane.runtime.local import nearest_local

VARIABLE = "PAVANE_CONNECTION"
"""Environment variable with a connection as JSON, or the path of a file that holds one."""
LOG_VARIABLE = "PAVANE_LOG_CONNECTION"
"""The same for a log: an application may use both."""
MOUNTED = Path("/var/run/secrets/pavane.dev")
ROOT_VARIABLE = "PAVANE_ROOT"
"""What a pod of a local cluster finds its mounts below."""
FILE = "connection.json"
SERVERS_FILE = "servers"
"""What a log's Secret for applications holds beside authority, certificate and key."""
HOSTS = "hosts"
ASK_S = 2.0
PORT_NAME = "raft"


class CannotConnect(Exception):
    """There is no way to the cluster; the text begins with what is wrong: Name, Keys, Quorum, Address or Secret."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A cluster's addresses, and what its members know an application by."""

    name: str
    urls: tuple[str, ...]
    secret: bytes = field(repr=False)
    curve: CurveKeys | None = None
    resolve: Callable[[str], Sequence[str]] = field(default=names.resolve, repr=False, compare=False)

    def text(self) -> str:
        """Return it as JSON on one line."""
        document: dict[str, Any] = {"name": self.name, "urls": self.urls, "secret": self.secret.decode("latin-1")}
        if self.curve is not None:
            keys = {"server": self.curve.server, "public": self.curve.public, "secret": self.curve.secret}
            document["curve"] = {key: value.decode("ascii") for key, value in keys.items()}
        return json.dumps(document)

    @classmethod
    def parse(cls, text: str, place: str) -> Self:
        """Read what ``text`` wrote; raises ``CannotConnect``, which names ``place``."""
        try:
            document = json.loads(text)
            curve = document.get("curve")
            keys = (
                None if curve is None else CurveKeys(*(curve[key].encode() for key in ("server", "public", "secret")))
            )
            return cls(document["name"], tuple(document["urls"]), document["secret"].encode("latin-1"), keys)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CannotConnect(
                f"Keys: {place} holds no connection ({error!r}): `pavane connection NAME -o file` makes one"
            ) from error


@dataclass(frozen=True, slots=True)
class LogConnection:
    """A log's servers, and whom they show a certificate of; ``None`` for one without TLS.

    ``certificate`` and ``key`` are what the client shows, if it has to. ``hosts`` is the file with the addresses of a
    local cluster; ``cluster`` is that where ports have to be forwarded.
    """

    name: str
    servers: tuple[str, ...]
    authority: str | None = None
    hosts: Path | None = None
    cluster: forwarding.Cluster | None = None
    certificate: str | None = None
    key: str | None = field(default=None, repr=False)
    folder: Path | None = None
    """Where authority, certificate and key are kept up to date; then they count as they are there."""

    def text(self) -> str:
        """Return it as JSON on one line, without ``cluster``."""
        hosts = None if self.hosts is None else str(self.hosts)
        document = {"name": self.name, "servers": self.servers, "authority": self.authority, "hosts": hosts}
        document |= {"certificate": self.certificate, "key": self.key}
        return json.dumps({key: value for key, value in document.items() if value is not None})

    @classmethod
    def parse(cls, text: str, place: str) -> Self:
        """Read what ``text`` wrote; raises ``CannotConnect``, which names ``place``."""
        try:
            document = json.loads(text)
            hosts = document.get("hosts")
            servers = tuple(document["servers"])
            hosts = None if hosts is None else Path(hosts)
            pair = document.get("certificate"), document.get("key")
            return cls(document["name"], servers, document.get("authority"), hosts, None, *pair)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CannotConnect(
                f"Keys: {place} holds no connection to a log ({error!r}): `pavane connection waltz/NAME -o file` "
                "makes one"
            ) from error

    @classmethod
    def of(cls, name: str, data: Mapping[str, str], **way: Any) -> Self:
        """Return that of the Secret that the operator keeps; raises ``CannotConnect`` while it names no servers."""
        servers = tuple(data.get(SERVERS_FILE, "").split())
        if not servers:
            raise CannotConnect(f"Quorum: {name} has no servers yet: `pavane why waltz/{name}` says what it waits for")
        certificate, key = data.get(CERTIFICATE_FILE), data.get(KEY_FILE)
        return cls(name, servers, data.get(AUTHORITIES_FILE), certificate=certificate, key=key, **way)


def find(name: str, namespace: str | None = None) -> Connection:
    """Return the connection of a RaftCluster.

    Looked for in the environment, in the mounted Secret, and then, of the clusters that KUBECONFIG, the nearest
    ``.pavane`` of ours or ``~/.kube/config`` name, in the first. Blocks for up to a few times ASK_S. Raises
    ``CannotConnect``.
    """
    if (given := _given(VARIABLE)) is not None:
        return _checked(Connection.parse(given, VARIABLE), name, VARIABLE)
    mounted = _mounted(name) / FILE
    if mounted.is_file():
        return Connection.parse(_read(mounted), str(mounted))
    return _of_kubeconfig(_kubeconfig(name, VARIABLE), name, namespace)


def find_log(name: str, namespace: str | None = None) -> LogConnection:
    """Return the connection of a log, looked for as ``find`` does. Raises ``CannotConnect``."""
    if (given := _given(LOG_VARIABLE)) is not None:
        return _checked(LogConnection.parse(given, LOG_VARIABLE), name, LOG_VARIABLE)
    mounted = _mounted(name)
    if (mounted / SERVERS_FILE).is_file():
        return LogConnection.of(name, {SERVERS_FILE: _read(mounted / SERVERS_FILE)}, folder=mounted)
    path = _kubeconfig(name, LOG_VARIABLE)
    with _cluster(path, namespace, LOG_VARIABLE) as (http, place):
        if _get(http, f"/apis/pavane.dev/v1alpha1/namespaces/{place}/waltzclusters/{name}") is None:
            raise CannotConnect(f"Name: there is no WaltzCluster {name} in namespace {place} of {path}")
        secret = _get(http, f"/api/v1/namespaces/{place}/secrets/{name}-client") or {}
    data = {key: base64.b64decode(value).decode() for key, value in (secret.get("data") or {}).items()}
    return LogConnection.of(name, data, **way_from(path, place))


def way_from(kubeconfig: Path, namespace: str, context: str = "") -> dict[str, Any]:
    """Return ``hosts`` or ``cluster`` of a ``LogConnection``: how names of pods are reached from this machine."""
    hosts = kubeconfig.parent / HOSTS / namespace
    if hosts.exists():
        return {"hosts": hosts}
    return {"cluster": forwarding.Cluster(kubeconfig, namespace, context)}


Given = TypeVar("Given", Connection, LogConnection)


def _checked(found: Given, name: str, variable: str) -> Given:
    if name and found.name != name:
        raise CannotConnect(f"Name: {variable} is a connection to {found.name}, not to {name}")
    return found


def _given(variable: str) -> str | None:
    """Return the connection in a variable, or in the file that it names."""
    given = os.environ.get(variable)
    return _read(Path(given)) if given and not given.lstrip().startswith("{") else given or None


def _mounted(name: str) -> Path:
    return Path(os.environ.get(ROOT_VARIABLE, "/")) / MOUNTED.relative_to("/") / name


def _kubeconfig(name: str, variable: str) -> Path:
    named = os.environ.get("KUBECONFIG")
    kubeconfig = Path(named.partition(os.pathsep)[0]).expanduser() if named else nearest_local()
    kubeconfig = kubeconfig or Path("~/.kube/config").expanduser()
    if not kubeconfig.is_file():
        raise CannotConnect(
            f"Name: nothing here knows a cluster {name}: there is neither {variable} nor {_mounted(name)}, nor a "
            f"kubeconfig; `pavane connection {_typed(variable)} -o env` where there is one prints what to set here"
        )
    return kubeconfig


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CannotConnect(f"Keys: {path} cannot be read: {error}") from error


@contextmanager
def _cluster(path: Path, named: str | None, variable: str) -> Iterator[tuple[httpx2.Client, str]]:
    """Lend a client of the kubeconfig's cluster; with it comes the namespace. ``variable`` would do without it."""
    try:
        config = yaml.safe_load(_read(path)) or {}
        context = _named(config, "context", config.get("current-context"))
    except (yaml.YAMLError, AttributeError, TypeError) as error:
        raise CannotConnect(f"Address: {path} is no kubeconfig: {error}") from error
    with _client(path, config, context, variable) as http:
        yield http, named or context.get("namespace") or "default"


def _of_kubeconfig(path: Path, name: str, named: str | None) -> Connection:
    with _cluster(path, named, VARIABLE) as (http, namespace):
        base = f"/api/v1/namespaces/{namespace}/secrets"
        document = _get(http, f"/apis/pavane.dev/v1alpha1/namespaces/{namespace}/raftclusters/{name}")
        if document is None:
            raise CannotConnect(f"Name: there is no RaftCluster {name} in namespace {namespace} of {path}")
        endpoints = (document.get("status") or {}).get("endpoints") or ()
        urls = tuple(f"tcp://{each['address']}:{each['port']}" for each in endpoints if each.get("name") == PORT_NAME)
        if not urls:
            raise CannotConnect(f"Quorum: {name} serves nobody yet: `pavane why raft/{name}` says what it waits for")
        hosts = path.parent / HOSTS / namespace
        resolve = addresses_in(hosts) if hosts.exists() else names.resolve
        secret = _get(http, f"{base}/{name}-keys")
        if secret is None:
            raise CannotConnect(f"Keys: there is no Secret {name}-keys in namespace {namespace}")
        reference = document["spec"].get("secretRef")
        try:
            given = reference and _get(http, f"{base}/{reference['name']}")
            keys = RaftKeys.of(secret, ident_of(given, reference.get("key", "secret")) if given else None)
        except ValueError as error:
            raise CannotConnect(f"Keys: {error}") from error
    return Connection(name, urls, keys.ident, keys.curve, resolve)


def addresses_in(hosts: Path) -> Callable[[str], Sequence[str]]:
    """Return how names of a local cluster are resolved; the file is read each time."""

    def resolve(host: str) -> Sequence[str]:
        return names.resolve_among(names.parse_hosts(hosts.read_text(encoding="utf-8")), host)

    return resolve


def _typed(variable: str) -> str:
    """How `pavane connection` is told what the variable is for."""
    return f"{'waltz/' if variable == LOG_VARIABLE else ''}NAME"


def _client(path: Path, config: Mapping[str, Any], context: Mapping[str, Any], variable: str) -> httpx2.Client:
    cluster, user = _named(config, "cluster", context.get("cluster")), _named(config, "user", context.get("user"))
    if not cluster.get("server"):
        raise CannotConnect(f"Address: {path} names no cluster in its current context")
    with tempfile.TemporaryDirectory() as folder:  # Python reads certificates and keys from files alone
        authority = _file(path, cluster, "certificate-authority", folder)
        certificate, key = (_file(path, user, what, folder) for what in ("client-certificate", "client-key"))
        trusted = ssl.create_default_context(cafile=authority)
        if certificate is not None:
            trusted.load_cert_chain(certificate, key)
    if certificate is None and not user.get("token"):
        raise CannotConnect(
            f"Keys: {path} has neither token nor certificate for us, and plugins of kubectl are not run: set "
            f"{variable} to what `pavane connection {_typed(variable)} -o file` prints"
        )
    headers = {"Authorization": f"Bearer {user['token']}"} if user.get("token") else {}
    return httpx2.Client(base_url=cluster["server"], headers=headers, verify=trusted, timeout=ASK_S, trust_env=False)


def _file(path: Path, of: Mapping[str, Any], what: str, folder: str) -> Path | None:
    """Return the file of a certificate or key: the one that the kubeconfig ``path`` names, or what it holds itself."""
    data = of.get(f"{what}-data")
    if not data:
        return path.parent / of[what] if of.get(what) else None
    made = Path(folder) / what
    made.write_bytes(base64.b64decode(data))
    return made


def _named(config: Mapping[str, Any], kind: str, name: str | None) -> dict[str, Any]:
    found: dict[str, Any] = next((each for each in config.get(f"{kind}s") or () if each.get("name") == name), {})
    return found.get(kind) or {}


def _get(http: httpx2.Client, path: str) -> dict[str, Any] | None:
    try:
        answer = http.get(path)
    except httpx2.HTTPError as error:
        where = http.base_url
        raise CannotConnect(
            f"Address: the cluster at {where} does not answer: {error}. Start it (`pavane up`)"
        ) from error
    if answer.status_code == httpx2.codes.NOT_FOUND:
        return None
    if answer.is_error:
        raise CannotConnect(f"Keys: the cluster at {http.base_url} refuses {path} ({answer.status_code})")
    document: dict[str, Any] = answer.json()
    return document
