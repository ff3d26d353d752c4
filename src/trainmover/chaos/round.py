"""A round: one run of a campaign, in a process of its own (``python -m trainmover.chaos.round ORDER``).

What lives here: a local run together with the hands that trouble it, and what is told of it afterwards.
It is a process of its own so that whatever becomes of it can be seen from outside: that it ends, and that
nothing of it is left.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainmover import logs
from trainmover.chaos.ground import Ground
from trainmover.chaos.hands import Hands
from trainmover.chaos.network import Network
from trainmover.chaos.plan import Exhausted, Plan, State, Trouble
from trainmover.errors import TrainMoverError
from trainmover.faults import parse_faults
from trainmover.machine.rundir import RunDir
from trainmover.machine.supervisor import LocalRun, RunConfig


@dataclass(frozen=True, slots=True)
class Order:
    """What a round is told, as a file.

    Attributes:
        folder: of the round; the run's is ``run`` in it.
        script, args: what is trained.
        machines, ranks_per_machine, standbys: as in ``trainmover run``.
        job_seed: seed of the job, the same for all rounds of a campaign.
        plan: what goes wrong.
        networks: machines get networks of their own.
        on_exhausted, state: policies of the job, as in ``trainmover run``.
    """

    folder: str
    script: str
    args: tuple[str, ...]
    machines: int
    ranks_per_machine: int
    standbys: int
    job_seed: int
    plan: Plan
    networks: bool = False
    on_exhausted: Exhausted = "hold"
    state: State = "mirror"

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return Path(self.folder) / "run"

    @property
    def result(self) -> Path:
        """Where the round tells what became of it."""
        return Path(self.folder) / "result.json"

    def write(self) -> Path:
        """Write it into the folder, for :meth:`read`."""
        found: dict[str, Any] = asdict(self)
        found["plan"]["faults"] = [str(fault) for fault in self.plan.faults]
        path = Path(self.folder) / "order.json"
        path.write_text(json.dumps(found, indent=2), encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: Path) -> Order:
        """Read what :meth:`write` wrote."""
        found = json.loads(path.read_text("utf-8"))
        plan = found.pop("plan")
        plan["faults"] = parse_faults(plan["faults"])
        plan["troubles"] = tuple(Trouble(**trouble) for trouble in plan["troubles"])
        return cls(**found | {"args": tuple(found["args"]), "plan": Plan(**plan)})


@dataclass(frozen=True, slots=True)
class Result:
    """What a round tells of itself.

    Attributes:
        code: exit code of the run.
        failure: why it is not 0.
        done: troubles that were made.
        notices: what the driver said.
    """

    code: int
    failure: str = ""
    done: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


async def play(order: Order) -> Result:
    """Run a round to its end."""
    network = Network() if order.networks else None
    try:
        ground = Ground(Path(order.folder) / "clocks", network)
        hands = Hands(order.plan, ground)
        notices: list[str] = []
        config = RunConfig(
            script=Path(order.script),
            args=order.args,
            machines=order.machines,
            ranks_per_machine=order.ranks_per_machine,
            standbys=order.standbys,
            seed=order.job_seed,
            faults=order.plan.faults,
            checkpoint_every=order.plan.checkpoint_every,
            on_exhausted=order.on_exhausted,
            state=order.state,
        )
        try:
            config.check()
        except TrainMoverError as error:
            return Result(1, str(error))
        run_dir = RunDir.create(order.run_dir)
        run = hands.run = LocalRun(config, run_dir, hands.observe, notices.append, ground)
        watching = asyncio.ensure_future(hands.watch(run_dir.steps))
        try:
            code = await run.run()
        except TrainMoverError as error:
            return Result(1, str(error), hands.done, notices)
        finally:
            watching.cancel()
            hands.let_go()
        return Result(code, run.failure, hands.done, notices)
    finally:
        if network is not None:
            network.close()


def main() -> int:
    """The program."""
    logs.start("info")
    order = Order.read(Path(sys.argv[1]))
    result = asyncio.run(play(order))
    order.result.write_text(json.dumps(asdict(result), indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
