"""A process that serves an immortal and forks (docs/immortals.md)."""

import asyncio
import os
from pathlib import Path

import pytest

from pavane.ambrosia import serve
from pavane.ambrosia.client.errors import NotPrimary
from tests.services.ambrosia.accounts import Account
from tests.services.ambrosia.test_server import options, running

pytestmark = pytest.mark.timeout(60)


async def test_a_child_has_no_immortal_and_its_parent_goes_on(tmp_path: Path) -> None:
    given = options(tmp_path, "ann")
    async with (
        running(given),
        serve(Account, name="ann", rp=given.receive_port, sp=given.send_port) as handle,
    ):
        assert await handle.call(Account.deposit, 1) == 1
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            said = ["it leads here" if handle.primary else "forked"]
            try:
                for call in (
                    lambda: asyncio.run(handle.call(Account.deposit, 5)),
                    lambda: handle.impulse(Account.deposit, 5),
                    handle.stop,
                ):
                    try:
                        call()
                        said.append("not refused")
                    except NotPrimary as error:
                        said.append(str(error))
                os.write(writer, "\n".join(said).encode())
            finally:
                os._exit(0)
        os.close(writer)
        said = (await asyncio.to_thread(os.read, reader, 10_000)).decode().splitlines()
        os.close(reader)
        await asyncio.to_thread(os.waitpid, child, 0)
        assert len(said) == 4
        assert all("forked" in line for line in said)
        assert await handle.call(Account.deposit, 2) == 3
