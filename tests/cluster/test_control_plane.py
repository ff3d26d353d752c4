"""The whole control plane with real processes: bus, services, machines, faults, report.

Only the ranks are not real: they are small programs without torch (tests/machine/fake_rank.py), so
that every run takes seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.waiting import LIMIT, wait_until
from trainmover.access.roles import ROLES
from trainmover.events.log import read_log
from trainmover.machine import registry

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

FAKE = Path(__file__).parents[1] / "machine" / "fake_rank.py"
CLI = [sys.executable, "-m", "trainmover.cli"]
STEPS = 60


class Run:
    """One ``trainmover run`` as a process; nothing of it may be left when it has ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "run"
        self.mark = uuid.uuid4().hex
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        # A registry of its own, so that other runs on this computer are not seen.
        self.env = os.environ | {"TRAINMOVER_TEST_MARK": self.mark, "TMPDIR": str(self.temporary)}
        self.process: subprocess.Popen[str] | None = None
        self.output = ""

    def start(
        self,
        *faults: str,
        machines: int = 2,
        standbys: int = 1,
        steps: int = STEPS,
        script: tuple[str, ...] = (),
        options: tuple[str, ...] = (),
    ) -> None:
        command = [*CLI, "run", "--machines", str(machines), "--standbys", str(standbys)]
        command += ["--run-dir", str(self.folder), "--seed", "7", *options]
        for fault in faults:
            command += ["--fault", fault]
        command += [str(FAKE), "--steps", str(steps), "--step-seconds", "0.03", *script]
        with (self.folder.parent / "output").open("w") as out:
            self.process = subprocess.Popen(
                command, env=self.env, stdout=out, stderr=subprocess.STDOUT, text=True, cwd=self.folder.parent
            )

    def end(self, limit: float = LIMIT) -> int:
        assert self.process is not None
        code = self.process.wait(limit)
        self.output = (self.folder.parent / "output").read_text()
        self.check_secrets()
        return code

    def check_secrets(self) -> None:
        """Neither the job's secret nor the bus's token is in the output, a log, the events or a report."""
        kept = self.folder / "secret"
        if not kept.exists():
            return
        secret = kept.read_text().strip()
        token = hashlib.sha256(f"bus {secret}".encode()).hexdigest()[:32]
        files = [path for path in self.folder.rglob("*") if path.is_file() and path != kept]
        # The server's own configuration holds the token, readable by its owner only.
        for path in (*files, self.folder.parent / "output"):
            if path.name != "nats-server.conf" and "tls" not in path.parts:
                content = path.read_bytes()
                assert secret.encode() not in content, path
                assert token.encode() not in content, path

    def whole(self, *faults: str, **options) -> dict:
        """A run from start to end, which must complete; its report."""
        self.start(*faults, **options)
        assert self.end() == 0, self.told()
        return self.report()

    def report(self) -> dict:
        return json.loads((self.folder / "report.json").read_text())

    def told(self) -> str:
        """Everything that was printed and logged, for the message of a failed test."""
        logs = (self.folder / "logs").glob("*.log")
        texts = [f"== {path.name}\n{path.read_text()[-1500:]}" for path in logs]
        return "\n".join([(self.folder.parent / "output").read_text(), *texts])

    def say(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*CLI, *arguments]
        return subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=LIMIT, check=False
        )

    def spawn(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*CLI, *arguments], env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("TRAINMOVER_TEST_MARK") == self.mark:
                    found.append(process)
            except psutil.Error:
                continue
        return [process for process in found if process.pid != (self.process and self.process.pid)]

    def find(self, *words: str) -> psutil.Process | None:
        for process in self.processes():
            try:
                if all(word in process.cmdline() for word in words):
                    return process
            except psutil.Error:
                continue
        return None

    def until(self, condition: Callable[[], object], limit: float = LIMIT) -> None:
        wait_until(condition, self.told, limit, self._may_bring_more)

    def _may_bring_more(self) -> None:
        """A run that has ended well will not."""
        assert self.process is None or self.process.poll() is None or self.process.returncode, self.told()

    def step(self) -> int:
        """The last committed step that any rank wrote down."""
        files = (self.folder / "steps").glob("*.jsonl")
        lines = (text for path in files for text in path.read_text().splitlines())
        # The last line of a file may be half written.
        steps = (re.match(r'{"kind": "step", "step": (\d+),', text) for text in lines)
        return max((int(match[1]) for match in steps if match), default=-1)

    def nothing_left(self) -> None:
        self.until(lambda: not self.processes())
        left = [path for path in self.temporary.rglob("*") if path.is_file() or path.is_socket()]
        assert left == []


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    assert run.process is not None
    if run.process.poll() is None:
        run.process.kill()
        run.process.wait(10)
    run.until(lambda: not run.processes())


