"""Say what a job is, on a bus where services and machines wait for it.

``trainmover run`` does this for a local run, and starts the machines as well.  Where something else
starts the machines (containers, a scheduler), this is all that is left to do::

    TRAINMOVER_BUS=nats://host:4222 TRAINMOVER_JOB=gpt python tools/submit.py \\
        --machines 3 --standbys 1 --run-dir /shared/run script.py --steps 500

The run folder must be the same folder on all machines; script and interpreter must have the same path.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
import time

from trainmover.events import Envelope, NatsBus
from trainmover.events.catalogue import JobSubmitted


async def submit(url: str, job: str, description: JobSubmitted) -> None:
    """Publish the description and wait until the log has it."""
    bus = await NatsBus.connect(url, job, "submit")
    try:
        identity = f"submit-{secrets.token_hex(8)}"
        now = time.time()
        await bus.publish(Envelope(id=identity, source="submit", time=now, job=job, event=description))
        await bus.flush(10.0)
    finally:
        await bus.close()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Submit a job to services and machines that run elsewhere.")
    add = parser.add_argument
    add("--bus", default=os.environ.get("TRAINMOVER_BUS"), help="default: TRAINMOVER_BUS")
    add("--job", default=os.environ.get("TRAINMOVER_JOB"), help="default: TRAINMOVER_JOB")
    add("--machines", type=int, required=True)
    add("--ranks-per-machine", type=int, default=1)
    add("--standbys", type=int, default=0)
    add("--seed", type=int, default=0)
    add("--run-dir", required=True, help="a folder that all machines share")
    add("--cwd", default=os.getcwd())
    add("--python", default=sys.executable)
    add("script")
    add("args", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if not args.bus or not args.job:
        parser.error("say which --bus and which --job")
    description = JobSubmitted(
        script=args.script,
        args=tuple(args.args),
        cwd=args.cwd,
        python=args.python,
        machines=args.machines,
        ranks_per_machine=args.ranks_per_machine,
        standbys=args.standbys,
        seed=args.seed,
        run_dir=args.run_dir,
    )
    asyncio.run(submit(args.bus, args.job, description))


if __name__ == "__main__":
    main()
