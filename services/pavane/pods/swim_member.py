"""A SwimGroup's member pod: member, stage port, ops port, and the pod's own judgement of its fence.

Specified in docs/specs/operator.md 2.12, 3.2 and 4.2, docs/specs/swim.md 16, docs/specs/compute.md 6.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from pavane.compute.wire import Blocker, Token
from pavane.pods.common import certificates_of, rest_fenced, run_pod, stage_json, stage_metrics
from pavane.pods.live import follow
from pavane.pods.swim_settings import (
    SWIM_PORT,
    SwimPodConfig,
    SwimSettings,
    active_generation,
    live_settings,
    load,
)
from pavane.runtime.metrics import Metric
from pavane.runtime.ops import OpsServer
from pavane.runtime.process import EXIT_FAILED, Process
from pavane.stage.role import RoleReport
from pavane.stage.server import StageServer
from pavane.swim.config import Start
from pavane.swim.control import ControlServer, members_json, socket_of
from pavane.swim.core.outputs import Happened, Own
from pavane.swim.core.staging import CaughtUp, StagingStatus
from pavane.swim.errors import SwimError
from pavane.swim.member import SwimMember
from pavane.swim.metrics import metrics
from pavane.swim.wire.values import NodeStage
from pavane.wire import Stage

KIND = "swim"  # CreateInstance.kind (docs/specs/compute.md 5)
LOOK_S = 0.5  # how often the pod looks how far it may walk; a period of the group is longer

_logger = logging.getLogger(__name__)


class SwimRole:
    """The stage server's view of a member, which joins when the pod enters ReadOnly."""

    kind = KIND
    unit = "periods"
    live_settings: frozenset[str] = frozenset()
    told_settings: frozenset[str] = frozenset()
    token: Token | None = None  # without a volume there is none to remember: the operator allows again (D9)

    def __init__(self, settings: SwimSettings, config: SwimPodConfig) -> None:
        self._settings = settings
        self._config = config
        self.generation = settings.generation
        self.fenced = False
        self.member: SwimMember | None = None
        self._periods: int | None = None
        """How many it took until this was a full member; then it is caught up, and the count stands still."""

    @property
    def active(self) -> int | None:
        """The active generation, as far as this pod knows: by its file or by full members (operator.md 2.12)."""
        heard = self.member.staging.rollout_heard if self.member is not None else 0
        return max(active_generation(self._settings.swim_active) or 0, heard) or None

    def configure(self, settings: Mapping[str, str]) -> None:
        """A member has no live settings on the stage port, so the stage server never calls this."""

    async def read_only(self) -> None:
        """Join the group as an observer; a pod of the active generation becomes a full member by itself (swim 16.2)."""
        if self.member is not None:
            return
        start = Start.SELF if self.active == self.generation else Start.ORDERED
        member = SwimMember(
            dataclasses.replace(self._config.member, start=start),
            (self._settings.pod_ip, SWIM_PORT),
            self._config.seeds,
            keys_file=self._settings.swim_keys_file,
            psk_file=self._settings.swim_psk_file,
        )
        self.member = await member.__aenter__()

    async def read_write(self, token: Token, told: Mapping[str, str]) -> bool:
        """Become a full member; not before the member is caught up, as its blockers say."""
        return self.member is not None and self.member.promote()

    def report(self) -> RoleReport:
        """Return what the member says of itself to an operator."""
        if self.member is None:
            return RoleReport(done=self.fenced)
        status = self.member.staging
        if self._periods is None and status.stage >= NodeStage.READ_WRITE:
            self._periods = status.target
        return RoleReport(
            progress=status.progress if self._periods is None else self._periods,
            target=status.target if self._periods is None else self._periods,
            blockers=self._blockers(status),
            leads=status.stage is NodeStage.READ_WRITE and status.agreeing >= status.wanted,
            done=self.fenced,
        )

    def _blockers(self, status: StagingStatus) -> tuple[Blocker, ...]:
        if self.member is not None and self.member.own is Own.DIALING and status.stage < NodeStage.READ_WRITE:
            return (Blocker("NoGroup", "no member of the group admits this one: none answers, or keys differ"),)
        if status.stage is NodeStage.READ_ONLY and status.caught_up is CaughtUp.NO:
            text = f"{status.agreeing} of {status.wanted} full members agree with this one about who is there"
            return (Blocker("CatchingUp", text),)
        return ()


