"""A SwimGroup's member pod: member, stage port, ops port, and the pod's own judgement of its fence.

Specified in docs/specs/operator.md 2.12, 3.2 and 4.2, docs/specs/swim.md 16, docs/specs/compute.md 6.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from pavane.compute.wire.common import Token
from pavane.compute.wire.responses import Blocker
from pavane.pods.common import certificates_of, run_pod
from pavane.pods.live import follow
from pavane.pods.staged import PodRole, StagedPod
from pavane.pods.swim_settings import (
    SWIM_PORT,
    SwimPodConfig,
    SwimSettings,
    active_generation,
    live_settings,
    load,
)
from pavane.runtime.metrics import Metric
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

_logger = logging.getLogger(__name__)


class SwimRole(PodRole):
    """The stage server's view of a member, which joins when the pod enters ReadOnly.

    Without a volume there is no token to remember: the operator allows again (D9).
    """

    kind = "swim"
    unit = "periods"

    def __init__(self, settings: SwimSettings, config: SwimPodConfig) -> None:
        super().__init__(settings.generation)
        self._settings = settings
        self._config = config
        self.member: SwimMember | None = None
        self.joined: asyncio.Future[SwimMember] = asyncio.get_running_loop().create_future()
        self._periods: int | None = None
        """How many it took until this was a full member; then it is caught up, and the count stands still."""

    @property
    def active(self) -> int | None:
        """The active generation, as far as this pod knows: by its file or by full members (operator.md 2.12)."""
        heard = self.member.staging.rollout_heard if self.member is not None else 0
        return max(active_generation(self._settings.swim_active) or 0, heard) or None

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
        self.joined.set_result(self.member)

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


class SwimPod(StagedPod[SwimRole]):
    """One pod: the member and everything around it."""

    look_s = 0.5  # a period of the group is longer

    def __init__(self, settings: SwimSettings, config: SwimPodConfig, process: Process) -> None:
        self._settings = settings
        self._control: ControlServer | None = None
        self._judged = False
        role, certificates = SwimRole(settings, config), certificates_of(settings, process)
        super().__init__(settings, process, role, certificates, {"/members": self._members_json})

    async def _end(self) -> None:
        """The member drains and leaves."""
        member = self._role.member
        if member is not None:
            if self._control is not None:
                await self._control.stop()
            if member.failed is None:
                await (member.drain() if member.staging.stage is NodeStage.READ_WRITE else member.leave())
            await member.__aexit__(None, None, None)

    async def _look(self, stage: StageServer) -> None:
        """Walk as far as the pod's generation allows (operator.md 2.12, swim 16.2)."""
        role = self._role
        active = role.active
        if active is not None and not self._judged:
            if active > role.generation:
                await self._rest_fenced()
            # Who was once allowed in stays until it is taken down, though its generation is superseded.
            self._judged = active == role.generation
        if active == role.generation:
            if stage.stage < Stage.READ_ONLY:
                await stage.walk(to_read_write=False)
            elif stage.stage is Stage.READ_ONLY and role.member is not None:
                role.member.promote_when_ready()
                if role.member.staging.stage is NodeStage.READ_WRITE:
                    await stage.walk()

    async def _run(self) -> None:
        """Begin what needs the member, once it is there: its end, live settings, `pavane swim` in this pod."""
        member = await asyncio.shield(self._role.joined)
        if self._settings.live is not None:
            self._process.spawn(follow(self._settings.live, self._set_live), name="live settings")
        try:
            self._control = ControlServer(member, socket_of(self._settings.pod_name))
            await self._control.start()
        except (SwimError, OSError) as error:
            self._control = None
            _logger.warning("`pavane swim` will not work in this pod: %s", error)
        await self._end_with(member)

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

    def _unready(self, stage: Stage) -> str | None:
        member = self._role.member
        if member is None:
            return "the member is not running"
        # The first one of a group has nobody to track it.
        alone = member.own is Own.DIALING and member.staging.stage is NodeStage.READ_WRITE
        return None if member.own is Own.MEMBER or alone else f"not a member of a group: {member.own}"

    def _own_metrics(self) -> Iterable[Metric]:
        member = self._role.member
        return metrics(member) if member is not None else ()

    def _members_json(self) -> dict[str, Any] | None:
        member = self._role.member
        return None if self._process.ending or member is None else members_json(member)

    def _stage_json(self) -> dict[str, Any]:
        member = self._role.member
        digest = member.digest if member is not None else None
        return {**super()._stage_json(), "mark": None if digest is None else digest.xor.hex()}


def run() -> int:
    """Run this pod and return its exit code: 0 stopped or fenced, 1 failed, 2 usage."""
    return run_pod("swim-member", SwimSettings, load, SwimPod)
