"""``trainmover events contract``: the public contract, written from the code and held to what was promised.

What lives here: the command.  What never lives here: what the contract says (``events.asyncapi``,
``events.schema``), and which change breaks whom (``events.compatibility``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from trainmover.errors import ConfigError
from trainmover.version import __version__

BASELINE = "baseline.json"


def contract(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where asyncapi.yaml, schemas/ and baseline.json lie.")
    ] = Path("events"),
    check: Annotated[
        bool,
        typer.Option("--check", help="Write nothing; fail when a file is stale or a subscriber would break."),
    ] = False,
    freeze: Annotated[
        bool,
        typer.Option("--freeze", help="A release: later contracts are compared with this one."),
    ] = False,
) -> None:
    """Write the contract of the events: an AsyncAPI document and one JSON Schema per event.

    Whatever is written, the new contract is compared with that of the last release, and changes that would
    break a subscriber are told.

    Exit codes: 0 all is well; 1 stale files (--check), or changes that would break a subscriber.
    """
    from trainmover.events.contract import stale, write

    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}: name the one that is to hold the contract")
    wrong = stale(folder) if check else write(folder)
    for name in wrong:
        print(f"{folder / name}: {'not what the code says' if check else 'written'}")
    if freeze and not check:
        _freeze(folder / BASELINE)
    broken = _compare(folder / BASELINE)
    if check and wrong:
        print("run `trainmover events contract` and commit what it writes")
    raise typer.Exit(1 if broken or (check and wrong) else 0)


def _freeze(path: Path) -> None:
    from trainmover.events.compatibility import frozen

    path.write_text(json.dumps(frozen(), indent=1) + "\n", encoding="utf-8")
    print(f"{path}: the contract of release {__version__}")


def _compare(path: Path) -> bool:
    """Tell what would break somebody; True when there is something."""
    from trainmover.events.compatibility import breaks, frozen

    if not path.is_file():
        raise ConfigError(f"there is no {path} to compare with: `--freeze` makes this contract the first one")
    before = json.loads(path.read_text(encoding="utf-8"))
    found = breaks(before, frozen())
    for item in found:
        print(f"breaks a subscriber: {item}")
    if found:
        print(
            f"compared with release {before['release']}; events/README.md says how such a change is made"
            " (raise the version, one release after the old one was marked deprecated)"
        )
    return bool(found)
