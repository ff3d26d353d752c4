"""Print what a project depends on, with some of its extras: ``requirements.py pyproject.toml EXTRA...``.

For builds that install what others wrote before the project itself, so that it can be cached.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def requirements(project: dict[str, object], extras: list[str]) -> list[str]:
    """The requirements, extras that name other extras of the project resolved.

    Raises:
        KeyError: there is no such extra.
    """
    optional = project["optional-dependencies"]
    found = list(project["dependencies"])  # type: ignore[call-overload]
    waiting = list(extras)
    while waiting:
        for line in optional[waiting.pop()]:  # type: ignore[index]
            own = re.fullmatch(rf"{project['name']}\[([\w,-]+)\]", line)
            if own:
                waiting += own[1].split(",")
            else:
                found.append(line)
    return sorted(set(found))


if __name__ == "__main__":
    content = tomllib.loads(Path(sys.argv[1]).read_text("utf-8"))
    print(*requirements(content["project"], sys.argv[2:]), sep="\n")
