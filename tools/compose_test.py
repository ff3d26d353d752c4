"""Try docker-compose.yml for real: a cluster of containers, one killed, one cut off, the same bytes.

``make compose-test`` runs it; it needs a running Docker engine and Compose (1.29 or 2).  What happens:

1. *Images.*  The base image that the Dockerfile names, or, when no registry of images is reached, one
   made here of Debian's packages (debootstrap, as root); packages from wheels/, fetched beforehand with
   this computer's pip, so that a build needs no network.
2. *A calm run*: ``compose up``, wait for the end, keep the digest and the losses.
3. *A run with faults*: a machine is cut off from the network in the middle of training and the standby
   takes its seat; the network comes back, and the machine joins again as a standby; then another
   machine is killed, and the one that came back takes its seat.
4. The digests must be the same, every step must be there once, and ``compose down`` must end in time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REGISTRY_IMAGE = "python:3.13-slim"
LOCAL_IMAGE = "trainmover-base:local"
SUITE = "bookworm"
PACKAGES = "python3,python3-venv,ca-certificates"
EXTRAS = ("monitor", "otel", "local", "tls", "train")
NETWORK = "trainmover"
MONITOR = "http://127.0.0.1:8478"
QUICK = "train_gpt.py --steps {steps} --layers 2 --width 128"


class Failed(Exception):
    """The test failed; the message says what did not happen."""


def run(*command: str, limit: float = 120.0, check: bool = True, **environment: str) -> str:
    """A command's output.

    Raises:
        Failed: it did not end in time, or not well.
    """
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(command)}: not within {limit:g} s") from None
    if check and done.returncode != 0:
        raise Failed(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    return done.stdout


def say(text: str) -> None:
    """A line with the time since the start."""
    print(f"{time.monotonic() - STARTED:6.1f} s  {text}", flush=True)


STARTED = time.monotonic()


# -- the engine and its images ---------------------------------------------------------------------------


class Cluster:
    """docker-compose.yml with the engine that is there."""

    def __init__(self, train: str) -> None:
        self.docker = next(
            (path for path in ("/usr/bin/docker", shutil.which("docker") or "") if os.path.exists(path)), ""
        )
        if not self.docker:
            raise Failed("there is no docker; on Debian: apt install docker.io docker-compose")
        run(self.docker, "info")
        plugin = (
            subprocess.run([self.docker, "compose", "version"], capture_output=True, check=False).returncode
            == 0
        )
        self.compose = (
            [self.docker, "compose"] if plugin else [shutil.which("docker-compose") or "docker-compose"]
        )
        self.settings = {
            "COMPOSE_PROJECT_NAME": "trainmover",
            "DOCKER_BUILDKIT": "1",
            "COMPOSE_DOCKER_CLI_BUILD": "1",
            "TRAIN": train,
        }

    def __call__(self, *arguments: str, limit: float = 120.0, check: bool = True) -> str:
        return run(*self.compose, *arguments, limit=limit, check=check, **self.settings)

    def prepare(self) -> None:
        """Base image and packages, as far as they are not there."""
        if self._has(REGISTRY_IMAGE) or self._pulled():
            self.settings["PYTHON_IMAGE"] = REGISTRY_IMAGE
            return
        if not self._has(LOCAL_IMAGE):
            self._make_base()
        self.settings |= {"PYTHON_IMAGE": LOCAL_IMAGE, "WHEELS_ONLY": "1"}
        fetch_wheels(
            run(
                self.docker,
                "run",
                "--rm",
                LOCAL_IMAGE,
                "python3",
                "-c",
                "import sys; print('%d.%d' % sys.version_info[:2])",
            ).strip()
        )

    def build(self) -> None:
        """The three images."""
        for target in ("services", "bus", "machine"):
            arguments = [
                f"--build-arg={name}={self.settings.get(name, '')}"
                for name in ("PYTHON_IMAGE", "WHEELS_ONLY", "TORCH_INDEX")
            ]
            run(
                self.docker,
                "build",
                "--target",
                target,
                "--tag",
                f"trainmover-{target}",
                *arguments,
                ".",
                limit=1200,
                DOCKER_BUILDKIT="1",
            )
        say(
            "images are built: "
            + ", ".join(
                f"{name} {self._size(name)}"
                for name in ("trainmover-services", "trainmover-bus", "trainmover-machine")
            )
        )

    def _has(self, image: str) -> bool:
        return bool(run(self.docker, "images", "--quiet", image).strip())

    def _size(self, image: str) -> str:
        return run(self.docker, "images", "--format", "{{.Size}}", image).strip()

    def _pulled(self) -> bool:
        try:
            run(self.docker, "pull", REGISTRY_IMAGE, limit=60)
        except Failed:
            say(f"{REGISTRY_IMAGE} cannot be pulled here: a base image of Debian's packages takes its place")
            return False
        return True

    def _make_base(self) -> None:
        if os.geteuid() != 0 or shutil.which("debootstrap") is None:
            raise Failed("a base image is made with debootstrap, as root; on Debian: apt install debootstrap")
        with tempfile.TemporaryDirectory() as folder:
            run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, folder, limit=900)
            packed = f"{folder}.tar"
            run(
                "tar",
                "-C",
                folder,
                "--exclude=./var/cache/apt/archives/*.deb",
                "--exclude=./var/lib/apt/lists/*",
                "-cf",
                packed,
                ".",
                limit=300,
            )
            try:
                run(self.docker, "import", packed, LOCAL_IMAGE, limit=300)
            finally:
                os.unlink(packed)
        say(f"{LOCAL_IMAGE} is made of {SUITE} with {PACKAGES}")


def fetch_wheels(version: str) -> None:
    """Everything that is installed in the images, for their Python, into wheels/."""
    folder = ROOT / "wheels"
    folder.mkdir(exist_ok=True)
    wanted = run(sys.executable, "tools/requirements.py", "pyproject.toml", *EXTRAS).split("\n")
    wanted = ["hatchling", *(line for line in wanted if line)]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--constraint",
        "constraints.txt",
        "--dest",
        "wheels",
    ]
    command += ["--find-links", "wheels", "--only-binary", ":all:"]
    if version != f"{sys.version_info[0]}.{sys.version_info[1]}":
        command += ["--python-version", version]
    run(*command, *wanted, limit=1800)


# -- a cluster that runs ------------------------------------------------------------------------------------


def up(cluster: Cluster) -> None:
    """From nothing."""
    cluster("down", "--volumes", "--remove-orphans", limit=120)
    cluster("up", "--detach", "--no-build", limit=240)


def status() -> dict[str, Any]:
    """The job and its machines as the monitor has them; empty while it does not answer."""
    try:
        with urllib.request.urlopen(f"{MONITOR}/api/state", timeout=20) as answer:  # noqa: S310
            told = json.load(answer)
    except (OSError, ValueError):
        return {}
    return told["job"] | {"machines": told["machines"]}


def until(what: str, condition: Callable[[dict[str, Any]], object], limit: float) -> None:
    """Ask for the status until something holds.

    Raises:
        Failed: it does not within ``limit`` seconds, or the job ended before.
    """
    deadline = time.monotonic() + limit
    seen: dict[str, Any] = {}
    while time.monotonic() < deadline:
        seen = status() or seen
        if seen and condition(seen):
            say(f"{what} (step {seen['step']})")
            return
        if seen.get("phase") in ("completed", "failed"):
            raise Failed(f"the job has {seen['phase']} before: {what}\n{seen.get('reason')}")
        time.sleep(2.0)
    raise Failed(f"not within {limit:g} s: {what}\n{json.dumps(seen, indent=1)[:6000]}")


def machine(seen: dict[str, Any], name: str) -> dict[str, Any]:
    """What the status says of the latest life of a machine."""
    lives = [item for item in seen["machines"] if item["name"] == name]
    return lives[-1] if lives else {"position": None, "parked": [], "state": "unknown"}


def look_at_the_monitor() -> None:
    """Its page and its figures, from outside, as a person and Prometheus ask for them.

    Raises:
        Failed: it does not answer with what they need.
    """
    for path, needed in (("/readyz", ""), ("/", "<html"), ("/metrics", "trainmover_")):
        try:
            with urllib.request.urlopen(f"{MONITOR}{path}", timeout=20) as answer:  # noqa: S310
                content = answer.read().decode()
        except OSError as error:
            raise Failed(f"{MONITOR}{path}: {error}") from None
        if needed not in content:
            raise Failed(f"{MONITOR}{path} has no {needed}:\n{content[:500]}")
    say(f"the monitor answers at {MONITOR}")


def outcome(cluster: Cluster, limit: float) -> dict[str, Any]:
    """Wait until the job has ended; its report."""
    container = cluster("ps", "--quiet", "report").strip()
    code = run(cluster.docker, "wait", container, limit=limit).strip()
    if code != "0":
        raise Failed(f"the job ended with {code}:\n{run(cluster.docker, 'logs', container)[-3000:]}")
    # The report stands in the run's volume; any image can read it.
    told = cluster(
        "run", "--rm", "-T", "--entrypoint", "cat", "operator", "/run/trainmover/report.json", limit=60
    )
    return json.loads(told)


def down(cluster: Cluster, killed: str = "") -> None:
    """End in good order, within the grace period; all but the container that we killed."""
    started = time.monotonic()
    cluster("stop", limit=90)
    seconds = time.monotonic() - started
    late = [
        name
        for name in run(
            cluster.docker,
            "ps",
            "--all",
            "--filter",
            "label=com.docker.compose.project=trainmover",
            "--filter",
            "exited=137",
            "--format",
            "{{.Names}}",
        ).split()
        if name != f"trainmover-{killed}"
    ]
    if late:
        raise Failed(f"{', '.join(late)} did not end within the grace period")
    say(f"stopped in good order within {seconds:.1f} s")
    cluster("down", "--volumes", limit=120)


def main() -> None:
    """The test."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--no-build", action="store_true", help="with the images that are there")
    parser.add_argument(
        "--no-calm", metavar="DIGEST", help="compare with this digest only, instead of a run of our own"
    )
    args = parser.parse_args()
    cluster = Cluster(QUICK.format(steps=args.steps))
    if not args.no_build:
        cluster.prepare()
        cluster.build()
    try:
        calm: dict[str, Any] = {"digest": args.no_calm, "steps": args.steps}
        if args.no_calm is None:
            up(cluster)
            calm = outcome(cluster, 600)
            say(f"undisturbed: {calm['steps']} steps, digest {calm['digest']}")
            down(cluster)
        up(cluster)
        until(
            "it trains, and the standby m4 is parked",
            lambda s: (s["step"] or 0) > 10 and any(m["parked"] for m in s["machines"]),
            180,
        )
        look_at_the_monitor()
        spare = next(m["name"] for m in status()["machines"] if m["position"] is None)
        cut, killed = [name for name in ("m1", "m2", "m3") if name != spare][:2]
        run(cluster.docker, "network", "disconnect", NETWORK, f"trainmover-{cut}")
        say(f"{cut} is cut off from the network")
        until(
            f"{spare} has taken the seat of {cut}",
            lambda s: machine(s, spare)["position"] is not None,
            120,
        )
        run(cluster.docker, "network", "connect", NETWORK, f"trainmover-{cut}")
        say(f"{cut} is on the network again")
        until(f"{cut} has joined again and is parked", lambda s: machine(s, cut)["parked"], 240)
        run(cluster.docker, "kill", f"trainmover-{killed}")
        say(f"{killed} is killed")
        until(
            f"{cut} has taken the seat of {killed}",
            lambda s: machine(s, cut)["position"] is not None,
            120,
        )
        report = outcome(cluster, 600)
        say(f"disturbed: {report['steps']} steps, digest {report['digest']}")
        for name in ("steps", "digest", "losses"):
            if name in calm and report[name] != calm[name]:
                raise Failed(f"{name} differ: {calm[name]} undisturbed, {report[name]} disturbed")
        if report["steps"] != args.steps:
            raise Failed(f"{report['steps']} steps were made where {args.steps} were asked for")
        down(cluster, killed)
    except BaseException:
        logs = cluster("logs", "--no-color", "--tail=40", check=False)
        print(logs[-20000:])
        raise
    finally:
        cluster("down", "--volumes", "--remove-orphans", check=False)
    print("1 passed, 0 failed")


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        print(f"compose-test: {error}", file=sys.stderr)
        print("0 passed, 1 failed")
        sys.exit(1)
