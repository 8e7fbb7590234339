"""The machines of AMBROSIA, without I/O."""
