"""The command line. ``main`` is what the ``trainmover`` program runs."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code; see ``trainmover --help``."""
    # Imported here: a program that only wants one helper of this package needs no typer.
    from trainmover.cli.app import app
    from trainmover.errors import ConfigError, TrainMoverError

    try:
        app(prog_name="trainmover")
    except ConfigError as error:
        print(f"trainmover: {error}", file=sys.stderr)
        sys.exit(2)
    except TrainMoverError as error:
        print(f"trainmover: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        # Whoever read our output has seen enough (``trainmover events tail | head``).
        sys.stderr.close()
        sys.exit(0)


__all__ = ["main"]
