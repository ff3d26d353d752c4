"""Logs: one line per fact, for a person in a terminal and as JSON everywhere else.

What lives here: how the programs set up logging, and what every line carries.  What never lives
here: what is worth a line.  Libraries below the programs use :mod:`logging` as always, or
:func:`get` for facts with fields; both come out alike.

A line has ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``event`` (the fact) and, where they are
known, ``job``, ``machine``, ``service``, ``epoch``, ``step``, ``rank``, ``incident``.  What is the same
for the whole program is given once (:func:`bind`); what changes is asked for with each line
(:func:`follow`), in whatever thread it is written.

Quiet by default: warnings and errors only.  ``-v``, ``--log-level`` and ``TRAINMOVER_LOG`` say
otherwise; ``TRAINMOVER_LOG_FORMAT`` (``human``, ``json``) overrides what the stream suggests.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from trainmover.errors import ConfigError

LEVEL_VARIABLE: Final = "TRAINMOVER_LOG"
FORMAT_VARIABLE: Final = "TRAINMOVER_LOG_FORMAT"
LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("human", "json")
FACTS: Final = ("job", "service", "machine", "epoch", "step", "rank", "incident")
"""What a line carries where it is known, in the order in which it is shown."""

_COLOURS: Final = {"debug": "2", "info": "36", "warning": "33", "error": "31", "critical": "1;31"}
_HEAD: Final = frozenset({"time", "level", "logger", "event", "exception"})

_always: dict[str, Any] = {}
_following: list[Callable[[], Mapping[str, Any]]] = []


def start(level: str | None = None, stream: TextIO | None = None, *, root: str | None = None) -> None:
    """Write log lines to a stream from now on.

    Args:
        level: one of :data:`LEVELS`; None: as ``TRAINMOVER_LOG`` says, else ``warning``.
        stream: where to; stderr by default.
        root: only this logger and those below it, if nobody has set up logging yet: what a library
            may do in somebody else's program.  None: all loggers of the process.

    Raises:
        ConfigError: there is no such level or format.
    """
    chosen = level_of(level or os.environ.get(LEVEL_VARIABLE) or "warning")
    stream = sys.stderr if stream is None else stream
    if root is not None and logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(stream)
    before: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
    ]
    last: list[Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        _add_facts,
        structlog.processors.format_exc_info,
        _renderer(stream),
    ]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=before, processors=last))
    target = logging.getLogger(root)
    for old in [old for old in target.handlers if isinstance(old.formatter, type(handler.formatter))]:
        target.removeHandler(old)
    target.addHandler(handler)
    target.setLevel(chosen)
    if root is not None:
        target.propagate = False


def get(name: str) -> structlog.stdlib.BoundLogger:
    """A logger that takes a fact and its fields: ``log.info("machine.failed", machine="m1")``."""
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.render_to_log_kwargs,
        ],
    )
    return logger


def bind(**facts: Any) -> None:
    """Facts that hold for the whole program: its job, its machine."""
    _always.update(facts)


def follow(facts: Callable[[], Mapping[str, Any]]) -> None:
    """Facts that change: asked for with each line. Must be quick and must not log."""
    _following[:] = [facts]


def facts_of(envelope: Any) -> dict[str, Any]:
    """What a line about an envelope carries: its id and whatever its event says of the usual facts."""
    found = {"id": envelope.id, "incident": envelope.incident, "cause": envelope.cause}
    for name in ("machine", "epoch", "step", "rank", "reason"):
        found[name] = getattr(envelope.event, name, None)
    return {name: value for name, value in found.items() if value not in (None, "")}


def level_of(name: str) -> int:
    """The number of a level.

    Raises:
        ConfigError: there is none of this name.
    """
    if name.lower() not in LEVELS:
        raise ConfigError(f"there is no log level {name!r}; there are {', '.join(LEVELS)}")
    return int(getattr(logging, name.upper()))


def readable(line: str) -> str:
    """A line of a log for a person: JSON lines as sentences, anything else as it is."""
    if not line.startswith("{"):
        return line
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    if not isinstance(entry, dict) or "event" not in entry or "level" not in entry:
        return line
    return _human(None, "", entry, colours=False)


def _renderer(stream: TextIO) -> Processor:
    wanted = os.environ.get(FORMAT_VARIABLE) or ("human" if stream.isatty() else "json")
    if wanted not in FORMATS:
        raise ConfigError(f"{FORMAT_VARIABLE} is {wanted!r}; it can be {' or '.join(FORMATS)}")
    if wanted == "json":
        return _json
    colours = stream.isatty() and not os.environ.get("NO_COLOR")

    def human(logger: WrappedLogger, method: str, entry: EventDict) -> str:
        return _human(logger, method, entry, colours=colours)

    return human


def _add_facts(logger: WrappedLogger, method: str, entry: EventDict) -> EventDict:
    head = {
        # Made here and not where the line was written: a handler writes at once.
        "time": structlog.processors.TimeStamper(fmt="iso", utc=True)(logger, method, {})["timestamp"],
        "level": entry.pop("level", ""),
        "logger": entry.pop("logger", ""),
        "event": entry.pop("event", ""),
    }
    known = dict(_always)
    for facts in _following:
        known.update({name: value for name, value in facts().items() if value is not None})
    # "message" is there when another handler has formatted the same record before.
    known.update({name: value for name, value in entry.items() if name != "message"})
    ordered = {name: known[name] for name in FACTS if name in known}
    return head | ordered | {name: value for name, value in known.items() if name not in ordered}


def _json(logger: WrappedLogger, method: str, entry: EventDict) -> str:
    return json.dumps(entry, default=str, ensure_ascii=False)


def _human(logger: WrappedLogger, method: str, entry: EventDict, *, colours: bool) -> str:
    level = str(entry.get("level", ""))
    mark, end = (f"\x1b[{_COLOURS.get(level, '0')}m", "\x1b[0m") if colours else ("", "")
    clock = str(entry.get("time", "")).partition("T")[2][:12]
    name = str(entry.get("logger", "")).removeprefix("trainmover.")
    fields = "".join(f" {key}={_plain(value)}" for key, value in entry.items() if key not in _HEAD)
    # What others say may hold anything; a terminal gets one line and no escapes.
    text = f"{clock} {mark}{level:<7}{end} {name}: {_plain(entry.get('event', ''))}{fields}"
    lines = str(entry.get("exception", "")).splitlines()
    return "\n".join((text, *map(_plain, lines)))


def _plain(value: Any) -> str:
    return "".join(char if char.isprintable() else " " for char in str(value))
