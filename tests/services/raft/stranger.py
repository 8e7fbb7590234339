"""A program at a peer's address that is none: it answers the first connection in its own way and goes."""

import socket

# A greeting of ZMTP with a mechanism that nobody here has: libzmq tries no more after it.
OTHER_MECHANISM = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"PLAIN".ljust(20, b"\0") + bytes(32)
WAIT_S = 10.0


class Stranger:
    """It listens at ``url`` from its beginning on."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(WAIT_S)
        self.url = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    def answer_and_go(self) -> None:
        """Answer one connection, wait until its maker hangs up, and free the address; blocks until then."""
        connection, _ = self._listener.accept()
        with connection, self._listener:
            connection.settimeout(WAIT_S)
            connection.sendall(OTHER_MECHANISM)
            while connection.recv(1024):
                pass