def check(report: dict, incidents: list[tuple[str, str]]) -> None:
    """What every good report says, whatever went wrong in the run."""
    assert report["seed"] == 7
    assert report["steps"] == len(report["losses"]) == STEPS
    assert report["losses"] == [4.0 / (1 + step) for step in range(STEPS)]
    assert len(report["digest"]) == 64
    assert 0.02 < report["median_step_seconds"] < 1.0
    assert [(item["kind"], item["machine"]) for item in report["incidents"]] == incidents
    for item in report["incidents"]:
        assert item["joiner"]
        assert item["downtime_seconds"] > 0
        assert set(item["phases"]) == {"detect", "plan", "prepare", "copy", "switch"}


def test_without_a_fault(run: Run) -> None:
    """A run without trouble completes, leaves nothing behind, and its log replays without a difference."""
    check(run.whole(), [])
    run.nothing_left()
    assert {path.name for path in run.folder.iterdir()} >= {"report.json", "timeline.json", "events.tmlog"}
    assert oct((run.folder / "secret").stat().st_mode & 0o777) == "0o600"
    trace = json.loads((run.folder / "timeline.json").read_text())["traceEvents"]
    assert sum(event.get("cat") == "step" for event in trace) == 2 * STEPS
    replayed = run.say("events", "replay", str(run.folder))
    assert replayed.returncode == 0, replayed.stdout
    assert "0 differences" in replayed.stdout


@pytest.mark.long(every=3)
@pytest.mark.parametrize("step", [0, 1, 20])
def test_a_killed_machine_is_replaced(run: Run, step: int) -> None:
    """A machine killed at any step is replaced and the run ends as if nothing had happened."""
    report = run.whole(f"kill:machine=1,step={step}")
    check(report, [("failure", "m1")])
    run.nothing_left()
    replayed = run.say("events", "replay", str(run.folder))
    assert replayed.returncode == 0, replayed.stdout


def test_a_planned_move(run: Run) -> None:
    """A move costs about one step and the machine that goes ends in good order."""
    report = run.whole("move:machine=0,step=20")
    check(report, [("move", "m0")])
    (move,) = report["incidents"]
    assert move["steps_lost"] == 0
    assert move["downtime_seconds"] < 1.0
    assert "machine m0 left: released" in run.output
    run.nothing_left()


def test_a_frozen_machine_is_fenced_out_and_joins_again(run: Run) -> None:
    """SIGSTOP is noticed by silence; when the machine goes on, it ends its ranks and joins as a standby."""
    report = run.whole("stop:machine=1,step=10,seconds=5", steps=STEPS, script=("--hold-at-end", "7"))
    check(report, [("failure", "m1")])
    assert "machine m1 left: fenced" in run.output, run.output
    assert run.output.count("machine m1 joined") == 2, run.output
    run.nothing_left()


def test_a_machine_frozen_for_good_does_not_hold_up_the_end(run: Run) -> None:
    """A machine that never continues is killed when the job is over."""
    check(run.whole("stop:machine=1,step=10"), [("failure", "m1")])
    run.nothing_left()


def test_two_machines_one_after_the_other(run: Run) -> None:
    """Two kills with two standbys: two incidents, each with its own joiner."""
    report = run.whole("kill:machine=1,step=10", "kill:machine=0,step=40", standbys=2)
    check(report, [("failure", "m1"), ("failure", "m0")])
    assert len({item["joiner"] for item in report["incidents"]}) == 2
    run.nothing_left()


def test_services_and_bus_may_be_killed_at_any_time(run: Run) -> None:
    """kill -9 of each service and of the server during training and a switch changes no decision."""
    run.start("kill:machine=1,step=40", script=("--hold-at-end", "1"))
    run.until(lambda: run.step() >= 2)
    for name in ("health", "standby", "planner", "switcher"):
        process = run.find("service", name)
        assert process is not None
        process.kill()
    server = next(p for p in run.processes() if p.name() == "nats-server")
    server.kill()
    run.until(lambda: run.step() >= 39)
    for name in ("planner", "switcher"):
        process = run.find("service", name)
        if process is not None:
            process.kill()
    assert run.end() == 0, run.told()
    check(run.report(), [("failure", "m1")])
    assert "the bus ended; it is started again" in run.output
    assert "service health ended (SIGKILL); it is started again" in run.output
    replayed = run.say("events", "replay", str(run.folder))
    assert replayed.returncode == 0, replayed.stdout
    run.nothing_left()


