"""The four stages of a pod's life (docs/specs/compute.md 2.2); several floors name them and no protocol owns them."""

from enum import IntEnum


class Stage(IntEnum):
    """How far a pod has come; forward only. The numbers are those of the wire (docs/specs/compute.md 5)."""

    CREATION = 1
    INITIALIZATION = 2
    READ_ONLY = 3
    READ_WRITE = 4

    @property
    def title(self) -> str:
        """The name that users read in status and output, for example ``ReadOnly``."""
        return _TITLES[self]


_TITLES = {
    Stage.CREATION: "Creation",
    Stage.INITIALIZATION: "Initialization",
    Stage.READ_ONLY: "ReadOnly",
    Stage.READ_WRITE: "ReadWrite",
}
