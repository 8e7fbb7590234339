"""A process with a binding written for these tests: ``python -m tests.services.ambrosia.ball NAME PEER RP SP FOLDER``.

It sends itself Impulses that throw a ball to the peer, until the file ``stop`` is there, and shows its state in a file.
"""

import asyncio
import contextlib
import json
import sys
from pathlib import Path

from tests.services.ambrosia.model import Application

IMPULSES_OPEN_MAX = 20


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        with contextlib.suppress(OSError):
            return await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.02)


async def main(name: str, peer: str, rp: int, sp: int, folder: Path) -> None:
    app = Application(name)
    _, writer = await connect(rp)
    reader, _ = await connect(sp)
    asked = 0

    def show() -> None:
        state = {**app.state, "primary": app.primary, "open": asked - app.goes}
        temporary = folder / f"{name}.new"
        temporary.write_text(json.dumps(state))
        temporary.replace(folder / f"{name}.state")

    while True:
        try:
            data = await asyncio.wait_for(reader.read(1 << 18), 0.02)
            if not data:
                return
            app.feed(data)
        except TimeoutError:
            pass
        if app.primary and not (folder / "stop").exists() and asked < app.state["handled"] + IMPULSES_OPEN_MAX:
            asked += 1
            app.impulse(peer if asked % 3 else name, 2)
        writer.write(bytes(app.outgoing))
        app.outgoing.clear()
        await writer.drain()
        show()


if __name__ == "__main__":
    with contextlib.suppress(ConnectionError):
        asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5])))
