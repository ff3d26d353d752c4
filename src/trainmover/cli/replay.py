"""``trainmover events show`` and ``replay``: a recorded log, read and run again through fresh services.

What lives here: the two commands.  What never lives here: feeding and comparing (``services.replay``), why an
incident went as it did (``monitor.explain``), where a log comes from (``source``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import typer
from rich.console import Console

from trainmover.cli.access import BusOption, JobOption
from trainmover.cli.chain import (
    difference_data,
    envelope_data,
    explanation_data,
    explanation_lines,
    print_lines,
    step_data,
    step_lines,
)
from trainmover.cli.source import SourceArgument, log_file, read_source
from trainmover.errors import ConfigError, DecodeError
from trainmover.events.catalogue import AREAS
from trainmover.events.copies import opened
from trainmover.events.envelope import Envelope, parse_time
from trainmover.monitor.facts import line
from trainmover.services.course import Log, Step
from trainmover.services.replay import Replayed, courses, differences, merged, replay_file
from trainmover.services.replay import replay as replay_log

INNER = frozenset({"journal", "timer"})
"""Areas that only services need."""

KEYS = "Enter next, i next of an incident, s next of this service, d next difference, g run on, q quit"

JsonOption = Annotated[bool, typer.Option("--json", help="JSON for tools.")]
IncidentOption = Annotated[
    str | None,
    typer.Option(
        metavar="INCIDENT", show_default=False, help="Only of this incident (id, its beginning, or machine)."
    ),
]


def show(
    source: SourceArgument = None,
    area: Annotated[
        list[str] | None,
        typer.Option(metavar="AREA", show_default=False, help=f"Only some of: {', '.join(AREAS)}."),
    ] = None,
    incident: IncidentOption = None,
    one: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", show_default=False, help="One event with all its fields."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="The services' own events (journal, timer), too.")
    ] = False,
    as_json: JsonOption = False,
    bus: BusOption = None,
    job: JobOption = None,
) -> None:
    """Print the events of a recorded log, or one of them with what caused it and what it caused."""
    unknown = sorted(set(area or ()) - set(AREAS))
    if unknown:
        raise ConfigError(f"no area {', '.join(unknown)}; there are {', '.join(AREAS)}")
    envelopes = _envelopes(source, bus, job)
    if one is not None:
        _show_one(envelopes, one, as_json=as_json)
        return
    wanted = _incident(envelopes, incident)
    areas = set(area or (name for name in AREAS if everything or name not in INNER))
    for envelope in envelopes:
        if envelope.type.split(".")[0] in areas and wanted in (None, envelope.incident):
            print(json.dumps(envelope_data(envelope)) if as_json else line(envelope))


def replay(
    source: SourceArgument = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="ID|TIME", show_default=False, help="Stop after this event or time."),
    ] = None,
    service: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", show_default=False, help="Only this service; may be given many times."),
    ] = None,
    incident: IncidentOption = None,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="INCIDENT",
            show_default=False,
            help="Tell why an incident went as it did (id, its beginning, machine, or 'last').",
        ),
    ] = None,
    step: Annotated[
        bool, typer.Option("--step", help="Go through the decisions one by one; all at once in a pipe.")
    ] = False,
    as_json: JsonOption = False,
    bus: BusOption = None,
    job: JobOption = None,
) -> None:
    """Run a recorded log through fresh services and show what they would decide differently.

    With --explain: who decided what in an incident, from which inputs, and where the time went.
    With --step: every decision, one after another.

    Exit codes: 0 the same decisions; 1 differences.
    """
    moment = _moment(until)
    file = log_file(source)
    if file is not None and explain is None and incident is None and not step:
        try:
            raise typer.Exit(_tell(replay_file(file, service=service or None, until=moment), as_json=as_json))
        except DecodeError as error:
            raise ConfigError(str(error)) from None
    envelopes = _envelopes(source, bus, job)
    if explain is not None:
        _explain(envelopes, explain, as_json=as_json)
        return
    wanted = _incident(envelopes, incident)
    if step:
        log = Log(envelopes)
        steps = merged(courses(log, service=service or None, until=moment, watch=True))
        raise typer.Exit(_step(_of(steps, wanted), as_json=as_json))
    result = replay_log(envelopes, service=service or None, until=moment, incident=wanted)
    raise typer.Exit(_tell(result, as_json=as_json))


def _tell(result: Replayed, *, as_json: bool) -> int:
    if as_json:
        counted = {n: {"inputs": result.inputs[n], "outputs": result.outputs[n]} for n in result.inputs}
        told = [difference_data(item) for item in result.differences]
        print(json.dumps({"same": result.same, "services": counted, "differences": told}))
    else:
        print(result)
    return 0 if result.same else 1


def _envelopes(source: str | None, bus: str | None, job: str | None) -> list[Envelope]:
    return opened(record.envelope for record in read_source(source, bus, job))


def _incident(envelopes: Sequence[Envelope], text: str | None) -> str | None:
    from trainmover.monitor.explain import find

    return None if text is None else find(envelopes, text)


def _moment(text: str | None) -> float | str | None:
    """Unix seconds, an RFC 3339 time, or else an id."""
    if text is None:
        return None
    for read in (float, parse_time):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _show_one(envelopes: Sequence[Envelope], name: str, *, as_json: bool) -> None:
    known = {envelope.id: envelope for envelope in envelopes}
    if name not in known:
        raise ConfigError(f"no event has the id {name!r} in this log")
    envelope = known[name]
    causes = known.get(envelope.cause or "")
    caused = [other for other in envelopes if other.cause == name and not other.type.startswith("journal.")]
    if as_json:
        print(json.dumps({**envelope_data(envelope), "caused": [other.id for other in caused]}))
        return
    print(line(envelope))
    for field, value in envelope.event.model_dump(mode="json").items():
        print(f"    {field}: {json.dumps(value)}")
    if causes is not None:
        print(f"because of  {causes.id}  {line(causes)}")
    for other in caused:
        print(f"caused      {other.id}  {line(other)}")


def _explain(envelopes: Sequence[Envelope], text: str, *, as_json: bool) -> None:
    from trainmover.monitor.explain import bounded, explain, find

    explanation = explain(envelopes, find(envelopes, text))
    if as_json:
        print(json.dumps(explanation_data(explanation)))
        return
    print_lines(Console(highlight=False), explanation_lines(bounded(explanation, 4)))


def _of(steps: Iterable[Step], incident: str | None) -> Iterator[Step]:
    for step in steps:
        if incident is None or incident in _incidents(step):
            yield step


def _incidents(step: Step) -> set[str]:
    found = {envelope.incident for envelope in step.said if envelope.incident}
    return found | ({step.cause.incident} if step.cause is not None and step.cause.incident else set())


def _step(steps: Iterable[Step], *, as_json: bool) -> int:
    """Print decisions one by one, in a terminal as they are asked for; 1 when something differed."""
    console = Console(highlight=False)
    asks = sys.stdin.isatty() and console.is_terminal and not as_json
    differ, skip = False, ""
    if asks:
        console.print(KEYS, style="dim")
    for number, step in enumerate(steps, 1):
        found = differences(step)
        differ |= bool(found)
        if as_json:
            print(json.dumps(step_data(step, number, found)))
            continue
        if _skips(skip, step, differ=bool(found)):
            continue
        print_lines(console, step_lines(step, number, found))
        if asks and skip != "g":
            answer = _ask(console)
            if answer == "q":
                break
            skip = f"s{step.service}" if answer == "s" else answer
        elif not asks:
            console.print()
    return 1 if differ else 0


def _skips(what: str, step: Step, *, differ: bool) -> bool:
    """Whether a step is passed over by what was asked for last."""
    match what[:1]:
        case "i":
            return not _incidents(step)
        case "s":
            return step.service != what[1:]
        case "d":
            return not differ
        case _:
            return False


def _ask(console: Console) -> str:
    while True:
        try:
            answer = console.input("[dim]> [/dim]").strip().lower()[:1]
        except (EOFError, KeyboardInterrupt):
            return "q"
        if answer in ("", "i", "s", "d", "g", "q"):
            return answer
        console.print(KEYS, style="dim")
