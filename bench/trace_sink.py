"""A collector that reads spans and forgets them: ``python -m bench.trace_sink PORT``."""

import asyncio
import sys

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bench.waltz_node import HOST, until_terminated
from pavane.runtime.http import HttpServer, listen


async def _take(request: Request) -> Response:
    async for _ in request.stream():
        pass
    return Response(media_type="application/x-protobuf")


async def _serve(port: int) -> None:
    app = Starlette(routes=[Route("/v1/traces", _take, methods=["POST"])])
    with listen(HOST, port) as listener:
        server = HttpServer(app, lifespan="off")
        task = asyncio.create_task(server.serve(sockets=[listener]))
        sys.stdout.write("listening\n")
        sys.stdout.flush()
        await until_terminated()
        server.should_exit = True
        await task


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
