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
    """A Secret of yours with the keys of the group, and the key in it."""

    name: Annotated[str, Field(min_length=1, max_length=NAME_MAX_CHARACTERS)] = Field(
        json_schema_extra=marked(Mark.LIVE)
    )
    """Name of the Secret, in the same namespace."""
    key: Annotated[str, Field(pattern=SECRET_KEY_PATTERN, max_length=NAME_MAX_CHARACTERS)] = Field(
        default=KEYRING_KEY_DEFAULT, json_schema_extra=marked(Mark.LIVE)
    )
    """Key in its data: one key per line in hexadecimal digits, at most 8, the first protects what is sent."""


class SwimCaughtUp(CaughtUpSpec):
    """When a generation counts as caught up."""

    allowed_lag: int = Field(default=0, ge=0, le=LAG_MAX, json_schema_extra=marked(Mark.CONTROL))
    """For how many periods of the protocol the other members may have disagreed with a pod about who is there."""


class SwimRollout(RolloutSpec):
    """How a new generation becomes the active one, and the user's decisions about the attempt under way."""

    caught_up: SwimCaughtUp = Field(default_factory=SwimCaughtUp)
    """When a generation counts as caught up."""


class SwimGroupSpec(SingleRoleSpec):
    """Members of a SWIM group: each tells within seconds who is there and who is gone."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("self.capacity >= self.replicas * 2", "capacity must be at least twice replicas: generations overlap"),
            rule("has(self.group) == has(oldSelf.group)", "group cannot be changed"),
            rule(
                "self.encryption != 'none' || !has(self.keyringSecretRef)",
                "encryption none needs no keyringSecretRef",
            ),
        )
    )

    replicas: int = Field(default=3, ge=1, le=REPLICAS_MAX, json_schema_extra=marked(Mark.LIVE))
    """Number of members that run here. Others may join the group."""
    profile: Profile = Field(default=Profile.LAN, json_schema_extra=marked(Mark.LIVE))
    """Times of the protocol: `local` for one machine, `lan` for one cluster, `wan` across places. All members of the
    group should have the same; a change reaches running members within about a minute."""
    capacity: int = Field(default=1024, ge=CAPACITY_MIN, le=CAPACITY_MAX, json_schema_extra=marked(Mark.POD))
    """How many members each one knows at most, those of others included; at least twice `replicas`."""
    keyring_secret_ref: KeyringRef | None = Field(default=None, json_schema_extra=marked(Mark.LIVE))
    """Where the keys of the group come from; absent = one is generated. What the Secret holds may change while the
    members run: that is how keys are rotated. With `encryption: psk` it holds what members show to join."""
    encryption: Encryption = Field(
        default=Encryption.E1,
        json_schema_extra=marked(Mark.POD, **rules(rule("self == oldSelf", "encryption cannot be changed"))),
    )
    """What protects the datagrams: `e1` signs them, `e0` encrypts them, `psk` asks for a secret when a member joins,
    `none` trusts the network. Cannot be changed; `tls` is for the stage port alone."""
    group: Annotated[str, Field(min_length=1, max_length=GROUP_MAX_CHARACTERS)] | None = Field(
        default=None,
        json_schema_extra=marked(Mark.POD, **rules(rule("self == oldSelf", "group cannot be changed"))),
    )
    """Name of the group; absent = `namespace/name` of the resource. Set it to join a group that exists. Cannot be
    changed."""
    seeds: list[Annotated[str, Field(pattern=SEED_PATTERN, max_length=SEED_MAX_CHARACTERS)]] = Field(
        default_factory=list, max_length=SEEDS_MAX_ITEMS, json_schema_extra=marked(Mark.LIVE)
    )
    """Members that others run, as `host:port`; a change reaches running members within about a minute."""
    host_network: bool = Field(default=False, json_schema_extra=marked(Mark.POD))
    """Use the network of the nodes, one member per node: a rollout then needs twice as many nodes."""
    resources: SwimResources = Field(default_factory=SwimResources)
    """Computing resources of the container."""
    rollout: SwimRollout = Field(default_factory=SwimRollout)
    """How a new generation becomes the active one."""


class SwimMembers(StatusModel):
    """How many members the group has, as one of ours sees it."""

    alive: Count = 0
    """Members that are well, those of others included."""
    suspect: Count = 0
    """Members that did not answer lately."""
    dead: Count = 0
    """Members that are held for dead, until they are forgotten."""
    foreign: Count = 0
    """Members, alive or suspect, that are no pods of this resource."""


class SwimGroupStatus(Status):
    """What is known of a SwimGroup."""

    members: SwimMembers | None = None
    """How many members the group has. Looked at when a pod comes or goes and while members disagree; whoever joins or
    leaves elsewhere is seen after at most 30 seconds divided by the number of pods."""
    digest: Name | None = None
    """Digest of who is there, 16 hexadecimal digits: members that have the same agree."""


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
