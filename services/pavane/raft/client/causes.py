"""Why nobody answers: the name, the keys, the secret or the quorum, as far as a client can tell."""

import zmq

from pavane.raft.errors import RaftError, Unreachable

FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_OTHER_KEY = "does not accept the CURVE handshake: see that the server's public key is right"


class Causes:
    """What a client saw of its peers; ``encrypts`` says whether it was given CURVE keys."""

    def __init__(self, *, encrypts: bool) -> None:
        self._encrypts = encrypts
        self._unresolved: dict[str, None] = {}
        self._refused: dict[str, str] = {}
        self._up: set[str] = set()
        self._heard: set[str] = set()

    def resolved(self, url: str, *, found: bool) -> None:
        """Take note of whether the name in a url has addresses."""
        if found:
            self._unresolved.pop(url, None)
        else:
            self._unresolved[url] = None

    def event(self, endpoint: str, event: int) -> None:
        """Take note of what ØMQ's monitor told of a connection."""
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._refused.pop(endpoint, None)
            self._up.add(endpoint)
        elif event & FAILED:
            self._refused[endpoint] = self._of_keys(event)
        else:
            if self._encrypts and event == zmq.EVENT_DISCONNECTED and endpoint not in self._up:
                # A server that cannot read the first message of a handshake ends it without a word.
                self._refused.setdefault(endpoint, _OTHER_KEY)
            self._up.discard(endpoint)
            self._heard.discard(endpoint)

    def heard(self, endpoint: str) -> None:
        """Take note of an answer."""
        self._heard.add(endpoint)

    def explain(self, error: RaftError) -> RaftError:
        """Return ``error``; if it says that no peer answers, with the cause."""
        if not isinstance(error, Unreachable):
            return error
        return Unreachable(error.peers, error.tried_for_s, error.reqid, self._why())

    def _why(self) -> str:
        if self._refused and not self._up:
            endpoint, text = next(iter(self._refused.items()))
            return f"Keys: {endpoint} {text}"
        if self._heard & self._up:
            return "Quorum: peers answer, but none of them leads: see that a majority of the members runs"
        if self._up:
            connected = ", ".join(sorted(self._up))
            return f"Secret: {connected} took the connection and answers nothing: see that the cluster secret is right"
        if self._unresolved:
            return f"Name: {', '.join(self._unresolved)} has no address: see that the name is right and its pods run"
        return "Address: nobody takes a connection there: see that the addresses are right and the peers run"

    def _of_keys(self, event: int) -> str:
        if not self._encrypts:
            return "speaks CURVE, and this client has no keys: give curve=CurveKeys(…), or use pavane.connect(name)"
        if event & zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return "does not know this client's key: take the keys that `pavane connection NAME` prints"
        return _OTHER_KEY