def test_ctrl_c_ends_everything(run: Run) -> None:
    """Ctrl-C: exit code 130, a report of what there was, and nothing is left."""
    run.start(steps=100_000)
    run.until(lambda: run.step() >= 3)
    assert run.process is not None
    run.process.send_signal(signal.SIGINT)
    assert run.end(20) == 130, run.told()
    assert "ended by SIGINT" in run.output
    assert (run.folder / "report.json").is_file()
    run.nothing_left()


def test_nothing_outlives_a_killed_driver(run: Run) -> None:
    """kill -9 of the driver takes every process with it."""
    run.start(steps=100_000)
    run.until(lambda: run.step() >= 3)
    assert run.process is not None
    run.process.kill()
    run.process.wait(10)
    run.until(lambda: not run.processes())


def test_a_script_that_raises_fails_the_job(run: Run) -> None:
    """An exception of the script before anything is committed: exit code 1 and its text."""
    run.start(script=("--raise-at", "0"))
    assert run.end() == 1, run.told()
    assert "RuntimeError: the user's script is wrong" in run.output
    run.nothing_left()


def test_a_job_without_standbys_waits_for_a_machine(run: Run) -> None:
    """With no standby the job holds with a message, and goes on when a machine is added by hand."""
    run.start("kill:machine=1,step=10", standbys=0)
    run.until(lambda: "the job holds" in (run.folder.parent / "output").read_text())
    status = json.loads(run.say("status", "--json").stdout)
    assert status["phase"] == "held"
    assert [item["state"] for item in status["incidents"]] == ["open"]
    helper = run.spawn("machine", "--name", "helper")
    assert run.end() == 0, run.told()
    assert helper.wait(10) == 0
    check(run.report(), [("failure", "m1")])
    assert run.report()["incidents"][0]["joiner"] == "helper"
    run.nothing_left()


def test_a_job_may_fail_when_no_standby_is_left(run: Run) -> None:
    """--on-exhausted fail: without any spare the job ends with exit code 1 and says why."""
    run.start("kill:machine=1,step=10", standbys=0, options=("--on-exhausted", "fail"))
    assert run.end() == 1, run.told()
    assert "standby" in run.output.splitlines()[-2]
    run.nothing_left()


def test_an_operator_looks_and_moves(run: Run) -> None:
    """status, move and events tail find the run without flags and do what they say."""
    run.start(steps=500)
    run.until(lambda: "parked" in (run.folder.parent / "output").read_text())
    status = run.say("status")
    assert "training" in status.stdout, status.stderr
    assert "parked" in status.stdout
    refused = run.say("move", "m9")
    assert refused.returncode == 1
    assert "m9 does not move" in refused.stdout
    moved = run.say("move", "m0", "--to", "m2", "--reason", "a fan is loud")
    assert moved.returncode == 0, moved.stdout + moved.stderr
    assert "m2 takes the place of m0" in moved.stdout
    tail = run.spawn("events", "tail")
    assert run.end() == 0, run.told()
    assert tail.wait(10) in (0, 1)
    (incident,) = run.report()["incidents"]
    assert (incident["kind"], incident["joiner"]) == ("move", "m2")
    records = read_log(run.folder / "events.tmlog")
    reasons = [r.envelope.event.reason for r in records if r.envelope.type == "move.requested"]
    assert "a fan is loud" in reasons
    run.nothing_left()


def test_what_cannot_work_is_refused_before_anything_starts(run: Run) -> None:
    """A missing script, a wrong fault or a folder in use: exit code 2 and one sentence."""
    run.start("kill:machine=1")
    assert run.end() == 2
    assert "lacks step" in run.output
    assert not run.folder.exists()


def test_the_registry_is_private(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks per machine work, and a finished run is not in the registry any more."""
    monkeypatch.setattr("tempfile.tempdir", str(run.temporary))
    report = run.whole("kill:machine=1,step=20", options=("--ranks-per-machine", "2"))
    check(report, [("failure", "m1")])
    assert registry.runs() == []
    assert oct(registry.folder().stat().st_mode & 0o777) == "0o700"
    run.nothing_left()


@pytest.mark.slow
def test_a_run_with_tls_gives_every_program_an_account(run: Run) -> None:
    """Bus and accounts of a whole run with a killed machine: nothing that anybody had to say was refused."""
    report = run.whole("kill:machine=m1,step=20", options=("--tls",))
    assert [incident["kind"] for incident in report["incidents"]] == ["failure"]
    told = run.told() + (run.folder / "bus" / "nats-server.log").read_text()
    assert "permissions violation" not in told.lower()
    settings = (run.folder / "bus" / "nats-server.conf").read_text()
    assert "tls {" in settings
    assert all(f'user: "{role}"' in settings for role in ROLES)
