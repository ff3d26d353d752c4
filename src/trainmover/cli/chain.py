"""How decisions are printed: an incident's chain, and one step of a replay.

What lives here: explanations and steps as lines for a terminal, and as plain data for tools.  What never
lives here: finding them (``monitor.explain``, ``services.course``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainmover.events import catalogue as say
from trainmover.events.envelope import Envelope, format_time
from trainmover.monitor.explain import Decision, Explanation, Fact
from trainmover.monitor.facts import sentence
from trainmover.services.core import CancelTimer, Output, Probe, SetTimer
from trainmover.services.course import Step
from trainmover.services.replay import Difference
from trainmover.services.tables import Moved

SHOWN = 4
"""Inputs of one decision that are shown by name; of more the first, the last and how many."""

BAR = 24

_MORE: dict[type[say.Event], Callable[[Any], str]] = {
    say.MachineProbed: lambda e: f"machine {e.machine} was asked: {e.answer}",
    say.RankStarted: lambda e: f"rank process {e.pid} on {e.machine} slot {e.slot} is up",
    say.SwitchPrepared: lambda e: (
        f"rank {e.rank} on {e.machine} has its links: {e.links_made} made, {e.links_kept} kept"
    ),
    say.SwitchAdopted: lambda e: (
        f"rank {e.rank} on {e.machine} works in epoch {e.epoch} from step {e.step} on"
        + (f", {e.bytes_received} bytes of state received" if e.bytes_received else "")
    ),
    say.RankFinished: lambda e: f"rank {e.rank} on {e.machine} has done its {e.step} steps",
    say.TimerFired: lambda e: f"the timer {e.name} is due",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of output: a head of fixed width, and text that goes on under itself where it is too long."""

    head: Text = field(default_factory=Text)
    body: Text = field(default_factory=Text)


def print_lines(console: Console, lines: Iterable[Line]) -> None:
    """Print them; in a terminal with long texts wrapped under themselves, else each on one line."""
    for line in lines:
        if console.is_terminal and line.head.cell_len:
            grid = Table.grid(expand=False)
            grid.add_column(width=line.head.cell_len, no_wrap=True)
            grid.add_column(overflow="fold")
            grid.add_row(line.head, line.body)
            console.print(grid)
        else:
            console.print(Text.assemble(line.head, line.body), soft_wrap=not console.is_terminal)


def words(event: say.Event) -> str:
    """An event in a few words, any event."""
    text = sentence(event)
    if text is None and (more := _MORE.get(type(event))) is not None:
        text = more(event)
    if text is None:
        fields = event.model_dump(mode="json")
        text = " ".join(f"{name}={str(value)[:40]}" for name, value in fields.items())
    return " ".join(text.split())


# -- an incident -----------------------------------------------------------------------------------


def explanation_lines(explanation: Explanation) -> Iterator[Line]:
    """The whole chain, what it rests on, and where the time went."""
    yield from _head(explanation)
    began = explanation.began
    after_fact = False
    for item in explanation.chain:
        if not (after_fact and isinstance(item, Fact)):
            yield Line()
        after_fact = isinstance(item, Fact)
        if isinstance(item, Fact):
            yield _row(item.time - began, item.envelope)
        else:
            yield from _decision(item, began)
    yield Line()
    yield from _phases(explanation)


def _head(explanation: Explanation) -> Iterator[Line]:
    view = explanation.view
    if view is None:
        first = explanation.chain[0]
        began = first.envelope if isinstance(first, Fact) else first.because
        about = f"  begun by {began.type}: {words(began.event)}"
        yield Line(body=Text.assemble((explanation.incident, "bold"), about))
        return
    comes = f", {view.joiner} takes its place" if view.joiner else ""
    yield Line(body=Text.assemble((explanation.incident, "bold"), f"  {view.kind} of {view.machine}{comes}"))
    told = [f"epoch {view.epoch}"] if view.epoch else []
    told += [f"switched after step {view.step}"] if view.step is not None else []
    told += [f"{view.attempts} switches tried"] if view.attempts > 1 else []
    told += [view.doing] if view.state != "closed" else []
    took = view.times.get("resumed") if view.state == "closed" else None
    if took is not None:
        told.append(f"training went on {took - explanation.began:.3f} s after the first sign")
    yield Line(body=Text("; ".join(told), style="dim"))


def _row(at: float, envelope: Envelope) -> Line:
    return Line(
        Text.assemble((f"{at:+9.3f} s  ", "cyan"), (f"{envelope.source:<13}  ", "dim")),
        Text.assemble((f"{envelope.type}  ", "bold"), words(envelope.event)),
    )


def _decision(item: Decision, began: float) -> Iterator[Line]:
    otherwise = "decides otherwise today" if item.changed else ""
    yield Line(
        Text.assemble((f"{item.time - began:+9.3f} s  ", "cyan"), (f"{item.service}  ", "bold green")),
        Text(otherwise, style="bold red"),
    )
    yield _under("because", _cite(item.because, item.waited))
    if item.inputs:
        yield _under("with", _list(item.inputs))
    if item.knew:
        yield _under("knowing", _list(item.knew, since=item.time))
    for text in _moves(item.moves):
        yield _under("moves", text)
    for text in item.asked:
        yield _under("", text)
    for envelope in item.said:
        yield _under("says", Text.assemble((f"{envelope.type}  ", "bold"), words(envelope.event)))


def _under(what: str, text: str | Text) -> Line:
    return Line(Text(f"{'':13}{what:<9}", style="dim"), text if isinstance(text, Text) else Text(text))


