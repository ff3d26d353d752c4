"""What Prometheus and Grafana are given: rules that are true, figures that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.monitor.conftest import Story
from trainmover.monitor.chronicle import Chronicle
from trainmover.monitor.metrics import make_registry
from trainmover.monitor.series import points_of

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "observe"
NAME = re.compile(r"\b(?:trainmover|process)_[a-z_]+")


@pytest.fixture(scope="module")
def exported() -> set[str]:
    """Names of all figures that a monitor exports."""
    story = Story()
    story.begin()
    story.kill()
    chronicle = Chronicle()
    registry = make_registry(chronicle, lambda: True)
    for envelope in story.envelopes:
        chronicle.apply(envelope)
    chronicle.recall(list(points_of(story.facts)))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {item.name for family in families for item in family.samples}


def rules() -> list[dict]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return group["rules"]


def dashboard() -> dict:
    return json.loads((FOLDER / "grafana" / "dashboards" / "trainmover.json").read_text())


def test_every_alert_is_about_figures_that_there_are(exported: set[str]) -> None:
    """Each rule has a severity and words, and asks for nothing that is not exported."""
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]
        assert rule["annotations"]["description"], rule["alert"]
        assert set(NAME.findall(rule["expr"])) <= exported, rule["alert"]


def test_every_panel_asks_for_figures_that_there_are(exported: set[str]) -> None:
    """The dashboard has no query that can never answer, and no two panels on one place."""
    found = dashboard()
    places: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        for target in panel["targets"]:
            names = set(NAME.findall(target["expr"]))
            assert names, panel["title"]
            assert names <= exported, panel["title"]
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & places, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        places |= cells
    for annotation in found["annotations"]["list"]:
        assert set(NAME.findall(annotation["expr"])) <= exported


def test_the_dashboard_uses_the_source_that_is_provisioned() -> None:
    """The uid in every panel is that of the data source."""
    text = (FOLDER / "grafana" / "provisioning" / "datasources" / "trainmover.yml").read_text()
    (source,) = yaml.safe_load(text)["datasources"]
    assert {panel["datasource"]["uid"] for panel in dashboard()["panels"]} == {source["uid"]}
    yaml.safe_load((FOLDER / "grafana" / "provisioning" / "dashboards" / "trainmover.yml").read_text())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (apt: prometheus)")
def test_prometheus_itself_takes_the_rules_and_they_fire_when_they_should() -> None:
    """``promtool`` checks the syntax and runs the rules against made-up figures."""
    for command in (
        ["check", "config", "prometheus.yml"],
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts_test.yml"],
    ):
        result = subprocess.run(
            ["promtool", *command], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
