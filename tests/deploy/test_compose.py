"""docker-compose.yml without an engine: what must hold of it; `make compose-test` runs it for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trainmover.access.roles import ROLES

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OURS = {name: item for name, item in COMPOSE["services"].items() if "build" in item}


@pytest.mark.parametrize("name", sorted(OURS))
def test_no_container_may_more_than_it_needs(name: str) -> None:
    """A root that cannot be written, no capabilities, no new privileges; the images are not root's."""
    item = OURS[name]
    assert item["read_only"] is True
    assert item["cap_drop"] == ["ALL"]
    assert item["security_opt"] == ["no-new-privileges:true"]
    assert "user" not in item
    assert "privileged" not in item
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert dockerfile.rindex("USER trainmover") > dockerfile.rindex("RUN useradd")


@pytest.mark.parametrize("name", sorted(set(OURS) - {"credentials"}))
def test_each_container_mounts_the_credentials_of_one_role(name: str) -> None:
    """Read-only, and no other's; only what makes them mounts all."""
    mounts = [volume.split(":") for volume in OURS[name]["volumes"] if "-credentials:" in volume]
    assert len(mounts) == 1
    volume, path, mode = mounts[0]
    assert path == f"/credentials/{volume.removesuffix('-credentials')}"
    assert mode == "ro"


def test_the_credentials_of_every_role_have_a_volume() -> None:
    """A role that is added needs a volume, a mount where it is made, and a folder in the image."""
    mounts = COMPOSE["services"]["credentials"]["volumes"]
    dockerfile = (ROOT / "Dockerfile").read_text()
    for role in (*ROLES, "bus"):
        assert f"{role}-credentials:/credentials/{role}" in mounts
        assert f"{role}-credentials" in COMPOSE["volumes"]
        assert f"/credentials/{role}" in dockerfile


def test_nothing_is_published_beyond_this_computer() -> None:
    """Ports are opened on loopback only, and neither the bus nor a machine opens one."""
    for name, item in COMPOSE["services"].items():
        for port in item.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name
        assert name in ("monitor", "prometheus", "grafana") or "ports" not in item


def test_there_is_no_secret_in_the_file() -> None:
    """Nor in the environment of any container: `docker inspect` shows that."""
    for name, item in COMPOSE["services"].items():
        for variable in item.get("environment", {}):
            assert not any(word in variable for word in ("SECRET", "PASSWORD", "TOKEN")), name


def test_everything_has_an_end_and_a_limit() -> None:
    """Memory limits for all that stays, and a health check for all that others wait for."""
    for name, item in COMPOSE["services"].items():
        if item.get("restart") == "no" and name not in ("m0", "m1", "m2", "m3", "m4"):
            continue
        assert "mem_limit" in item, name
    for item in COMPOSE["services"].values():
        waited = item.get("depends_on", {})
        for other, condition in waited.items() if isinstance(waited, dict) else ():
            if condition["condition"] == "service_healthy":
                assert "healthcheck" in COMPOSE["services"][other]
