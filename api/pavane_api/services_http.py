"""Where the pod behind the Service of a resource is reached."""

from pavane.runtime import names


async def address_of(namespace: str, name: str) -> str:
    """Return the address of a Service, as it stands in a URL. Raises ``socket.gaierror``."""
    return names.bracketed((await names.look_up(names.resolve_service, f"{name}.{namespace}.svc"))[0])