def _cite(envelope: Envelope, waited: float = 0.0) -> str:
    before = "" if waited < 0.0005 else f" {1000 * waited:.0f} ms before"
    return f"{envelope.type} by {envelope.source}{before}: {words(envelope.event)}"


def _list(envelopes: Sequence[Envelope], since: float | None = None) -> str:
    def one(envelope: Envelope) -> str:
        about = f"{envelope.type} by {envelope.source}"
        return about if since is None else f"{about} {since - envelope.time:.1f} s before"

    if len(envelopes) <= SHOWN:
        return ", ".join(map(one, envelopes))
    return f"{one(envelopes[0])} … {one(envelopes[-1])} ({len(envelopes)} inputs)"


def _moves(moves: Iterable[Moved]) -> Iterator[str]:
    for before, trigger, after in moves:
        yield f"{type(before).__name__.lower()}: {before} → {after} ({trigger})"


def _phases(explanation: Explanation) -> Iterator[Line]:
    whole = sum(seconds for _, seconds in explanation.phases)
    if whole <= 0:
        return
    yield Line(body=Text("where the time went", style="bold"))
    for name, seconds in explanation.phases:
        filled = round(BAR * seconds / whole)
        yield Line(
            Text.assemble((f"{seconds:9.3f} s  ", "cyan"), f"{name:<16}"),
            Text.assemble(
                ("█" * filled, "green"), ("░" * (BAR - filled), "dim"), f" {100 * seconds / whole:3.0f} %"
            ),
        )


def explanation_data(explanation: Explanation) -> dict[str, Any]:
    """An explanation as plain data for JSON."""
    view = explanation.view
    return {
        "incident": explanation.incident,
        "kind": view.kind if view else None,
        "machine": view.machine if view else None,
        "joiner": view.joiner if view else None,
        "state": view.state if view else None,
        "epoch": view.epoch if view else None,
        "step": view.step if view else None,
        "attempts": view.attempts if view else None,
        "began": format_time(explanation.began),
        "phases": dict(explanation.phases),
        "chain": [_item_data(item) for item in explanation.chain],
    }


def _item_data(item: Fact | Decision) -> dict[str, Any]:
    if isinstance(item, Fact):
        return {"time": format_time(item.time), "fact": envelope_data(item.envelope)}
    return {
        "time": format_time(item.time),
        "service": item.service,
        "because": item.because.id,
        "waited_seconds": round(item.waited, 6),
        "inputs": [envelope.id for envelope in item.inputs],
        "knew": [envelope.id for envelope in item.knew],
        "moves": [_move_data(moved) for moved in item.moves],
        "asked": list(item.asked),
        "says": [envelope_data(envelope) for envelope in item.said],
        "changed": item.changed,
    }


# -- one step of a replay --------------------------------------------------------------------------


def step_lines(step: Step, number: int, found: Sequence[Difference]) -> Iterator[Line]:
    """One input of one service: what it was, what moved, what came of it, and what differs."""
    yield Line(
        Text.assemble((f"{number:>11}  ", "cyan"), (f"{step.service}  ", "bold green")),
        Text(format_time(step.now)[11:], style="dim"),
    )
    if step.cause is None:
        yield _under("hears", f"{step.input}, which is not in the log")
        return
    where = f" [{step.cause.incident}]" if step.cause.incident else ""
    yield _under("hears", f"{_cite(step.cause)}{where}")
    for text in _moves(step.moves):
        yield _under("moves", text)
    for output in step.outputs:
        if text := _command(output, step.now):
            yield _under("asks", text)
    for envelope in step.said:
        where = f" [{envelope.incident}]" if envelope.incident else ""
        yield _under("says", Text.assemble((f"{envelope.type}  ", "bold"), f"{words(envelope.event)}{where}"))
    for difference in found:
        for line in str(difference).splitlines():
            yield _under("", Text(line, style="red"))


def _command(output: Output, now: float) -> str:
    match output:
        case Probe(machine=machine):
            return f"probe of {machine}"
        case SetTimer(name=name, due=due):
            return f"timer {name} in {due - now:.2f} s"
        case CancelTimer(name=name):
            return f"no timer {name} any more"
        case _:
            return ""


def step_data(step: Step, number: int, found: Sequence[Difference]) -> dict[str, Any]:
    """One step as plain data for JSON."""
    return {
        "step": number,
        "service": step.service,
        "time": format_time(step.now),
        "input": envelope_data(step.cause) if step.cause is not None else {"id": step.input},
        "moves": [_move_data(moved) for moved in step.moves],
        "asks": [text for output in step.outputs if (text := _command(output, step.now))],
        "says": [envelope_data(envelope) for envelope in step.said],
        "differences": [difference_data(difference) for difference in found],
    }


def difference_data(difference: Difference) -> dict[str, Any]:
    """A difference as plain data for JSON."""

    def part(envelope: Envelope | None) -> dict[str, Any] | None:
        return None if envelope is None else envelope_data(envelope)

    return {
        "service": difference.service,
        "kind": difference.kind,
        "incident": difference.incident,
        "because": part(difference.cause),
        "then": part(difference.then),
        "now": part(difference.now),
        "note": difference.note,
    }


def envelope_data(envelope: Envelope) -> dict[str, Any]:
    """An envelope as plain data for JSON."""
    return {
        "id": envelope.id,
        "type": envelope.type,
        "source": envelope.source,
        "time": format_time(envelope.time),
        "job": envelope.job,
        "incident": envelope.incident,
        "cause": envelope.cause,
        "data": envelope.event.model_dump(mode="json"),
    }


def _move_data(moved: Moved) -> dict[str, str]:
    before, trigger, after = moved
    return {"of": type(before).__name__.lower(), "from": str(before), "trigger": trigger, "to": str(after)}
