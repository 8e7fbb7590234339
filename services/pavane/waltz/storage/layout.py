"""The bytes of a storage folder's control file and mark file (docs/specs/waltz.md 12.1, 12.3)."""

import struct

CONTROL_FILE = "waltz-storage.ctl"
MARK_FILE = "waltz-storage.pav"
HEADER_BYTES = 128
CONTROL_HEAD = struct.Struct(">iq16si")
CONTROL_LAYOUT = struct.Struct(">qqqii")  # session, LWM, local LWM, flags, sequence
MARK_LAYOUT = struct.Struct(">qqqqi")  # fence, mark, damaged from, sequence, 0
CONTROL_ENTRY_BYTES = 4 + 2 * (CONTROL_LAYOUT.size + 4)
MARK_ENTRY_BYTES = 2 * (MARK_LAYOUT.size + 4)
ENTRY_BYTES = CONTROL_ENTRY_BYTES, MARK_ENTRY_BYTES
FLAG_AVAILABLE, FLAG_ASSIGNED = 1, 4
SOUND, REBUILDING = -1, -2  # in place of the first damaged transaction
