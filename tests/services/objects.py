"""A server of object storage, whose objects are files."""

import subprocess
from pathlib import Path

from tests.requires import requires
from tests.services.eventually import eventually
from tests.services.ports import free_ports

ACCESS, SECRET = "archive", "known to the server and the client"
ANSWER_S = 30.0


class S3:
    """A server with one bucket, whose objects are files below ``bucket``."""

    def __init__(self, folder: Path, bucket: str) -> None:
        (self.port,) = free_ports(1)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.bucket = folder / "buckets" / bucket
        self.bucket.mkdir(parents=True)

    @property
    def options(self) -> dict[str, str]:
        """What a client gives the store."""
        keys = {"aws_access_key_id": ACCESS, "aws_secret_access_key": SECRET, "aws_region": "us-east-1"}
        return {**keys, "aws_endpoint": f"http://127.0.0.1:{self.port}"}

    async def begin(self) -> None:
        """Start it, again after ``end`` too, with what it held."""
        self._launch()
        await eventually(self._answers, ANSWER_S)

    def _launch(self) -> None:
        (self._folder / "attributes").mkdir(exist_ok=True)
        where = [f"--port=127.0.0.1:{self.port}", "posix", f"--sidecar={self._folder / 'attributes'}"]
        command = [requires("versitygw"), f"--access={ACCESS}", f"--secret={SECRET}", "--quiet", *where]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen([*command, str(self.bucket.parent)], stdout=log, stderr=log)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        return f":{self.port:04X} 00000000:0000 0A" in Path("/proc/net/tcp").read_text()

    def end(self) -> None:
        """Stop it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
