"""The staged life of one pod without I/O: epochs, stages, the token (docs/specs/compute.md 2.3, 2.4, 6).

Duties of whoever drives it: hand in the commands of all streams one at a time; carry out the effects of each call, in
order and to the end, before the next call; report an entered stage by ``entered``. Then the stage only ever grows,
and no effect of a superseded stream follows one of its successor.

A pod that needs no operator walks its stages by the same commands: ``own_walk`` is the stream ``OWN`` with epoch
(0, 0). It takes part in no order of epochs, because it repeats what the pod's own store already says: it neither
supersedes a stream nor is it refused when a stream was served before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pavane.compute.core.ports import EndStream, ExitProcess
from pavane.compute.core.streams import Phase, Stream, StreamsCore
from pavane.compute.wire.commands import (
    AllowWrites,
    Command,
    CreateInstance,
    CreateTimely,
    InitializationComplete,
    Lifecycle,
    RuntimeConfig,
    UpdateConfiguration,
)
from pavane.compute.wire.common import NONCE_BYTES, Epoch, Token
from pavane.compute.wire.responses import Blocker
from pavane.stage.table import Decision, decide
from pavane.wire import LocalProtocolError, Stage

OWN = 0  # stream number of the pod's own walk
OWN_EPOCH = Epoch(0, 0)
EXIT_INCOMPATIBLE = 3  # a fresh process is the simplest correct answer (docs/specs/compute.md 8.4)


@dataclass(frozen=True, slots=True)
class Configure:
    """Apply live settings."""

    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EnterReadOnly:
    """Let the role follow and serve reads, then report ``entered(Stage.READ_ONLY)``."""


@dataclass(frozen=True, slots=True)
class EnterReadWrite:
    """Let the role store ``token`` durably, then write; then report ``entered(Stage.READ_WRITE)``.

    ``told`` are the settings for this moment that this stream sent with the expected state.
    """

    token: Token
    told: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Report:
    """Something that a report contains has changed."""


Effect = EndStream | ExitProcess | Configure | EnterReadOnly | EnterReadWrite | Report


@dataclass(slots=True)
class _Stream(Stream):
    told: dict[str, str] = field(default_factory=dict)
    permission: Token | None = None  # AllowWrites that came before InitializationComplete


class StageCore(StreamsCore[_Stream]):
    """Stage, epochs and token of one pod.

    ``live`` are the keys of UpdateConfiguration that may change at any time, ``told`` those that count in the expected
    state alone and are kept for ``EnterReadWrite``; all others are ignored and counted. ``token`` is the greatest one
    on the pod's volume.
    """

    def __init__(
        self,
        kind: str,
        generation: int,
        *,
        live: frozenset[str] = frozenset(),
        told: frozenset[str] = frozenset(),
        token: Token | None = None,
    ) -> None:
        super().__init__(_Stream)
        self.kind = kind
        self.generation = generation
        self.stage = Stage.CREATION
        self.token = token
        self.blockers: tuple[Blocker, ...] = ()
        self.ignored_settings = 0
        self._live = live
        self._told = told
        self._settings: Mapping[str, str] | None = None
        self._streams[OWN] = _Stream()

    def instance_created(self, stream: int) -> bool:
        """Whether responses may be sent on ``stream``: not before CreateInstance (docs/specs/compute.md 2.5)."""
        state = self._streams.get(stream)
        return state is not None and state.phase >= Phase.EXPECTING

    def receive(self, stream: int, command: Command) -> tuple[Effect, ...]:
        """Return what ``command`` on ``stream`` leads to; nothing for a stream that was ended already."""
        state = self._streams.get(stream)
        if state is None:
            return ()
        decision = decide(state.phase, type(command))
        match decision, command:
            case Decision.TAKE_EPOCH, CreateTimely():
                return self._take_epoch(stream, state, command)
            case Decision.CHECK_INSTANCE, CreateInstance():
                return self._check_instance(state, command)
            case Decision.CONFIGURE, UpdateConfiguration():
                return self._configure(state, command.settings)
            case Decision.COMPLETE, InitializationComplete():
                return self._complete(stream, state)
            case Decision.REMEMBER_WRITES | Decision.ALLOW_WRITES, AllowWrites():
                return self._allow(stream, state, command)
            case Decision.UNIMPLEMENTED, _:
                return self._refuse(stream, "UNIMPLEMENTED", f"a pod of kind {self.kind} takes lifecycle commands only")
            case _:
                return (self._out_of_order(stream, command, state.phase),)

    def own_walk(self, *, to_read_write: bool) -> tuple[Lifecycle, ...]:
        """Return the commands of the pod's own walk, for stream ``OWN`` (docs/specs/operator.md 2.12)."""
        self._streams[OWN] = _Stream()
        token = Token(self.generation, OWN_EPOCH.major)
        if self.token is not None and self.token.generation == self.generation:
            token = self.token
        walk: tuple[Lifecycle, ...] = (
            CreateTimely(OWN_EPOCH, bytes(NONCE_BYTES)),
            CreateInstance(self.kind, self.generation, self._settings or {}),
            InitializationComplete(),
        )
        return (*walk, AllowWrites(token)) if to_read_write else walk

    def begin_anew(self, why: str) -> tuple[Effect, ...]:
        """Begin with Creation, as a process that starts; streams end, for they know of a stage beyond it."""
        self.stage, self.token = Stage.CREATION, None
        return (*(self._end(stream, "UNAVAILABLE", why) for stream in list(self._streams) if stream != OWN), Report())

    def entered(self, stage: Stage, token: Token | None = None) -> tuple[Effect, ...]:
        """Note that the role has entered ``stage``, with ``token`` durable on its volume when it is ReadWrite."""
        if stage <= self.stage:
            raise LocalProtocolError(f"stage {stage.title} after {self.stage.title}: stages only go forward")
        self.stage = stage
        if token is not None:
            self.token = token if self.token is None else max(self.token, token)
        return (Report(),)

    def _take_epoch(self, stream: int, state: _Stream, command: CreateTimely) -> tuple[Effect, ...]:
        ended = () if stream == OWN else self._follow(stream, command)
        if stream not in self._streams:
            return ended
        if command.config != RuntimeConfig():
            return (*ended, ExitProcess(EXIT_INCOMPATIBLE, "CreateTimely asks for another engine than this pod has"))
        state.phase = Phase.GREETED
        return ended

    def _check_instance(self, state: _Stream, command: CreateInstance) -> tuple[Effect, ...]:
        wanted, own = (command.kind, command.generation), (self.kind, self.generation)
        if wanted != own:
            text = f"CreateInstance names {wanted[0]} of generation {wanted[1]}, this pod is {own[0]} of {own[1]}"
            return (ExitProcess(EXIT_INCOMPATIBLE, text),)
        if self._settings is not None and dict(command.settings) != dict(self._settings):
            return (ExitProcess(EXIT_INCOMPATIBLE, "CreateInstance has other settings than those of this process"),)
        self._settings = dict(command.settings)
        state.phase = Phase.EXPECTING
        self.stage = max(self.stage, Stage.INITIALIZATION)
        return (Report(),)

    def _configure(self, state: _Stream, settings: Mapping[str, str]) -> tuple[Effect, ...]:
        live = {key: value for key, value in settings.items() if key in self._live}
        told = {}
        if state.phase is Phase.EXPECTING:
            told = {key: value for key, value in settings.items() if key in self._told}
            state.told |= told
        self.ignored_settings += len(settings) - len(live) - len(told)
        return (Configure(live),) if live else ()

    def _complete(self, stream: int, state: _Stream) -> tuple[Effect, ...]:
        state.phase = Phase.COMPLETE
        effects: tuple[Effect, ...] = (EnterReadOnly(),) if self.stage < Stage.READ_ONLY else (Report(),)
        if state.permission is not None:
            effects += self._allow(stream, state, AllowWrites(state.permission))
        return effects

    def _allow(self, stream: int, state: _Stream, command: AllowWrites) -> tuple[Effect, ...]:
        token = command.token
        if command.id is not None:
            return self._refuse(stream, "UNIMPLEMENTED", f"a pod of kind {self.kind} has no collections to allow")
        if token.generation != self.generation:
            text = f"the token {token} is not of this pod's generation {self.generation}"
            return self._refuse(stream, "FAILED_PRECONDITION", text)
        if state.phase is not Phase.COMPLETE:
            state.permission = token if state.permission is None else max(state.permission, token)
            return ()
        if self.token is not None and self.token.generation > self.generation:
            text = f"the volume holds the token {self.token} of a later generation"
            self.blockers = (Blocker("FenceTooLow", text, {"stored": str(self.token)}),)
            return (Report(),)
        if self.stage is Stage.READ_WRITE or (self.token is not None and token < self.token):
            return (Report(),)
        return (EnterReadWrite(token, dict(state.told)),)

    def _refuse(self, stream: int, code: str, text: str) -> tuple[Effect, ...]:
        return (self._end(stream, code, text),)
