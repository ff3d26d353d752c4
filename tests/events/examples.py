"""Events for tests: one valid example of any model, from a seeded generator."""

from __future__ import annotations

import types
import typing
from random import Random
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trainmover.events.catalogue import Event, MachineLeft
from trainmover.events.envelope import Envelope

JOB = "job"
LIMITS = ("ge", "le", "lt", "min_length")
LETTERS = "abcxyzABCXYZ0189_-"


def left(number: int, source: str = "m0") -> Envelope:
    """A small journalled envelope whose id says its source and number."""
    event = MachineLeft(machine="m0", incarnation="i0", reason=str(number))
    return Envelope(id=f"{source}-{number}", source=source, time=1.5, job=JOB, event=event)


def example(model: type[BaseModel], random: Random) -> Any:
    """A valid instance with random values."""
    hints = typing.get_type_hints(model, include_extras=True)
    return model(**{name: _value(hints[name], field, random) for name, field in model.model_fields.items()})


def envelope(event: Event, random: Random) -> Envelope:
    """An envelope with random names and time around an event."""
    return Envelope(
        id=_name(random),
        source=f"machine/{_name(random)}",
        time=random.uniform(0, 4e9),
        job=JOB,
        event=event,
        incident=random.choice([None, _name(random)]),
        cause=random.choice([None, _name(random)]),
    )


def _name(random: Random) -> str:
    return "".join(random.choices(LETTERS, k=random.randint(1, 20)))


def _value(hint: Any, field: FieldInfo | None, random: Random) -> Any:
    limits: dict[str, Any] = {}
    while get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        for extra in extras:
            parts = extra.metadata if isinstance(extra, FieldInfo) else [extra]
            for part in parts:
                limits.update({key: getattr(part, key) for key in LIMITS if hasattr(part, key)})
    for part in field.metadata if field is not None else ():
        limits.update({key: getattr(part, key) for key in LIMITS if hasattr(part, key)})
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return random.choice(args)
    if origin is tuple and args[-1] is not Ellipsis:
        return tuple(_value(arg, None, random) for arg in args)
    if origin is tuple:
        size = random.randint(limits.get("min_length", 0), 4)
        return tuple(_value(args[0], None, random) for _ in range(size))
    if origin is dict:
        return {_name(random): _value(args[1], None, random) for _ in range(random.randint(0, 3))}
    if origin in (types.UnionType, typing.Union):
        return _value(random.choice(args), None, random)
    if hint is type(None):
        return None
    if hint is bool:
        return random.random() < 0.5
    if hint is int:
        low = limits.get("ge", -100)
        return random.randint(low, min(limits.get("le", 1 << 50), limits.get("lt", 1 << 50) - 1))
    if hint is float:
        return random.choice([0, 1, 0.1, random.uniform(0, 1e9)])
    if hint is str:
        return _name(random)
    if hint is bytes:
        return random.randbytes(random.randint(0, 40))
    return example(hint, random)
