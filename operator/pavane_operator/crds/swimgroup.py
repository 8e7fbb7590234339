"""`SwimGroup`: who is there, told by its members to each other (docs/specs/operator.md 1.5)."""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from pavane_operator.crds.base import (
    MAP_MAX_ENTRIES,
    NAME_MAX_CHARACTERS,
    Count,
    Mark,
    Model,
    Name,
    marked,
    rule,
    rules,
)
from pavane_operator.crds.common import ResourceRequirements, SingleRoleSpec
from pavane_operator.crds.descriptor import Definition, column
from pavane_operator.crds.rollout import LAG_MAX, CaughtUpSpec, RolloutSpec
from pavane_operator.crds.status import Status, StatusModel
from pavane_operator.crds.values import Quantity

REPLICAS_MAX = 1000
"""As far as the protocol was tried in full view."""
CAPACITY_MIN = 4
"""Members that know fewer others make no connected group."""
CAPACITY_MAX = 65_535
"""More members than one group has; each remembers them all."""
SEEDS_MAX_ITEMS = 30
"""A member takes 32; two are the Services of the generations."""
SEED_PATTERN = r"^([-a-zA-Z0-9._]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}$"
"""`host:port`, the host a name, an IPv4 address, or an IPv6 address in brackets."""
SEED_MAX_CHARACTERS = NAME_MAX_CHARACTERS + 6
GROUP_MAX_CHARACTERS = 255
"""As long as a name in Kubernetes; at most four bytes each, a member takes 1024 (`pavane.swim.config`)."""
SECRET_KEY_PATTERN = r"^[-._a-zA-Z0-9]+$"  # noqa: S105 - of the name of a key
"""As a server wants the keys of a Secret."""
KEYRING_KEY_DEFAULT = "keyring"
"""As in the Secret that is generated."""

REQUESTS_DEFAULT: dict[str, Quantity] = {"cpu": "50m", "memory": "64Mi"}
"""Enough for a few hundred members. A released default never changes: it would roll every group."""


class Profile(StrEnum):
    """The times of the protocol for a kind of network (docs/specs/swim.md 17.1)."""

    LOCAL = "local"
    LAN = "lan"
    WAN = "wan"


class Encryption(StrEnum):
    """What protects the datagrams of a group (docs/specs/swim.md 6.4, 15.2)."""

    NONE = "none"
    PSK = "psk"
    E1 = "e1"
    E0 = "e0"


class SwimResources(ResourceRequirements):
    """Computing resources of the container."""

    requests: dict[str, Quantity] | None = Field(
        default=REQUESTS_DEFAULT, max_length=MAP_MAX_ENTRIES, json_schema_extra=marked(Mark.POD)
    )
    """What the scheduler reserves."""


class KeyringRef(Model):
    """Your own Secret with the keys of the group, and the key in it."""

    name: Annotated[str, Field(min_length=1, max_length=NAME_MAX_CHARACTERS)] = Field(
        json_schema_extra=marked(Mark.LIVE)
    )
    """Name of the Secret, in the same namespace."""
    key: Annotated[str, Field(pattern=SECRET_KEY_PATTERN, max_length=NAME_MAX_CHARACTERS)] = Field(
        default=KEYRING_KEY_DEFAULT, json_schema_extra=marked(Mark.LIVE)
    )
    """Key in its data: at most 8 keys in hexadecimal digits, one per line; the first protects what is sent."""


class SwimCaughtUp(CaughtUpSpec):
    """When a generation counts as caught up."""

    allowed_lag: int = Field(default=0, ge=0, le=LAG_MAX, json_schema_extra=marked(Mark.CONTROL))
    """For how many protocol periods a pod may disagree with the other members about the membership."""


class SwimRollout(RolloutSpec):
    """How a new generation becomes the active one, and your decisions about the current attempt."""

    caught_up: SwimCaughtUp = Field(default_factory=SwimCaughtUp)
    """When a generation counts as caught up."""


