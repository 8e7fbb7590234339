"""Limits of the protocol (docs/specs/ambrosia.md 27)."""

MIB = 1 << 20

HEADER_BYTES = 24  # every record begins with it
RECORD_BYTES = 8 * MIB  # with header; file and wire format
MESSAGE_BYTES_MAX = 64 * MIB  # memory of both sides
NAME_BYTES_MAX = 255  # what is accepted; file names and metadata
NEW_NAME_BYTES_MAX = 63  # what a new instance may be called: a DNS label
BATCH_COUNT_MAX = 1_000_000  # allocation
CHECKPOINT_BYTES_MAX = 64 << 30  # disk
OUTPUT_BUFFER_BYTES = 64 * MIB  # one dead peer
OUTPUT_TOTAL_BYTES = 256 * MIB  # all of them
INPUT_TOTAL_BYTES = 2 * MESSAGE_BYTES_MAX  # unfinished or without room, of all links; the longest to keep some ends
INPUT_BYTES_MIN = 64 * 1024  # of a link, to be counted: less of PEERS_MAX peers is no more than that
UNDELIVERED_BYTES = 64 * MIB  # logged records that a busy application has not read yet
LB_SEND_BYTES = 256 * 1024  # progress shown is near what was handled
LINK_SEND_BYTES = MIB  # bytes of one stream that wait for the socket; more stay in the output buffer
BATCH_BYTES = 256 * 1024  # a batch is one unit for the receiver; small ones keep it reading
PEERS_MAX = 1024  # four streams each
HEAD_BYTES_MAX = OUTPUT_TOTAL_BYTES + 4 * RECORD_BYTES + MESSAGE_BYTES_MAX  # a checkpoint file without the blob
