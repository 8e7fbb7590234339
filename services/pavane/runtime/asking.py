"""HTTP requests to a server that is not trusted: bytes, time and depth of an answer are bounded."""

import asyncio
from typing import Any

import httpx2

from pavane.parts import documents

ANSWER_BYTES_MAX = 1 << 20  # parsed it takes some 25 times as much in the worst case; no document of ours comes near


class AnswerRefused(ValueError):
    """An answer that is larger, or packed otherwise, than what was asked for; the text says which."""


class Answer:
    """The status and the bytes of an answer."""

    def __init__(self, status: int, content: bytes) -> None:
        self.status = status
        self._content = content

    @property
    def good(self) -> bool:
        """Whether the status is one of success."""
        return httpx2.codes.is_success(self.status)

    def json(self) -> Any:
        """Return the content as JSON. Raises ``ValueError``, and ``TooDeep`` beyond DEPTH_MAX."""
        return documents.parse(self._content)

    def text(self) -> str:
        """Return the content as UTF-8; what is none is replaced."""
        return self._content.decode("utf-8", "replace")

    def document(self) -> dict[str, Any]:
        """Return the JSON object of a good answer. Raises ``ValueError`` for any other one."""
        told = self.json() if self.good else None
        if not isinstance(told, dict):
            raise ValueError(f"an answer with status {self.status} and no JSON object")
        return told


async def ask(
    http: httpx2.AsyncClient,
    verb: str,
    url: str,
    *,
    within_s: float,
    connect_s: float | None = None,
    bytes_max: int = ANSWER_BYTES_MAX,
    headers: dict[str, str] | None = None,
    **request: Any,
) -> Answer:
    """Send a request and read its answer whole within ``within_s`` seconds, ``connect_s`` of them for the connection.

    No compression is asked for, and a packed answer is refused: what it would become is known only after it is there.

    Raises ``httpx2.HTTPError``, also when the time is over, and ``AnswerRefused``: more than ``bytes_max`` bytes.
    """
    limit = httpx2.Timeout(within_s, connect=min(within_s, connect_s or within_s))
    plain = {**(headers or {}), "Accept-Encoding": "identity"}
    try:
        async with (
            asyncio.timeout(within_s),
            http.stream(verb, url, headers=plain, timeout=limit, **request) as answer,
        ):
            coding = answer.headers.get("Content-Encoding", "identity")
            if coding != "identity":
                raise AnswerRefused(f"an answer packed with {coding[:20]!r}, which nobody asked for")
            content = bytearray()
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > bytes_max:
                    raise AnswerRefused(f"an answer of more than {bytes_max} bytes")
            return Answer(answer.status_code, bytes(content))
    except TimeoutError as error:
        raise httpx2.ReadTimeout(f"no whole answer within {within_s:g} s") from error
