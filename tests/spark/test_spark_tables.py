"""What executors read tables with while views are built."""

import json
from dataclasses import asdict

from pavane.dataflow.sql import parse
from pavane.spark.tables import TABLE, TLS, TableReader
from tests.services.stage.certificates import publish
from tests.services.waltz.test_waltz_clients import Guarded, guarded, shown

__all__ = ["guarded"]

SCRIPT = """
CREATE TABLE t (n BIGINT) USING waltz OPTIONS (partitions '0', format 'json');
CREATE MATERIALIZED VIEW v AS SELECT sum(n) AS n FROM t;
"""
OFFSETS = {"partitions": "0", "startingOffsets": '{"0": 0}', "endingOffsets": '{"0": 1}'}


async def test_they_show_the_certificate_in_the_folder_of_their_pod(guarded: Guarded) -> None:
    (table,) = parse(SCRIPT).tables
    folder = guarded.folder / "client"
    folder.mkdir()
    publish(folder, shown(guarded.clients), guarded.pods)
    server = f"127.0.0.1:{guarded.log.servers[0].port}"
    options = {TABLE: json.dumps(asdict(table)), TLS: str(folder), "servers": server, **OFFSETS}
    async with TableReader(options)._connect()() as log:
        assert await log.append(0, b'{"n": 1}') == 0
