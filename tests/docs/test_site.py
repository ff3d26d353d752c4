"""The documentation becomes a site without a warning, and the site needs nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="the site is made by the extra docs: pip install 'trainmover[docs]'")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a page outside the navigation or a link to nowhere ends the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    # Whoever asks the network meets a wall.
    walls = dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY", "HTTP_PROXY"), "http://127.0.0.1:9")
    environment = {**os.environ, **walls, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_room_is_there(site: Path) -> None:
    """Tutorial, how-to, reference and explanation each have a first page."""
    for room in ("tutorial", "how-to", "reference", "explanation"):
        assert (site / room / "index.html").is_file()


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    """No page asks another host for a script, a style, a font or a picture."""
    loads = re.compile(r"<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=[\"']?(https?:)?//[^>]*>")
    found = {
        match[0]
        for page in site.rglob("*.html")
        for match in loads.finditer(page.read_text("utf-8"))
        if 'rel="canonical"' not in match[0]
    }
    assert found == set()


def test_files_outside_docs_are_pages_too(site: Path) -> None:
    """What pages link to is in the site: examples as listings, folders as lists, schemas as they are."""
    listing = (site / "repository/examples/train_gpt.py.html").read_text("utf-8")
    assert "DistributedDataParallel" in listing
    assert (site / "repository/events/index.html").is_file()
    assert "machine.failed.json" in (site / "repository/events/schemas/index.html").read_text("utf-8")
    assert (site / "repository/events/schemas/machine.failed.json").read_text("utf-8").startswith("{")


def test_the_reference_has_the_public_names(site: Path) -> None:
    """What a script uses is described from its docstrings."""
    page = (site / "reference/python.html").read_text("utf-8")
    for name in ("join", "track", "steps", "DataStream", "register_backend", "ConfigError"):
        assert name in page
