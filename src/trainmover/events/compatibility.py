"""Whether a changed contract still serves those who wrote against the last one.

What lives here: the *frozen* form of a contract (``events/baseline.json``), and :func:`breaks`, which
compares two of them.  Pure.  What never lives here: where contracts come from.

Two kinds of programs must go on working, and each change is judged for both:

- *Readers* subscribe.  What they know must go on coming, under the same subject, with the same fields of
  the same types.  They pass over events, fields and values of enumerations that they do not know.
- *Writers* are programs that ask for something (``move.requested``), and every log that the last release
  left behind, which this one must be able to replay.  What was right to say must stay right: no new field
  without a default, nothing narrower than before.

So an event may be added, a field with a default, a value of an enumeration; limits may get wider.  Anything
else needs notice: an event or field may only go when the last release said that it would
(``deprecated``), and a raised version takes its old version away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from trainmover.events.asyncapi import ASKED, ATTRIBUTES, OPTIONAL, address, public
from trainmover.events.schema import schema_of
from trainmover.version import __version__

Rule = Literal[
    "removed event",
    "changed version",
    "changed subject",
    "no longer kept",
    "removed header",
    "changed header",
    "removed field",
    "changed type",
    "may be another type",
    "newly required",
    "narrowed enum",
    "narrowed limit",
    "changed pattern",
    "changed default",
]

LOWER: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
EXACT: Final = ("pattern", "format")

_FOR_PEOPLE: Final = frozenset({"$schema", "$id", "title", "description"})

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Break:
    """One change that breaks somebody.

    Attributes:
        event: type name of the event, or ``headers``.
        field: path of the field in it; empty: the event itself.
        rule: which rule it goes against.
        note: what was and what is.
    """

    event: str
    field: str
    rule: Rule
    note: str = ""

    def __str__(self) -> str:
        where = f"{self.event}, field {self.field}" if self.field else self.event
        return f"{where}: {self.rule}{f' ({self.note})' if self.note else ''}"


def frozen() -> dict[str, Any]:
    """The contract of this code in the form that is kept for the next release to be compared with."""
    asked = {model.type for model in ASKED}
    return {
        "release": __version__,
        "headers": {name: {**about, "required": name not in OPTIONAL} for name, about in ATTRIBUTES.items()},
        "events": {
            name: {
                "version": model.version,
                "subject": address(model),
                "kept": model.journalled,
                "asked": name in asked,
                "deprecated": bool(model.deprecated),
                "schema": _bare(schema_of(model)),
            }
            for name, model in sorted(public().items())
        },
    }


def breaks(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Break]:
    """What a change from one frozen contract to another breaks; empty when it breaks nobody."""
    found = list(_headers(before["headers"], now["headers"]))
    for name, old in before["events"].items():
        found += _event(name, old, now["events"].get(name))
    return found


def _headers(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Break]:
    for name, old in before.items():
        new = now.get(name)
        if new is None or (old["required"] and not new["required"]):
            yield Break("headers", name, "removed header")
        elif any(old.get(key) != new.get(key) for key in ("type", "const", "pattern", "format")):
            yield Break("headers", name, "changed header")
        elif new["required"] and not old["required"]:
            yield Break("headers", name, "newly required")
    for name, new in now.items():
        if name not in before and new["required"]:
            yield Break("headers", name, "newly required")


def _event(name: str, old: Mapping[str, Any], new: Mapping[str, Any] | None) -> Iterator[Break]:
    if new is None:
        if not old["deprecated"]:
            yield Break(name, "", "removed event")
        return
    if new["version"] != old["version"]:
        if not old["deprecated"]:
            yield Break(name, "", "changed version", f"{old['version']}, now {new['version']}")
        return
    if new["subject"] != old["subject"]:
        yield Break(name, "", "changed subject", f"{old['subject']}, now {new['subject']}")
    if old["kept"] and not new["kept"]:
        yield Break(name, "", "no longer kept")
    compare = _Comparison(name, old["schema"], new["schema"], asked=old["asked"])
    yield from compare.fields("", old["schema"], new["schema"])


class _Comparison:
    """Two schemas of one event, each with its own definitions."""

    def __init__(self, event: str, before: Schema, now: Schema, *, asked: bool) -> None:
        self._event = event
        self._before = before.get("$defs", {})
        self._now = now.get("$defs", {})
        self._asked = asked

    def fields(self, path: str, old: Schema, new: Schema) -> Iterator[Break]:
        """An object: its fields, then what became necessary to say."""
        there = new.get("properties", {})
        for name, was in old.get("properties", {}).items():
            inner = f"{path}.{name}" if path else name
            if name not in there:
                if not was.get("deprecated"):
                    yield self._break(inner, "removed field")
                continue
            yield from self._value(inner, was, there[name])
            defaulted = self._asked and "default" in was and name not in new.get("required", ())
            if defaulted and was["default"] != there[name].get("default", ...):
                yield self._break(inner, "changed default", f"was {was['default']!r}")
        for name in new.get("required", ()):
            if name not in old.get("required", ()):
                yield self._break(f"{path}.{name}" if path else name, "newly required")
        if isinstance(old.get("additionalProperties"), dict):
            yield from self._value(f"{path}.*", old["additionalProperties"], new["additionalProperties"])
            names, now = old.get("propertyNames", {}), new.get("propertyNames", {})
            yield from self._same_type(f"{path}.(name)", names, now)

    def _value(self, path: str, old: Schema, new: Schema) -> Iterator[Break]:
        """A field: every type that it could have, with one of the same type that it can have now."""
        was = {_type(variant): variant for variant in _variants(old, self._before)}
        has = {_type(variant): variant for variant in _variants(new, self._now)}
        gone, more = was.keys() - has.keys(), has.keys() - was.keys()
        if gone:
            yield self._break(path, "changed type", f"{_names(was)}, now {_names(has)}")
            return
        if more:
            yield self._break(path, "may be another type", f"{_names(was)}, now {_names(has)}")
        for kind, variant in was.items():
            yield from self._same_type(path, variant, has[kind])

    def _same_type(self, path: str, old: Schema, new: Schema) -> Iterator[Break]:
        values = _values(new)
        if values is not None:
            lost = [value for value in _values(old) or ["any other"] if value not in values]
            if lost:
                yield self._break(path, "narrowed enum", f"without {', '.join(map(str, lost))}")
        for key in (*LOWER, *UPPER):
            sign = 1 if key in LOWER else -1
            if key in new and (key not in old or sign * new[key] > sign * old[key]):
                yield self._break(path, "narrowed limit", f"{key} {old.get(key, 'none')}, now {new[key]}")
        for key in EXACT:
            if old.get(key) != new.get(key) and not (key == "pattern" and key not in new):
                yield self._break(path, "changed pattern", f"{key} {old.get(key)}, now {new.get(key)}")
        if "properties" in old or isinstance(old.get("additionalProperties"), dict):
            yield from self.fields(path, old, new)
        if "items" in old or "items" in new:
            yield from self._value(f"{path}[]", old.get("items", {}), new.get("items", {}))
        places = old.get("prefixItems", ())
        for place, (was, has) in enumerate(zip(places, new.get("prefixItems", ()), strict=False)):
            yield from self._value(f"{path}[{place}]", was, has)

    def _break(self, path: str, rule: Rule, note: str = "") -> Break:
        return Break(self._event, path, rule, note)


def _variants(schema: Schema, definitions: Mapping[str, Any]) -> Iterator[Schema]:
    """The alternatives of a schema, references followed."""
    if "$ref" in schema:
        yield from _variants(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions)
    elif "anyOf" in schema:
        for inner in schema["anyOf"]:
            yield from _variants(inner, definitions)
    else:
        yield schema


def _type(schema: Schema) -> str:
    """The JSON type; arrays of a fixed length and maps are types of their own."""
    kind = schema.get("type")
    if kind == "object" and "properties" not in schema:
        return "map"
    if kind == "array" and "prefixItems" in schema:
        return f"tuple of {len(schema['prefixItems'])}"
    return str(kind)


def _values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return list(schema["enum"]) if "enum" in schema else None


def _names(variants: Mapping[str, Schema]) -> str:
    return " or ".join(sorted(variants))


def _bare(schema: Any) -> Any:
    """The schema without what only people read."""
    if isinstance(schema, dict):
        return {
            key: _bare(value)
            for key, value in schema.items()
            if isinstance(value, dict) or (key not in _FOR_PEOPLE and not key.startswith("x-"))
        }
    if isinstance(schema, list):
        return [_bare(value) for value in schema]
    return schema
