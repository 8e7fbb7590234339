"""Builds ``compute_pb2`` from ``compute.proto``; with ``--check`` only says whether the committed file is current.

Needs grpcio-tools (a development dependency). There are no generated gRPC stubs: the one call of the service is
registered by its name with raw bytes, so that bytes which do not decode end the stream with ``INVALID_ARGUMENT``
(docs/specs/compute.md 2.4) and not with gRPC's own ``INTERNAL``.
"""

import argparse
import importlib.util
import re
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE_ROOT = HERE.parents[2]
SOURCE = (HERE / "compute.proto").relative_to(SOURCE_ROOT)
GENERATED = "compute_pb2.py"
HEADER = "# mypy: ignore-errors\n"
DESCRIPTOR = re.compile(r"AddSerializedFile\((b'.*')\)")


def build(target: Path) -> str:
    """Generate into ``target`` and return the module; raises ``SystemExit`` when the source is refused."""
    if importlib.util.find_spec("grpc_tools") is None:
        raise SystemExit("grpcio-tools is missing; `make setup` installs it")
    from grpc_tools import protoc  # type: ignore[import-untyped]  # noqa: PLC0415 - a development dependency

    code = protoc.main(
        [
            "protoc",
            f"--proto_path={SOURCE_ROOT}",
            f"--proto_path={files('grpc_tools') / '_proto'}",
            f"--python_out={target}",
            str(SOURCE),
        ]
    )
    if code:
        raise SystemExit(code)
    return HEADER + (target / SOURCE.parent / GENERATED).read_text(encoding="utf-8")


def _essence(module: str) -> str:
    """What makes a module stale: the messages. The code around them differs between releases of the compiler."""
    found = DESCRIPTOR.search(module)
    return found[1] if found else ""


def main() -> int:
    """Write the generated module, or compare it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the committed file is stale")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        built = build(Path(folder))
    present = HERE / GENERATED
    if present.exists() and _essence(present.read_text(encoding="utf-8")) == _essence(built):
        return 0
    if check:
        sys.stderr.write(f"stale: {GENERATED}; run `make protos` and commit the result\n")
        return 1
    present.write_text(built, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
