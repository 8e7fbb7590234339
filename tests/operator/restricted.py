"""The controls of the *restricted* level of Pod Security Standards, as far as a pod of ours could break them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
SECCOMP = {"RuntimeDefault", "Localhost"}
SYSCTLS = {"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start"}


def violations(spec: Mapping[str, Any]) -> list[str]:
    """What the level forbids in a pod's `spec`; none for a pod that is admitted."""
    return [*_of_pod(spec), *(problem for container in _containers(spec) for problem in _of_container(spec, container))]


def _containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(kind, ())


def _of_pod(spec: Mapping[str, Any]) -> Iterator[str]:
    context = spec.get("securityContext", {})
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name))
    for volume in spec.get("volumes", ()):
        yield from (f"volume {volume['name']}: {kind}" for kind in volume.keys() - {"name"} - VOLUMES)
    yield from (f"sysctl {one['name']}" for one in context.get("sysctls", ()) if one["name"] not in SYSCTLS)
    if context.get("windowsOptions", {}).get("hostProcess"):
        yield "hostProcess"


def _of_container(spec: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[str]:
    name, pod, own = container["name"], spec.get("securityContext", {}), container.get("securityContext", {})
    capabilities = own.get("capabilities", {})
    if own.get("privileged"):
        yield f"{name}: privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation"
    if "ALL" not in capabilities.get("drop", ()):
        yield f"{name}: capabilities are not dropped"
    if set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
        yield f"{name}: capabilities are added"
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield f"{name}: runAsNonRoot"
    if own.get("runAsUser", pod.get("runAsUser")) == 0:
        yield f"{name}: runAsUser 0"
    if own.get("seccompProfile", pod.get("seccompProfile", {})).get("type") not in SECCOMP:
        yield f"{name}: seccompProfile"
    if own.get("procMount", "Default") != "Default":
        yield f"{name}: procMount"
    yield from (f"{name}: hostPort" for port in container.get("ports", ()) if port.get("hostPort"))
