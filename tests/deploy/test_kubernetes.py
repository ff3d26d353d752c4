"""The manifests for Kubernetes: valid by the cluster's own schemas, and in step with the rest."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from trainmover.access.roles import ROLES
from trainmover.services import SERVICES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
VERSION = "1.33"


def manifests() -> list[tuple[str, dict[str, Any]]]:
    """Every document of every file, but that of kustomize, which is no resource of a cluster."""
    return [
        (f"{path.name}: {document['kind']} {document['metadata']['name']}", document)
        for path in sorted(FOLDER.glob("*.yaml"))
        if path.name != "kustomization.yaml"
        for document in yaml.safe_load_all(path.read_text())
    ]


ALL = manifests()
PODS = [(name, item) for name, item in ALL if item["kind"] in ("Deployment", "StatefulSet", "Job")]


def named(cases: list[tuple[str, dict[str, Any]]]) -> Any:
    return pytest.mark.parametrize("manifest", [item for _, item in cases], ids=[name for name, _ in cases])


@named(ALL)
def test_a_manifest_is_valid(manifest: dict[str, Any]) -> None:
    """By the JSON schemas of Kubernetes, strictly: a misspelt field is an error."""
    kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_kustomize_lists_every_file() -> None:
    """A file that is not listed would not be applied."""
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(
        path.name for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml"
    )


@named(PODS)
def test_no_container_may_more_than_it_needs(manifest: dict[str, Any]) -> None:
    """Not root, no capabilities, a root that cannot be written, no token of the cluster, limits."""
    pod = manifest["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert set(container["resources"]["limits"]) == {"cpu", "memory"}


@named(PODS)
def test_each_program_mounts_the_secret_of_its_role_and_no_other(manifest: dict[str, Any]) -> None:
    """And is told to use it."""
    pod = manifest["spec"]["template"]["spec"]
    secrets = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
    assert len(secrets) == 1
    role = secrets[0].removeprefix("trainmover-")
    assert role in {*ROLES, "bus"}
    assert f"/credentials/{role}" in " ".join(pod["containers"][0]["args"])


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_is_deployed_as_its_folder_says(name: str) -> None:
    """Image, arguments and limits of services/NAME/service.toml, here and in docker-compose.yml."""
    told = tomllib.loads((ROOT / "services" / name / "service.toml").read_text())
    manifest = next(item for _, item in PODS if item["metadata"]["name"] == name)
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == told["image"]
    assert ["trainmover", *container["args"][:3]] == told["command"][:4]
    assert container["resources"]["limits"] == {
        "cpu": f"{told['cpus'] * 1000:.0f}m",
        "memory": f"{told['memory_mib']}Mi",
    }
    assert manifest["spec"]["strategy"] == {"type": "Recreate"}
    composed = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"][name]
    assert composed["image"] == told["image"]
    assert ["trainmover", *composed["command"][:3]] == told["command"][:4]
    assert (composed["cpus"], composed["mem_limit"]) == (told["cpus"], f"{told['memory_mib']}m")
