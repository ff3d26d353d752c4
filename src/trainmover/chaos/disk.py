"""Disks: a small one for the folder of a run, so that it can be full.

What lives here: a file system in memory, mounted on a folder, filled and emptied.  It takes root;
:func:`why_not` says what is missing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from trainmover.errors import ConfigError

SIZE: Final = "192m"
BALLAST: Final = "ballast"
"""The file that fills it."""
BLOCK: Final = bytes(1 << 16)


def mount(folder: Path) -> None:
    """Mount a small disk on a folder.

    Raises:
        ConfigError: that may not be done here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder))


def unmount(folder: Path) -> None:
    """Take it away with all that is on it."""
    if os.path.ismount(folder):
        _run("umount", "--lazy", str(folder))


def fill(folder: Path) -> None:
    """Leave no byte on the disk of a folder."""
    with (folder / BALLAST).open("ab", buffering=0) as file, contextlib.suppress(OSError):
        for block in (BLOCK, BLOCK[:4096], BLOCK[:1]):
            with contextlib.suppress(OSError):
                while True:
                    file.write(block)


def empty(folder: Path) -> None:
    """Give the space back."""
    (folder / BALLAST).unlink(missing_ok=True)


def why_not() -> str:
    """Why there can be no small disk here; empty when there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a small disk (tmpfs) needs Linux and root"
    if shutil.which("mount") is None:
        return "there is no `mount`"
    folder = Path(tempfile.mkdtemp(prefix="trainmover-disk-"))
    try:
        mount(folder)
        unmount(folder)
    except ConfigError as error:
        return str(error)
    finally:
        folder.rmdir()
    return ""


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10.0, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        raise ConfigError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