class SwimPod:
    """One pod: the member and everything around it, between ``start`` and ``stop``."""

    def __init__(self, settings: SwimSettings, config: SwimPodConfig, process: Process) -> None:
        self._settings = settings
        self._process = process
        self._role = SwimRole(settings, config)
        certificates = certificates_of(settings, process)
        self._stage = StageServer(self._role, process.exit, host=settings.pod_ip, certificates=certificates)
        self._ops = OpsServer(
            host=settings.pod_ip,
            live=self._live_fault,
            ready=self._ready_fault,
            metrics=self._metrics,
            documents={"/stage": self._stage_json, "/members": self._members_json},
        )
        self._control: ControlServer | None = None
        self._last_words: dict[str, Any] | None = None
        """What the pod said of itself when it began to stop."""

    async def start(self) -> None:
        """Open the ops port and the stage port; the member follows by the stages. Raises ``OSError``."""
        await self._ops.start(self._process)
        await self._stage.start()
        self._process.spawn(self._walk(), name="fence")

    async def stop(self) -> None:
        """Stop in order: streams hear that the pod goes, the member drains and leaves, the ports close."""
        self._last_words = self._stage_json()
        await self._stage.stop()
        member = self._role.member
        if member is not None:
            if self._control is not None:
                await self._control.stop()
            if member.failed is None:
                await (member.drain() if member.staging.stage is NodeStage.READ_WRITE else member.leave())
            await member.__aexit__(None, None, None)
        await self._ops.stop()

    async def _walk(self) -> None:
        """Walk as far as the pod's generation allows, whenever that is further (operator.md 2.12, swim 16.2)."""
        role, stage = self._role, self._stage
        judged, opened = False, False
        while not self._process.ending:
            active = role.active
            if active is not None and not judged:
                if active > role.generation:
                    role.fenced = True
                    await rest_fenced(self._process, stage, role.generation)
                # Who was once allowed in stays until it is taken down, though its generation is superseded.
                judged = active == role.generation
            if active == role.generation:
                if stage.stage < Stage.READ_ONLY:
                    await stage.walk(to_read_write=False)
                elif stage.stage is Stage.READ_ONLY and role.member is not None:
                    role.member.promote_when_ready()
                    if role.member.staging.stage is NodeStage.READ_WRITE:
                        await stage.walk()
            if role.member is not None and not opened:
                opened = True
                await self._member_is_there(role.member)
            stage.notify()
            await asyncio.sleep(LOOK_S)

    async def _member_is_there(self, member: SwimMember) -> None:
        """Begin what needs the member: its end, live settings, the commands of `pavane swim` in this pod."""
        self._process.spawn(self._end_with(member), name="swim member")
        if self._settings.live is not None:
            self._process.spawn(follow(self._settings.live, self._set_live), name="live settings")
        try:
            self._control = ControlServer(member, socket_of(self._settings.pod_name))
            await self._control.start()
        except (SwimError, OSError) as error:
            self._control = None
            _logger.warning("`pavane swim` will not work in this pod: %s", error)

    async def _end_with(self, member: SwimMember) -> None:
        async for event in member.events():
            _logger.info("%s%s", event.kind, f" {event.member.id}" if event.member is not None else "")
            if event.kind is Happened.ID_CONFLICT and member.own is Own.OUT:
                # It would never come back: the next start asks whether the other one is still there.
                self._process.exit(EXIT_FAILED, f"another process of this pod's name lives at {event.address}")

    def _set_live(self, values: dict[str, object]) -> None:
        member, live = self._role.member, live_settings(values)
        if member is None:
            return
        if live.profile is not None:
            member.set_profile(live.profile)
        if live.seeds is not None:
            try:
                member.set_seeds(live.seeds)
            except SwimError as error:
                raise ValueError(str(error)) from error

    def _live_fault(self) -> str | None:
        member = self._role.member
        return str(member.failed) if member is not None and member.failed is not None else None

    def _ready_fault(self) -> str | None:
        member = self._role.member
        if self._process.ending or member is None:
            return "the member is not running"
        if self._role.fenced:
            return "fenced by a later generation"
        if self._stage.stage < Stage.READ_ONLY:
            return f"stage {self._stage.stage.title}"
        # The first one of a group has nobody to track it.
        alone = member.own is Own.DIALING and member.staging.stage is NodeStage.READ_WRITE
        return None if member.own is Own.MEMBER or alone else f"not a member of a group: {member.own}"

    def _metrics(self) -> list[Metric]:
        if self._process.ending:
            return []
        member = self._role.member
        return [*stage_metrics(self._stage), *(metrics(member) if member is not None else ())]

    def _members_json(self) -> dict[str, Any] | None:
        member = self._role.member
        return None if self._process.ending or member is None else members_json(member)

    def _stage_json(self) -> dict[str, Any]:
        if self._last_words is not None:
            return self._last_words
        member = self._role.member
        digest = member.digest if member is not None else None
        mark = None if digest is None else digest.xor.hex()
        return {**stage_json(self._stage.report(), self._settings.generation), "mark": mark}


def run() -> int:
    """Run this pod and return its exit code: 0 stopped or fenced, 1 failed, 2 usage."""
    return run_pod("swim-member", SwimSettings, load, SwimPod, {OSError: EXIT_FAILED})
