"""The pod template of a SwimGroup's member, from what its revision records (docs/specs/operator.md 4.2)."""

from __future__ import annotations

from typing import Any

from pavane_operator.crds.swimgroup import Encryption, SwimGroupSpec
from pavane_operator.kinds.swim import keys, names
from pavane_operator.objects import pods
from pavane_operator.objects.pods import Inputs, Mount, Port, variable

ACTIVE_MOUNT = "/etc/pavane/active"
ACTIVE_KEY = "generation"
KEYS_MOUNT = "/etc/pavane/keys"

SWIM = Port("swim", names.SWIM_PORT, "UDP")


def template(inputs: Inputs, spec: SwimGroupSpec) -> dict[str, Any]:
    """`spec.template` of the StatefulSet."""
    name = inputs.resource.name
    mounts = [Mount("active", ACTIVE_MOUNT, config_map=names.active(name))]
    environment = [variable("PAVANE_SWIM_ACTIVE", f"{ACTIVE_MOUNT}/{ACTIVE_KEY}")]
    if spec.encryption is not Encryption.NONE:
        mounts.append(Mount("keys", KEYS_MOUNT, secret=keys.name_of(name)))
        role = "PSK" if spec.encryption is Encryption.PSK else "KEYS"
        environment.append(variable(f"PAVANE_SWIM_{role}_FILE", f"{KEYS_MOUNT}/{keys.KEYRING}"))
    return pods.template(
        inputs, names.NAMES, (SWIM,), mounts, environment, resources=spec.resources, host_network=spec.host_network
    )
