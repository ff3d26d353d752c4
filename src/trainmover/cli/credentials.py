"""``trainmover credentials``: accounts, certificates and secrets of a deployment, one folder per role."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmover.access.permissions import ANY_JOB


def credentials(
    folder: Annotated[Path, typer.Argument(metavar="DIR", show_default=False, help="Where to write them.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Name or address under which programs reach the bus; more than once for several. "
            "Default: 127.0.0.1.",
        ),
    ] = None,
    job: Annotated[
        str, typer.Option(metavar="JOB", help="The one job that they are good for; *: for all.")
    ] = ANY_JOB,
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="N", help="Port of the bus.")] = 4222,
    store: Annotated[
        str, typer.Option(metavar="PATH", help="Where the NATS server keeps its log.")
    ] = "/data",
    tls: Annotated[bool, typer.Option("--tls/--no-tls", help="Encrypt the bus and the links.")] = True,
    mounted: Annotated[
        str,
        typer.Option(
            metavar="PATH", show_default=False, help="Where the server will find DIR/bus. Default: in DIR."
        ),
    ] = "",
    keep: Annotated[
        bool, typer.Option("--keep", help="Do nothing when there are credentials in DIR already.")
    ] = False,
) -> None:
    """Make what a cluster's programs need to trust each other: accounts, certificates, the job's secret.

    DIR/bus is for the NATS server (nats-server --config DIR/bus/nats.conf); every other folder is for
    the programs of one role, which are started with --bus DIR/ROLE.  Each holds only what that role needs.
    """
    from trainmover.access.credentials import is_there, write_credentials

    if keep and is_there(folder):
        print(f"{folder} has credentials already")
        return
    written = write_credentials(
        folder, hosts=host or ["127.0.0.1"], job=job, port=port, store=store, tls=tls, mounted=mounted
    )
    folders = sorted({path.parent.name for path in written})
    print(f"{len(written)} files in {folder} for {', '.join(folders)}")
