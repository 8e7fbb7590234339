"""Of the generated module only that it has messages: ``compute.wire.codec`` walks their descriptors."""

from typing import Any

from google.protobuf.descriptor import FileDescriptor

DESCRIPTOR: FileDescriptor

def __getattr__(name: str) -> Any: ...
