"""Where a command finds its job: flags first, then the environment, then the local run.

What lives here: the options that several commands share and what they resolve to.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from trainmover.errors import ConfigError
from trainmover.machine import registry

BusOption = Annotated[
    str | None,
    typer.Option(
        "--bus",
        envvar="TRAINMOVER_BUS",
        metavar="URL|DIR",
        show_default=False,
        show_envvar=False,
        help="Address of the NATS server, like nats://host:4222, or a folder made by trainmover credentials. "
        "Default: that of the run going on here.",
    ),
]
JobOption = Annotated[
    str | None,
    typer.Option(
        "--job",
        envvar="TRAINMOVER_JOB",
        metavar="JOB",
        show_default=False,
        show_envvar=False,
        help="Name of the job. Default: that of the run going on here.",
    ),
]


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a job.

    Attributes:
        bus: address, credentials included.
        job: name of the job.
        secret: the job's secret; empty where it is not known.
        link_tls: folder with the certificate for links; empty: links are not encrypted.
    """

    bus: str
    job: str
    secret: str = ""
    link_tls: str = ""


def find(bus: str | None, job: str | None, *, secret: bool = False) -> Access:
    """The job that is meant.

    Args:
        secret: whether the caller needs the job's secret (a machine does).

    Raises:
        ConfigError: it cannot be told; says which flag is missing.
    """
    known = os.environ.get("TRAINMOVER_SECRET", "")
    link_tls = os.environ.get("TRAINMOVER_LINK_TLS", "")
    if bus is not None and "://" not in bus and os.path.isdir(bus):
        from trainmover.access.credentials import read_credentials

        given = read_credentials(Path(bus))
        bus, job = given.bus, job or given.job or None
        known, link_tls = known or given.secret, link_tls or given.link_tls
    if bus is not None and job is not None:
        if secret and not known:
            known = _local_secret(job)
        return Access(bus, job, known, link_tls)
    if bus is not None:
        raise ConfigError("with --bus, say which job with --job too")
    entry = registry.find(job)
    return Access(entry.bus, entry.job, known or (entry.secret if secret else ""), link_tls)


def _local_secret(job: str) -> str:
    try:
        return registry.find(job).secret
    except ConfigError:
        raise ConfigError(
            f"the secret of job {job} is not known here: set TRAINMOVER_SECRET to the content of"
            " the file 'secret' in the run's folder"
        ) from None
