"""From a role to NATS permissions, and from roles to the accounts of a server.

What lives here: pure functions that return subjects and configuration text.  What never lives here:
passwords' origin, files, the server's other settings.

A client of NATS may publish and subscribe what its user is allowed to, by subject.  Beside the
events' own subjects every role has three things: its inbox (``_INBOX.<role>.>``, so that no role
can listen to answers meant for another), reading the log (JetStream's direct get and the log's
state; no consumer, so nothing is made on the server), and nothing else of JetStream.  Only who
``creates`` may make or widen the log; nobody may empty or delete it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainmover.access.roles import EVERYTHING, ROLES, Role
from trainmover.events.catalogue import EVENTS, Event
from trainmover.events.envelope import SUBJECT_ROOT, stream_name
from trainmover.events.probes import PROBE_ROOT

ANY_JOB = "*"
"""Permissions for all jobs of a server."""

ACCOUNT = "TRAINMOVER"
RESPONSE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Permissions:
    """What a user may do.

    Attributes:
        publish: subjects, wildcards included.
        subscribe: subjects, wildcards included.
        responses: may answer on the reply subject of a message that it was sent.
    """

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    responses: bool


def permissions(role: Role, job: str = ANY_JOB) -> Permissions:
    """Subjects of a role in one job, or in all."""
    stream = ANY_JOB if job == ANY_JOB else stream_name(job)
    inbox = f"_INBOX.{role.name}.>"
    publish = [subject_of(model, job) for model in role.says]
    publish += [inbox, f"$JS.API.STREAM.INFO.{stream}", f"$JS.API.DIRECT.GET.{stream}"]
    subscribe = [inbox, *_heard(role.hears, job)]
    if role.creates:
        publish += [f"$JS.API.STREAM.CREATE.{stream}", f"$JS.API.STREAM.UPDATE.{stream}"]
    if role.probes:
        publish.append(f"{PROBE_ROOT}.{job}.*")
    if role.probed:
        subscribe.append(f"{PROBE_ROOT}.{job}.*")
    if role.asks:
        publish += ["$SRV.>"]
    if role.serves:
        subscribe.append("$SRV.>")
    return Permissions(tuple(sorted(set(publish))), tuple(sorted(set(subscribe))), role.probed or role.serves)


def subject_of(model: type[Event], job: str) -> str:
    """The subject on which events of a type are published."""
    base = f"{SUBJECT_ROOT}.{job}.{model.type}"
    # Un-journalled events end in the machine that they are about.
    return base if model.journalled else f"{base}.*"


def accounts(passwords: Mapping[str, str], job: str = ANY_JOB, roles: Iterable[Role] = ROLES.values()) -> str:
    """The part of a server's configuration that says who may do what.

    Args:
        passwords: by role name; a role without one gets no user.
        job: the job that all of them are for; :data:`ANY_JOB`: for all jobs of the server.
    """
    users = "".join(
        _user(role, passwords[role.name], permissions(role, job)) for role in roles if role.name in passwords
    )
    return (
        f"accounts {{\n  {ACCOUNT} {{\n    jetstream: enabled\n    users: [\n{users}    ]\n  }}\n"
        "  SYS { users: [] }\n}\nsystem_account: SYS\n"
    )


def _user(role: Role, password: str, may: Permissions) -> str:
    responses = (
        f'        allow_responses: {{ max: 8, expires: "{RESPONSE_SECONDS}s" }}\n' if may.responses else ""
    )
    return (
        f"      # {role.about}\n"
        f"      {{ user: {json.dumps(role.name)}, password: {json.dumps(password)}, permissions: {{\n"
        f"        publish: {{ allow: {json.dumps(may.publish)} }}\n"
        f"        subscribe: {{ allow: {json.dumps(may.subscribe)} }}\n"
        f"{responses}      }} }}\n"
    )


def _heard(hears: tuple[str, ...], job: str) -> list[str]:
    if EVERYTHING in hears:
        return [f"{SUBJECT_ROOT}.{job}.>"]
    # The bus subscribes to whole areas, and to un-journalled events with a wildcard for the machine.
    return [
        subject_of(EVENTS[name], job) if name in EVENTS else f"{SUBJECT_ROOT}.{job}.{name}.*"
        for name in hears
    ]
