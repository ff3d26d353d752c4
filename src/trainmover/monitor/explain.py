"""Why an incident went as it did: who decided what, when, and from which inputs.

What lives here: an incident's *chain*, found in a recorded log: facts that machines and ranks reported, and
decisions of the services, each with the input that was its last straw, what the service had heard for it
before, what moved in its tables (from a replay), and what it said.  What never lives here: how that is
printed (``cli``), feeding cores (``services.course``).

What belongs to an incident: whatever carries its id; the reports of ranks on its epochs; what was noticed
of the machine that goes; and, from there backwards, what caused any of that.  The rest of a log, however
long, is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from trainmover.errors import ConfigError
from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope
from trainmover.monitor.incidents import PHASES, STAGES, IncidentView
from trainmover.monitor.view import ClusterView
from trainmover.services.core import Probe, SetTimer
from trainmover.services.course import Log, Step
from trainmover.services.replay import courses, differences, merged
from trainmover.services.tables import Moved

SIGNS = (
    say.LinkBroken,
    say.LinkUnreached,
    say.LinkReached,
    say.RankExited,
    say.LeaseExpired,
    say.LeaseStalled,
    say.LeaseReturned,
)
"""What may speak against a machine before it is declared dead."""

SIGN_SECONDS = 30.0
"""How long before its verdict a sign still belongs to it."""

OF_AN_EPOCH = (
    say.PlanReady,
    say.SwitchPrepare,
    say.SwitchPrepared,
    say.SwitchAdopted,
    say.SwitchCommitted,
    say.SwitchAborted,
    say.TrainingStarted,
    say.TrainingResumed,
    say.LinkBroken,
    say.LinkUnreached,
    say.LinkReached,
)
"""What is said of an epoch: what it is, and what ranks report on it."""

ROUNDS = 4
"""How often what caused a decision may lead to another decision that belongs to the incident too."""

READINESS = (say.StandbyParked, say.RankStarted, say.RecordingReady, say.MachineJoined)
"""Facts about a machine that a decision on it rests on, though they are older than the incident."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that was reported; no service decided it."""

    time: float
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Decision:
    """What a service made of one input.

    Attributes:
        time: when the service was fed the input, unix seconds.
        service: who decided.
        because: the input.
        inputs: what else it had heard of this incident since its last decision in it.
        knew: older facts about the machines that the decision names.
        moves: transitions in its tables.
        asked: probes and timers, in words.
        said: the events that it answered with, as recorded where the log has them.
        changed: the services of today decide something else.
    """

    time: float
    service: str
    because: Envelope
    inputs: tuple[Envelope, ...]
    knew: tuple[Envelope, ...]
    moves: tuple[Moved, ...]
    asked: tuple[str, ...]
    said: tuple[Envelope, ...]
    changed: bool

    @property
    def waited(self) -> float:
        """Seconds from when the input was said to when it was fed."""
        return max(0.0, self.time - self.because.time)


