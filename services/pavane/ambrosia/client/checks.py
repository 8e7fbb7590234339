"""What must hold between the logs of instances (docs/specs/ambrosia.md 21.2: S1, S3)."""

from collections import Counter
from collections.abc import Iterator

from pavane.ambrosia.wire.messages import BATCH_TYPES, CALL_TYPES, is_impulse, read_batch, read_frames
from pavane.ambrosia.wire.records import LogRecord


class SimulationError(AssertionError):
    """A rule of the protocol was broken, or an application is not deterministic."""


def check_inputs(name: str, records: list[LogRecord], made: dict[str, dict[str, list[bytes]]]) -> None:
    """Check that a log holds what all instances sent to ``name``: all of it, once, in order.

    ``made``: sender to receiver (``""``: itself) to its calls and answers, Impulses left out. Raises
    ``SimulationError``.
    """
    sent = {sender: outputs.get("" if sender == name else name, []) for sender, outputs in made.items()}
    taken: Counter[str] = Counter()
    for record in records:
        body = [raw for raw, impulse in _calls(record.body) if not impulse]
        where = f"record {record.seq} of {name}"
        count = 0
        for source, (_, last) in record.inputs.items():
            sender = source or name
            part = sent.get(sender, [])[taken[sender] : last]
            if len(part) != last - taken[sender]:
                raise SimulationError(f"{where} holds calls up to {last} of {sender}, which made {len(sent[sender])}")
            taken[sender] = last
            count += len(part)
            rest = iter(body)
            if not all(each in rest for each in part):
                raise SimulationError(f"{where} does not hold the calls of {sender} up to {last} in their order")
        if len(body) != count:
            raise SimulationError(f"{where} holds {len(body)} calls, {count} were sent: one is lost or doubled")
    for sender, calls in sent.items():
        if len(calls) != taken[sender]:
            raise SimulationError(f"{sender} sent {len(calls)} calls to {name}, which logged {taken[sender]}")


def _calls(body: bytes) -> Iterator[tuple[bytes, bool]]:
    for message in read_frames(body):
        if message.type in CALL_TYPES:
            for each in read_batch(message) if message.type in BATCH_TYPES else (message,):
                yield each.raw, is_impulse(each.data)
