"""An application whose files of the time before flows could begin anew lie in ``former_log``; it must not change."""

from pavane.ambrosia import Immortal, first, gather, method


def fetch(text: str) -> int:
    """Something outside."""
    if text == "bad":
        raise OSError("no such thing")
    return len(text)


class Former(Immortal):
    """All that a flow could wait for."""

    notes: list[str]
    count: int = 0

    @method
    def note(self, text: str) -> int:
        self.notes = [*self.notes, text]
        self.count += 1
        return self.count

    @method
    async def works(self, text: str) -> str:
        begun = await self.now()
        self.note(f"{text} {self.random.randrange(1000)}")
        one, two = await gather(self.run(fetch, text), self.call(Former.note, self.name, f"{text} called"))
        try:
            await self.run(fetch, "bad")
        except OSError as error:
            self.fork(Former.note, self.name, str(error))
        await self.sleep(0.05)
        self.start(Former.follows, text)
        return f"{one + two > 0} {await self.now() >= begun} {self.uuid()}"

    @method
    async def follows(self, text: str) -> None:
        self.note(f"{text} followed {self.count > 0}")

    @method
    async def waits(self, text: str) -> str:
        await self.run(fetch, text)
        answer = await first(self.call(Former.note, "nobody", text), self.sleep(1_000_000_000))
        return f"{text} {answer}"
