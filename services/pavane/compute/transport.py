"""What both ends of a stage stream agree on: path of the call, channel options, the words of a refusal."""

import re

from pavane.compute.wire.codec import METHOD, SERVICE
from pavane.compute.wire.commands import CreateInstance, CreateTimely
from pavane.compute.wire.common import MESSAGE_BYTES_MAX, Epoch
from pavane.parts.silence import SILENT_S

STAGE_PORT = 7070
RPC_NAME = f"{SERVICE}/{METHOD}"
CALL = f"/{RPC_NAME}"
ACCEPTED = "pavane-accepted"  # initial metadata of a call whose CreateTimely was accepted; holds the protocol's major
KEEPALIVE_MS = 4_000  # docs/specs/compute.md 2.1; with the time-out less than the 10 s that users wait for
KEEPALIVE_TIMEOUT_MS = SILENT_S * 1000  # of gRPC's question, and of bytes that nobody acknowledges

# Of one command. A resource has 1.5 MiB at most and the largest plan less. gRPC holds what came of each command that is
# begun, of as many as there are streams, from whoever reaches the port.
COMMAND_BYTES_MAX = 2 << 20
SENDS, RECEIVES = "grpc.max_send_message_length", "grpc.max_receive_message_length"

ChannelOptions = tuple[tuple[str, int], ...]
OPTIONS: ChannelOptions = (
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Nobody of ours packs messages, and what a packed one becomes is known only after it is there: those are refused.
    ("grpc.compression_enabled_algorithms_bitset", 1),
)
SERVER_CONNECTIONS_MAX = 64  # those that drive a pod are few; without a limit strangers take all its descriptors
CONNECTION_STREAMS_MAX = 8  # ours have one each; without a limit gRPC holds thousands that wait for their turn
HANDSHAKE_MS = 5000  # of either end; nothing else notices a connection that goes silent before it
IDLE_MS = 30_000  # a connection without a stream; streams are judged by their certificates, this ends the rest of them
SERVER_OPTIONS: ChannelOptions = (
    *OPTIONS,
    (SENDS, MESSAGE_BYTES_MAX),
    (RECEIVES, COMMAND_BYTES_MAX),
    ("grpc.max_allowed_incoming_connections", SERVER_CONNECTIONS_MAX),
    ("grpc.max_concurrent_streams", CONNECTION_STREAMS_MAX),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
    ("grpc.max_connection_idle_ms", IDLE_MS),
    ("grpc.so_reuseport", 0),  # two programs on one address are a mistake that has to show
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),  # gRPC's own measurements of the bandwidth are pings that nobody can space
)
CLIENT_OPTIONS: ChannelOptions = (
    *OPTIONS,
    (SENDS, COMMAND_BYTES_MAX),
    (RECEIVES, MESSAGE_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),  # a pod's address is never behind a proxy of the environment
    ("grpc.enable_retries", 0),  # a stream is begun again by whoever drives it, with a new epoch
    ("grpc.min_reconnect_backoff_ms", HANDSHAKE_MS),  # a try to connect is given up after it: gRPC would wait for 20 s
    ("grpc.use_local_subchannel_pool", 1),  # the back-off of a former channel must not delay this one
)

UNTRACED = (CreateTimely, CreateInstance)
"""Commands without a span: a stream is dialled again and again while a pod is away, which would be all that is seen."""

SUPERSEDED = "superseded"
_EXITS = re.compile(r"^the replica exits with code (\d+): ")
_STALE = re.compile(r"stale epoch \((\d+), (\d+)\)")


def stale_text(accepted: Epoch) -> str:
    """Return the words that refuse an epoch which is not greater than ``accepted`` (docs/specs/compute.md 2.3)."""
    return f"stale epoch {accepted}"


def stale_epoch(text: str) -> Epoch | None:
    """Return the accepted epoch that a refusal names, or ``None`` when ``text`` is none of these."""
    found = _STALE.search(text)
    return Epoch(int(found[1]), int(found[2])) if found else None


def exit_text(code: int, reason: str) -> str:
    """Return the words with which a replica ends its streams when its process is about to exit."""
    return f"the replica exits with code {code}: {reason}"


def exit_code(text: str) -> int | None:
    """Return the exit code that the end of a stream names, or ``None`` when ``text`` names none."""
    found = _EXITS.search(text)
    return int(found[1]) if found else None
