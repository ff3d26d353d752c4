"""The commands that the documentation shows exist, with the options and values that it shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from trainmover.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "events/*.md", "services/**/*.md", "deploy/**/*.md")
    for path in ROOT.glob(pattern)
)
BLOCK = re.compile(r"^(`{3,})([^\n]*)\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
SHELLS = {"console", "bash", "sh", "shell", ""}
ENDS = {"|", "||", "&&", ";", "&", "(", ")"}
BEFORE = {"exec", "sudo", "nohup", "time", "srun", "env", "$", "do", "then"}
"""Words that may stand before a command."""


def lines(text: str) -> Iterator[str]:
    """The lines of all blocks that are for a shell or say nothing of themselves; a backslash joins lines."""
    for block in BLOCK.finditer(text):
        if block[2].split(" ")[0] in SHELLS:
            yield from re.sub(r"\\\n\s*", " ", block[3]).splitlines()


def calls(line: str) -> Iterator[list[str]]:
    """The simple commands of a line, as words."""
    lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;()")
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        words = list(lexer)
    except ValueError:
        return  # output of a program, with a quotation mark
    call: list[str] = []
    for word in [*words, ";"]:
        if word in ENDS:
            if call:
                yield call
            call = []
        elif not call and (word in BEFORE or re.fullmatch(r"[A-Z_]+=.*", word)):
            continue
        else:
            call.append(word)
        if word.startswith("trainmover ") and call[:1] != ["trainmover"]:
            yield shlex.split(word)  # given to another program, as in nats --translate 'trainmover decode'


def refused(words: list[str]) -> str:
    """Why the command line would refuse these words; empty when it would not."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(command, "commands"):
        while rest and rest[0].startswith("-"):
            if rest.pop(0) in ("--help", "--version"):
                return ""
        if not rest:
            return ""
        name = rest.pop(0)
        if name not in command.commands:
            return f"there is no command {name}"
        command = command.commands[name]
    if "--help" in rest:
        return ""
    try:
        command.make_context("trainmover", rest)
    except Exception as error:
        return str(getattr(error, "message", "")) or repr(error)
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_shown_are_commands(page: Path) -> None:
    """Each `trainmover ...` in a shell block is a command, with options and values that it takes."""
    wrong = {}
    for line in lines(page.read_text("utf-8")):
        for words in calls(line):
            if Path(words[0]).name == "trainmover" and (why := refused(words[1:])):
                wrong[line] = why
    assert wrong == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_make_targets_shown_are_targets(page: Path) -> None:
    """Each `make ...` in a shell block names a target of the Makefile."""
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    asked = {
        word
        for line in lines(page.read_text("utf-8"))
        for words in calls(line)
        if words[0] == "make"
        for word in words[1:]
        if "=" not in word
    }
    assert asked <= targets


def test_every_variable_is_in_the_reference() -> None:
    """The page of environment variables has every one that the code names, and no other."""
    page = (ROOT / "docs/reference/environment.md").read_text("utf-8")
    named = re.compile(r"\bTRAINMOVER_[A-Z_]*[A-Z]\b")
    code = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in named.findall(path.read_text("utf-8"))
        if name != "TRAINMOVER_"
    }
    assert set(named.findall(page)) == code


def test_what_is_refused() -> None:
    """The check itself sees a wrong command, a wrong option and a wrong value."""
    assert refused(["run", "--machines", "3", "train.py", "--anything"]) == ""
    assert refused(["walk", "train.py"]) == "there is no command walk"
    assert "--machine" in refused(["run", "--machine", "3", "train.py"])
    assert refused(["run", "--on-exhausted", "panic", "train.py"]) != ""
    assert list(calls("A=1 trainmover run x.py | tee 'y z'  # all")) == [
        ["trainmover", "run", "x.py"],
        ["tee", "y z"],
    ]
    assert ["trainmover", "decode"] in list(calls("nats sub '>' --translate 'trainmover decode'"))
