"""What a string of bytes chooses, for attacks that somebody else thinks out."""

from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


class Choices:
    """Numbers out of bytes; when they are used up every choice is the first one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def over(self) -> bool:
        return self._at >= len(self._data)

    def number(self, below: int) -> int:
        byte = 0 if self.over else self._data[self._at]
        self._at += 1
        return byte % below

    def pick(self, items: Sequence[Item]) -> Item:
        return items[self.number(len(items))]

    def bytes(self, most: int) -> bytes:
        length = self.number(most + 1)
        taken = self._data[self._at : self._at + length]
        self._at += length
        return taken
