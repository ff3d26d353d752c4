"""The reference pages that follow from the code: the command line, exit codes, events, drawings.

``tools/generate.py`` (``make contract``) writes them with everything else that follows from the code, and
its ``--check`` finds those that are stale.  The pages under ``docs/reference`` in :func:`pages` are written
whole; in the page of the protocol only what stands between ``<!-- generated: NAME -->`` and
``<!-- end -->`` is.

What never lives here: sentences about what an option or an event means.  They are in the code, where the
option and the event are.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import Enum, StrEnum
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trainmover.cli.app import app
from trainmover.events import catalogue
from trainmover.events.catalogue import EVENTS
from trainmover.services import gaps, health, planner, spares, standby, switcher
from trainmover.services.tables import Table

HEAD = "<!-- Written by tools/generate.py (make contract) from the code; not by hand. -->\n\n"
ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
PROTOCOL = ROOT / "docs" / "explanation" / "protocol.md"

CORES = (health.HealthCore, standby.StandbyCore, planner.PlannerCore, switcher.SwitcherCore)

TABLES: dict[str, tuple[Table[Any], StrEnum]] = {
    "machine": (health.TABLE, health.Health.WELL),
    "spare": (spares.SPARES, spares.Spare.JOINED),
    "gap": (gaps.GAPS, gaps.Gap.OPEN),
    "planner": (planner.TABLE, planner.Phase.IDLE),
    "switch": (switcher.TABLE, switcher.Switch.IDLE),
}
"""What the protocol page draws, by the name of its marks: the tables that the services walk, and where."""

NAMED = 3
"""How many triggers an arrow of a drawing names."""

COMMON = {
    "machine": "name of the machine",
    "incarnation": "which life of the machine: from the start of its program to its end",
    "slot": "number of the rank's process on its machine, from 0",
    "rank": "global rank",
    "generation": "counts the job's starts from nothing",
    "epoch": "number of the layout",
    "base_epoch": "number of the layout that it changes",
    "step": "number of the step, from 0",
    "incident": "id of the incident",
    "incidents": "ids of the incidents that it answers",
    "reason": "why, for a person",
    "error": "last words of the process, for a person",
    "machines": "machines by position in the layout",
    "leavers": "machines that go",
    "joiners": "machines that come",
    "world_size": "number of ranks in the job",
    "ranks_per_machine": "ranks on each machine",
    "positions": "positions in the layout",
    "position": "position in the layout",
    "mode": "whether the rank trains or warms up",
    "role": "name of the machine role; empty where there is none",
    "kind": "what the change is for",
    "pid": "process id",
    "digest": "SHA-256 (hex) over parameters and optimizer state",
    "seconds": "how long it took, in seconds",
    "limit_seconds": "how long it may take, in seconds",
    "peak_rss_bytes": "most memory that the process has had, in bytes",
    "service": "name of the service",
}
"""What fields mean that many events have, where the event itself does not say more."""


# -- the command line ----------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its whole name, in the order of ``--help``."""

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        inner = getattr(command, "commands", None)
        if inner is not None:
            for child, below in inner.items():
                yield from walk(f"{name} {child}", below)
        elif not command.hidden:
            yield name, command

    yield from walk("trainmover", typer.main.get_command(app))


def command_page() -> str:
    """The command line, one section per command."""
    parts = [
        HEAD + "# Command line\n\n"
        "What `trainmover --help` and the help of each command say. Options come before SCRIPT, what follows"
        " it is the script's own. Commands that look at a job find the one that runs on this computer by"
        " themselves; for others say `--bus` and `--job`, or set the [environment variables](environment.md)."
        " What a command's end means for a shell: [exit codes](exit-codes.md).\n"
    ]
    parts += [section(name, command) for name, command in commands()]
    return "\n".join(parts)


def section(name: str, command: Any) -> str:
    """A command: what it does, how it is called, its arguments and options."""
    shown = [p for p in command.params if not p.hidden]
    arguments = [p for p in shown if p.param_type_name == "argument"]
    options = [p for p in shown if p.param_type_name == "option"]
    names = [value_name(p).strip("[].") + ("..." if p.nargs == -1 else "") for p in arguments]
    usage = [n if p.required else f"[{n}]" for n, p in zip(names, arguments, strict=True)]
    lines = [
        f"## {name}\n",
        text_of(command.help or ""),
        f"\n```text\n{' '.join([name, *(['[OPTIONS]'] if options else []), *usage])}\n```\n",
    ]
    rows = [(f"`{value_name(p)}`", plain(p.help), default_of(p)) for p in arguments]
    rows += [(option_name(p), plain(p.help), default_of(p)) for p in options]
    if rows:
        lines.append(table(("argument or option", "meaning", "default"), rows))
    return "\n".join(lines)


def plain(text: str | None) -> str:
    """A help text, in which brackets are brackets and no links."""
    return re.sub(r"([\[\]<>*_])", r"\\\1", text or "")


