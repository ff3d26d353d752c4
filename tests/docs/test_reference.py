"""The reference pages that are written from the code have all of it, and say what the code says."""

from __future__ import annotations

import re

from tools import reference
from trainmover.events.catalogue import EVENTS


def test_every_command_and_option_has_its_place() -> None:
    """Each command is a section, each option a row with its meaning."""
    page = reference.command_page()
    for name, command in reference.commands():
        section = page.split(f"## {name}\n")[1].split("\n## ")[0]
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                assert re.search(rf"^\| (`|<code>){parameter.opts[0]}\b", section, re.MULTILINE), name
    assert "| `--standbys S` | Warm spare machines to keep. | `0` |" in page


def test_every_event_has_its_subject_and_fields() -> None:
    """Each event is a section with every field; what one is made of is described once."""
    page = reference.event_page()
    for name, model in EVENTS.items():
        section = page.split(f"### {name}\n")[1].split("\n### ")[0]
        assert f"type `io.trainmover.{name}.v{model.version}`" in section.replace("Type `", "type `")
        assert all(f"| `{field}` |" in section for field in model.model_fields), name
    assert "### Endpoint\n" in page
    assert "[Endpoint](#endpoint)" in page


def test_exit_codes_are_read_from_the_help() -> None:
    """The sentence in a command's help becomes rows, whatever separates them."""
    codes = reference.exit_codes()
    assert list(codes["trainmover run"]) == [0, 1, 2, 130]
    assert codes["trainmover run"][130] == "Ctrl-C"
    assert codes["trainmover move"][0] == "a standby takes over"


def test_a_drawing_has_one_arrow_for_many_triggers() -> None:
    """Triggers that lead to the same state share an arrow; ends are drawn."""
    lines = reference.drawing(*reference.TABLES["gap"]).splitlines()
    arrows = [line for line in lines if "-->" in line]
    ends = [re.sub(r":.*", "", line) for line in arrows]
    assert len(ends) == len(set(ends))
    assert any("moot<br/>" in line for line in arrows)
    assert "    closed --> [*]" in lines


def test_no_cell_ends_its_table() -> None:
    """A bar in a help text or a type would be another column."""
    for page in (reference.command_page(), reference.event_page(), reference.exit_code_page()):
        for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
            rows = [len(re.split(r"(?<!\\)\|", row)) for row in table.splitlines()]
            assert len(set(rows)) == 1, table