@dataclass(frozen=True, slots=True)
class Explanation:
    """One incident.

    Attributes:
        incident: its id.
        view: its stages and outcome; None for an incident in which no machine goes (a link made again).
        chain: facts and decisions by time.
        phases: what the time was spent on, seconds, in order.
    """

    incident: str
    view: IncidentView | None
    chain: tuple[Fact | Decision, ...]
    phases: tuple[tuple[str, float], ...]

    @property
    def began(self) -> float:
        """Unix seconds of the first sign."""
        return self.chain[0].time

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions alone."""
        return tuple(item for item in self.chain if isinstance(item, Decision))


def incidents_of(envelopes: Iterable[Envelope]) -> dict[str, str]:
    """The incidents of a log by id, each with a few words, in order of their beginning."""
    view = ClusterView()
    found: dict[str, str] = {}
    for envelope in envelopes:
        view.apply(envelope)
        for name in _named(envelope):
            found.setdefault(name, f"begun by {envelope.type} of {envelope.machine or envelope.source}")
    for name, incident in view.incidents.items():
        goes_to = f", {incident.joiner} comes" if incident.joiner else ""
        found[name] = f"{incident.kind} of {incident.machine}{goes_to}"
    return found


def find(envelopes: Sequence[Envelope], text: str) -> str:
    """The incident that somebody means: an id, the beginning of one, a machine, or ``last``.

    Raises:
        ConfigError: there is none, or more than one; names those there are.
    """
    known = incidents_of(envelopes)
    if text in known:
        return text
    if text == "last" and known:
        return list(known)[-1]
    fits = [name for name in known if name.startswith(text)]
    fits = fits or [name for name, about in known.items() if f" of {text}," in f"{about},"]
    if len(fits) == 1:
        return fits[0]
    there = "".join(f"\n  {name}  {known[name]}" for name in fits or known)
    what = f"{len(fits)} incidents fit {text!r}" if fits else f"no incident {text!r} in this log"
    raise ConfigError(f"{what}; there are:{there}" if there else f"{what}; there is none")


def explain(envelopes: Sequence[Envelope], incident: str) -> Explanation:
    """The chain of one incident.

    Args:
        envelopes: a log, journal entries included.
        incident: an id that :func:`find` gave.
    """
    log = Log(envelopes)
    view = ClusterView()
    for envelope in envelopes:
        view.apply(envelope)
    about = view.incidents.get(incident)
    belongs = _belonging(envelopes, incident)
    every = [step for step in merged(courses(log, watch=True)) if step.cause is not None]
    steps: list[Step] = []
    for _ in range(ROUNDS):
        before = len(steps)
        steps = [step for step in every if _is_part(step, incident, belongs)]
        _add_causes(belongs, steps, log)
        if len(steps) == before:
            break
    decisions = list(_decisions(steps, belongs, log))
    told = {item.id for decision in decisions for item in decision.said}
    facts = [
        Fact(envelope.time, envelope)
        for name, envelope in belongs.items()
        if name not in told and not isinstance(envelope.event, say.TimerFired)
    ]
    chain: list[Fact | Decision] = [*facts, *decisions]
    chain.sort(key=lambda item: (item.time, isinstance(item, Decision)))
    return Explanation(incident, about, tuple(chain), _phases(about))


def _named(envelope: Envelope) -> set[str]:
    """Incidents that an envelope names."""
    event = envelope.event
    names = {envelope.incident} if envelope.incident else set()
    one = getattr(event, "incident", None)
    return names | ({one} if isinstance(one, str) else set()) | set(getattr(event, "incidents", ()))


def _belonging(envelopes: Sequence[Envelope], incident: str) -> dict[str, Envelope]:
    """What belongs to an incident by itself, by id: it names it, reports on its epochs, or is a sign."""
    found = {envelope.id: envelope for envelope in envelopes if incident in _named(envelope)}
    verdicts = [item for item in found.values() if isinstance(item.event, say.MachineFailed)]
    epochs = {item.event.epoch for item in found.values() if isinstance(item.event, say.PlanReady)}
    # Where there was nothing to keep the incident goes on in another generation, under no id.
    launched = {
        item.event.generation
        for item in envelopes
        if isinstance(item.event, say.MachineLaunch) and item.cause in found
    }
    for envelope in envelopes:
        event = envelope.event
        if isinstance(event, say.PlanReady) and event.kind == "start" and event.generation in launched:
            epochs.add(event.epoch)
        if (
            (isinstance(event, OF_AN_EPOCH) and event.epoch in epochs)
            or (isinstance(event, say.CheckpointLoaded) and event.generation in launched)
            or any(_is_sign(envelope, verdict) for verdict in verdicts)
        ):
            found[envelope.id] = envelope
    return found


def _is_sign(envelope: Envelope, verdict: Envelope) -> bool:
    event, machine = envelope.event, verdict.machine
    if not isinstance(event, SIGNS) or not 0 <= verdict.time - envelope.time <= SIGN_SECONDS:
        return False
    if isinstance(event, say.LinkUnreached | say.LinkReached):  # it may be either
        return machine in (event.machine, event.peer_machine)
    accused = event.peer_machine if isinstance(event, say.LinkBroken) else event.machine
    return accused == machine


def _is_part(step: Step, incident: str, belongs: dict[str, Envelope]) -> bool:
    """Whether a step decided something in an incident."""
    said = [*step.said, *(item for item in step.then.values() if item is not None)]
    if any(item.id in belongs for item in said):
        return True
    if any(isinstance(item, SetTimer) and incident in item.name for item in step.outputs):
        return True
    return step.input in belongs and bool(step.moves or said or step.outputs)


def _add_causes(belongs: dict[str, Envelope], steps: Iterable[Step], log: Log) -> None:
    """What caused a decision belongs to the incident too, and so on backwards."""
    roots = [step.cause for step in steps if step.cause is not None]
    while roots:
        envelope = roots.pop()
        belongs.setdefault(envelope.id, envelope)
        before = log.known.get(envelope.cause or "")
        if before is not None and before.id not in belongs and not isinstance(before.event, say.JournalEntry):
            roots.append(before)


def _decisions(steps: Iterable[Step], belongs: dict[str, Envelope], log: Log) -> Iterable[Decision]:
    heard = {service: _heard(log, service) for service in log.journals}
    seen: dict[str, int] = {}
    for step in steps:
        assert step.cause is not None, "a step without its input is no part of an incident"
        order = heard[step.service]
        place = order.index((step.input, step.now))
        since = seen.get(step.service, 0)
        seen[step.service] = place + 1
        inputs = [belongs[name] for name, _ in order[since:place] if name in belongs]
        said = tuple(step.then.get(item.id) or item for item in step.said) or tuple(
            item for item in step.then.values() if item is not None
        )
        yield Decision(
            time=step.now,
            service=step.service,
            because=step.cause,
            inputs=tuple(inputs),
            knew=_knew(said, order[:place], log, {step.input, *(item.id for item in inputs)}),
            moves=step.moves,
            asked=tuple(_asked(step)),
            said=said,
            changed=bool(differences(step)),
        )


def _heard(log: Log, service: str) -> list[tuple[str, float]]:
    """What a service was fed, in order."""
    return [
        pair for entry in log.journals[service] for pair in (*entry.quiet.items(), (entry.input, entry.now))
    ]


def _knew(
    said: Iterable[Envelope], before: Sequence[tuple[str, float]], log: Log, shown: set[str]
) -> tuple[Envelope, ...]:
    """The last that a service had heard of the readiness of each machine that it puts somewhere."""
    names = {
        name
        for item in said
        if isinstance(item.event, say.StandbyAssigned | say.PlanReady)
        for name in (
            (item.event.joiner,) if isinstance(item.event, say.StandbyAssigned) else item.event.joiners
        )
    }
    found: list[Envelope] = []
    for name, _ in reversed(before):
        envelope = log.known.get(name)
        if not names or envelope is None:
            continue
        if isinstance(envelope.event, READINESS) and envelope.event.machine in names:
            names.discard(envelope.event.machine)
            if name not in shown:
                found.append(envelope)
    return tuple(reversed(found))


def _asked(step: Step) -> Iterable[str]:
    for item in step.outputs:
        if isinstance(item, Probe):
            yield f"asks {item.machine} whether it is there"
        elif isinstance(item, SetTimer):
            yield f"waits at most {item.due - step.now:.1f} s ({item.name.partition(':')[0]})"


def _phases(view: IncidentView | None) -> tuple[tuple[str, float], ...]:
    if view is None:
        return ()
    reached = [(stage, view.times[stage]) for stage in STAGES if stage in view.times]
    return tuple((PHASES[stage], max(0.0, time - before)) for (_, before), (stage, time) in pairwise(reached))


def bounded(explanation: Explanation, most: int) -> Explanation:
    """The same with at most so many facts of one type in a row; the first and the last are kept."""
    chain: list[Fact | Decision] = []
    for item in explanation.chain:
        chain.append(item)
        tail = chain[-most - 1 :]
        same = [i for i in tail if isinstance(i, Fact) and isinstance(item, Fact)]
        if len(same) > most and len({i.envelope.type for i in same}) == 1:
            del chain[-2]
    return replace(explanation, chain=tuple(chain))