def value_name(parameter: Any) -> str:
    """What stands for the value of an argument or option."""
    if parameter.metavar:
        return str(parameter.metavar)
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return "{" + ",".join(choice.value for choice in kind) + "}"
    return str(parameter.name).upper()


def option_name(option: Any) -> str:
    """The names of an option and what it takes."""
    value = "" if option.is_flag else f" {value_name(option)}"
    return ", ".join(f"`{name}{value}`" for name in (*option.opts, *option.secondary_opts))


def default_of(parameter: Any) -> str:
    """What an option is when it is not given; empty where the help says it in words."""
    if parameter.required:
        return "required"
    value = parameter.default
    said = getattr(parameter, "show_default", True) is False or getattr(parameter, "is_flag", False)
    if said or value is None or callable(value) or value == ():
        return ""
    return f"`{getattr(value, 'value', value)}`"


def exit_codes() -> dict[str, dict[int, str]]:
    """What the ``Exit codes:`` sentence of each command's help says."""
    found = {}
    for name, command in commands():
        said = re.search(
            r"Exit codes: (.*?)\.\s*(?:\n\n|$)", inspect.cleandoc(command.help or "") + "\n", re.DOTALL
        )
        if said is not None:
            pieces = re.split(r"[;,]\s+(?=\d+ )", " ".join(said[1].split()))
            found[name] = {int(code): meaning for code, meaning in (piece.split(" ", 1) for piece in pieces)}
    return found


def exit_code_page() -> str:
    """What the end of a program means to a shell."""
    rows = [
        (f"[`{name}`](cli.md#{anchor(name)})", f"`{code}`", meaning)
        for name, codes in exit_codes().items()
        for code, meaning in codes.items()
    ]
    return (
        HEAD + "# Exit codes\n\n"
        "Every command ends with 0 when it did what it was asked for, with 1 when that failed (the sentence"
        " on stderr says what, and what to do), with 2 when it was asked for something that cannot be: then"
        " nothing was started. Where a command's code says more:\n\n"
        + table(("command", "code", "meaning"), rows)
    )


# -- events --------------------------------------------------------------------------------------


def event_page() -> str:
    """Every event by area, with its subject, its author and its fields."""
    parts = [
        HEAD + "# Events\n\n"
        "Everything that TrainMover's parts say to one another, from `src/trainmover/events/catalogue`. How a"
        " message looks on the wire, what changes without notice and what does not, is in"
        " [the contract](../../events/README.md); the schemas for machines are beside it.\n\n"
        "A subject has the job's name in it: `trainmover.gpt.machine.failed`. *Kept* events are in the job's"
        " log (the JetStream stream `TRAINMOVER_<job>`), the others are sent once. A field without a default"
        " is always there.\n"
    ]
    areas: dict[str, list[str]] = {}
    for name, model in EVENTS.items():
        areas.setdefault(name.split(".")[0], []).append(event_section(name, model))
    for area, sections in areas.items():
        parts.append(f"## {area}\n")
        parts += sections
    parts.append("## What fields are made of\n")
    parts += [f"### {model.__name__}\n\n{about(model)}\n\n{field_table(model)}" for model in ingredients()]
    return "\n".join(parts)


def event_section(name: str, model: type[catalogue.Event]) -> str:
    """One event."""
    more = ".<machine>" if not model.journalled and "machine" in model.model_fields else ""
    said = [core.name for core in CORES if model in core.SAYS]
    heard = [core.name for core in CORES if model in core.HEARS]
    kept = "kept" if model.journalled else "not kept"
    facts = [
        f"Subject `trainmover.<job>.{name}{more}`, type `io.trainmover.{name}.v{model.version}`, {kept}.",
    ]
    if getattr(model, "local", False):
        facts = [f"Type `io.trainmover.{name}.v{model.version}`; it never travels on the bus."]
    if said:
        facts.append(f"Decided by {listed(said)}.")
    if heard:
        facts.append(f"Heard by {listed(heard)}.")
    fields = field_table(model)
    return f"### {name}\n\n{about(model)}\n\n{' '.join(facts)}\n\n{fields}"


def listed(names: list[str]) -> str:
    """Names of services as words."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def ingredients() -> list[type[BaseModel]]:
    """The small models that events carry, in the order in which the catalogue makes them."""
    members = [value for value in vars(catalogue.base).values() if inspect.isclass(value)]
    return [
        m
        for m in members
        if issubclass(m, BaseModel) and not issubclass(m, catalogue.Event) and m is not BaseModel
    ]


def about(model: type[BaseModel]) -> str:
    """A model's docstring as Markdown."""
    return text_of(inspect.cleandoc(model.__doc__ or ""))