class SwimGroupSpec(SingleRoleSpec):
    """Members of a SWIM group: each knows within seconds who is there and who is gone."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.capacity >= self.replicas * 2",
                "capacity must be at least twice replicas, because generations overlap",
            ),
            rule("has(self.group) == has(oldSelf.group)", "group cannot be changed"),
            rule(
                "self.encryption != 'none' || !has(self.keyringSecretRef)",
                "keyringSecretRef is not allowed with encryption none",
            ),
        )
    )

    replicas: int = Field(default=3, ge=1, le=REPLICAS_MAX, json_schema_extra=marked(Mark.LIVE))
    """Number of members that run here. Others may join the group."""
    profile: Profile = Field(default=Profile.LAN, json_schema_extra=marked(Mark.LIVE))
    """Timing of the protocol: `local` for one machine, `lan` for one cluster, `wan` across sites. All members of the
    group should use the same. Changes reach running members within about a minute."""
    capacity: int = Field(default=1024, ge=CAPACITY_MIN, le=CAPACITY_MAX, json_schema_extra=marked(Mark.POD))
    """The most members that each one tracks, including foreign ones; at least twice `replicas`."""
    keyring_secret_ref: KeyringRef | None = Field(default=None, json_schema_extra=marked(Mark.LIVE))
    """Source of the keys of the group; if absent, one is generated. Change the contents of the Secret to rotate keys
    while the members run. With `encryption: psk` it holds the secrets that joiners present."""
    encryption: Encryption = Field(
        default=Encryption.E1,
        json_schema_extra=marked(Mark.POD, **rules(rule("self == oldSelf", "encryption cannot be changed"))),
    )
    """What protects the datagrams: `e1` signs them, `e0` encrypts them, `psk` requires a secret from joiners, `none`
    trusts the network. Cannot be changed. `tls` applies only to the stage port."""
    group: Annotated[str, Field(min_length=1, max_length=GROUP_MAX_CHARACTERS)] | None = Field(
        default=None,
        json_schema_extra=marked(Mark.POD, **rules(rule("self == oldSelf", "group cannot be changed"))),
    )
    """Name of the group; if absent, `namespace/name` of the resource. Set it to join an existing group. Cannot be
    changed."""
    seeds: list[Annotated[str, Field(pattern=SEED_PATTERN, max_length=SEED_MAX_CHARACTERS)]] = Field(
        default_factory=list, max_length=SEEDS_MAX_ITEMS, json_schema_extra=marked(Mark.LIVE)
    )
    """Members elsewhere, as `host:port`. Changes reach running members within about a minute."""
    host_network: bool = Field(default=False, json_schema_extra=marked(Mark.POD))
    """Use the network of the nodes, one member per node: a rollout then needs twice as many nodes."""
    resources: SwimResources = Field(default_factory=SwimResources)
    """Computing resources of the container."""
    rollout: SwimRollout = Field(default_factory=SwimRollout)
    """How a new generation becomes the active one."""


class SwimMembers(StatusModel):
    """Number of members, as one of the pods sees it."""

    alive: Count = 0
    """Members that are alive, including foreign ones."""
    suspect: Count = 0
    """Members that did not answer recently."""
    dead: Count = 0
    """Members declared dead, until they are forgotten."""
    foreign: Count = 0
    """Members, alive or suspect, that are not pods of this resource."""


class SwimGroupStatus(Status):
    """Observed state of a SwimGroup."""

    members: SwimMembers | None = None
    """Number of members. Updated when a pod starts or stops and while members disagree; foreign members appear or
    disappear after at most 30 seconds divided by the number of pods."""
    digest: Name | None = None
    """Digest of the membership, 16 hexadecimal digits; members with the same digest agree."""


DEFINITION = Definition(
    name="SwimGroup",
    plural="swimgroups",
    short="swim",
    spec=SwimGroupSpec,
    status=SwimGroupStatus,
    folder="swim",
    columns=(column("Members", "integer", ".status.members.alive", priority=1),),
    routers=("swimmembers",),
)
