"""What must hold between the logs of instances (docs/specs/ambrosia.md 21.2: S1, S3)."""

from collections import Counter

from pavane.ambrosia.wire.batches import calls_of
from pavane.ambrosia.wire.messages import is_impulse
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
        body = [call.raw for call in calls_of(record.body) if not is_impulse(call.data)]
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