def field_table(model: type[BaseModel]) -> str:
    """The fields of a model; a note where it has none."""
    notes = field_notes(model)
    rows = [
        (
            f"`{name}`",
            type_of(model, name, field),
            field.description or notes.get(name) or COMMON.get(name, ""),
            default_value(field),
        )
        for name, field in model.model_fields.items()
    ]
    return table(("field", "type", "meaning", "default"), rows) if rows else "It has no fields.\n"


def type_of(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    """A field's type as the code writes it, with a link where it is one of ours."""
    written = annotations(model).get(name, getattr(field.annotation, "__name__", str(field.annotation)))
    written = re.sub(r"Annotated\[(.+), Field\(.*\)\]$", r"\1", written)
    written = re.sub(r"Literal\[(.*?)\]", lambda match: match[1].replace(", ", " | "), written)
    ours = {ingredient.__name__ for ingredient in ingredients()}
    names = [word for word in re.findall(r"[A-Z]\w+", written) if word in ours]
    shown = " or ".join(f"`{part}`" for part in written.split(" | "))
    return f"{shown} ([{names[0]}](#{anchor(names[0])}))" if names else shown


def default_value(field: FieldInfo) -> str:
    """A field's default as code."""
    return "" if field.is_required() else f"`{field.get_default(call_default_factory=True)!r}`"


@cache
def class_body(model: type[BaseModel]) -> tuple[ast.stmt, ...]:
    """The statements of a model's class."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(node, ast.ClassDef)
    return tuple(node.body)


def annotations(model: type[BaseModel]) -> dict[str, str]:
    """How the types of fields are written."""
    return {
        node.target.id: ast.unparse(node.annotation)
        for kind in reversed(model.__mro__)
        if issubclass(kind, BaseModel) and kind is not BaseModel
        for node in class_body(kind)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def field_notes(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings that stand below fields."""
    body = class_body(model)
    notes = {}
    for node, below in pairwise(body):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        if (
            isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            notes[node.target.id] = " ".join(inspect.cleandoc(below.value.value).split())
    return notes


# -- Markdown ------------------------------------------------------------------------------------


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table; columns that are empty in all rows are left out."""
    used = [number for number in range(len(heads)) if any(row[number] for row in rows)]

    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell_text(cells[number]) for number in used) + " |"

    return "\n".join([line(heads), "|" + "---|" * len(used), *map(line, rows)]) + "\n"


def cell_text(text: str) -> str:
    """Text that may stand in a cell: one line, no bar, no mark-up of the terminal."""
    # A bar in code ends a cell for one reader of Markdown, a backslash before it shows for another.
    coded = re.sub(r"`([^`]*\|[^`]*)`", lambda match: f"<code>{escape(match[1])}</code>", text_of(text))
    return coded.replace("|", "&#124;").replace("\n", " ")


def text_of(docstring: str) -> str:
    """A docstring as Markdown: code in single backticks, angle brackets that are no HTML."""
    text = inspect.cleandoc(docstring).replace("``", "`").replace("\f", "\n").replace("\b\n", "")
    return re.sub(r"(?<![`\w])<(\w+)>(?!`)", r"`<\1>`", text) if "`" not in text else text


def anchor(title: str) -> str:
    """The anchor that the site gives to a heading."""
    return re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-")


def drawing(states: Table[Any], start: StrEnum) -> str:
    """A table of states as a Mermaid diagram, with one arrow for all triggers that lead to the same state.

    An arrow names the first few of its triggers and counts the rest: the tables have all.
    """
    lines = ["stateDiagram-v2", f"    [*] --> {start}"]
    for state, row in states.items():
        triggers: dict[str, list[str]] = {}
        for trigger, target in row.items():
            triggers.setdefault(target, []).append(trigger)
        for target, found in triggers.items():
            more = len(found) - NAMED
            named = found if more < 2 else [*found[:NAMED], f"and {more} more"]
            lines.append(f"    {state} --> {target}: {'<br/>'.join(named)}")
        if not row:
            lines.append(f"    {state} --> [*]")
    return "\n".join(lines) + "\n"


# -- writing -------------------------------------------------------------------------------------


def pages() -> dict[Path, str]:
    """Every page that follows from the code, and its content."""
    protocol = PROTOCOL.read_text(encoding="utf-8")
    for name, (states, start) in TABLES.items():
        protocol = between_marks(protocol, name, f"```mermaid\n{drawing(states, start)}```\n")
    return {
        REFERENCE / "cli.md": command_page(),
        REFERENCE / "exit-codes.md": exit_code_page(),
        REFERENCE / "events.md": event_page(),
        PROTOCOL: protocol,
    }


def between_marks(text: str, name: str, content: str) -> str:
    """A page's text with one generated part replaced.

    Raises:
        SystemExit: the page has no such marks.
    """
    pattern = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"{PROTOCOL} has no marks for {name}")
    return pattern.sub(lambda match: f"{match[1]}\n{content}\n{match[2]}", text)
