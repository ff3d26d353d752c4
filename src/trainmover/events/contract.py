"""The contract as files: ``asyncapi.yaml``, one JSON Schema per event, and the frozen baseline.

What lives here: what the files hold, which of a folder's are not what the code says, and a small writer
of YAML, so that a program that only looks at events need not install one.  What never lives here: what
the document says (``asyncapi``), which change breaks whom (``compatibility``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trainmover.events.asyncapi import document
from trainmover.events.schema import schemas

DOCUMENT: Final = "asyncapi.yaml"
SCHEMAS: Final = "schemas"
HEAD: Final = "# Written by `trainmover events contract` from src/trainmover/events; not by hand.\n"

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./ ()\-]*[A-Za-z0-9_.)]|[A-Za-z]")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def files() -> dict[str, str]:
    """Every file of the contract and its content, by its path in the folder ``events``."""
    found = {DOCUMENT: HEAD + to_yaml(document())}
    for name, schema in schemas().items():
        found[f"{SCHEMAS}/{name}.json"] = json.dumps(schema, indent=2) + "\n"
    return found


def stale(folder: Path) -> list[str]:
    """Files of a contract's folder that are missing, are not what the code says, or belong to nothing."""
    wanted = files()
    wrong = [name for name, text in wanted.items() if _read(folder / name) != text]
    there = (path.relative_to(folder).as_posix() for path in (folder / SCHEMAS).glob("*.json"))
    return wrong + sorted(name for name in there if name not in wanted)


def write(folder: Path) -> list[str]:
    """Bring a contract's folder up to date; the names of the files that were not."""
    wanted = files()
    changed = stale(folder)
    for name in changed:
        path = folder / name
        if name in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[name], encoding="utf-8")
        else:
            path.unlink()
    return changed


def to_yaml(value: Any) -> str:
    """Plain data (maps, lists, text, numbers, booleans, nothing) as a YAML document in block style."""
    return "".join(f"{line}\n" for line in _lines(value, 0))


def _lines(value: Any, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _entry(f"{indent}{_scalar(key)}:", inner, depth + 1)
    else:
        for inner in value:
            yield from _item(indent, inner, depth)


def _entry(head: str, value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, dict | list | tuple) and value:
        yield head
        yield from _lines(value, depth)
    elif isinstance(value, str) and "\n" in value:
        yield f"{head} |-"
        yield from (f"{'  ' * depth}{line}".rstrip() for line in value.split("\n"))
    else:
        yield f"{head} {_scalar(value)}"


def _item(indent: str, value: Any, depth: int) -> Iterator[str]:
    """An element of a list: a map or list begins on the line of its dash."""
    if isinstance(value, dict | list | tuple) and value:
        first, *rest = _lines(value, depth + 1)
        yield f"{indent}- {first.lstrip()}"
        yield from rest
    else:
        yield from _entry(f"{indent}-", value, depth + 1)


def _scalar(value: Any) -> str:
    """A value on one line; text is quoted (as JSON, which YAML reads alike) unless it is surely plain."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
