"""The loop without a clock: real asyncio code, virtual time."""

from __future__ import annotations

import asyncio

from trainmover.simulator.clock import Process, VirtualLoop


def test_time_jumps_to_what_is_due() -> None:
    """Sleeping costs no time, limits fire, and whoever asked first is served first."""
    loop = VirtualLoop()
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, loop.time()))

    async def main() -> str:
        await asyncio.gather(sleeper("b", 2.0), sleeper("a", 1.0), sleeper("c", 2.0))
        try:
            async with asyncio.timeout(3600.0):
                await asyncio.sleep(86400.0)
        except TimeoutError:
            return "limit"
        return "slept"

    task = loop.create_task(main())
    assert loop.run_until(task.done, 1e9)
    assert task.result() == "limit"
    assert seen == [("a", 1.0), ("b", 2.0), ("c", 2.0)]
    assert loop.time() == 3602.0
    assert not loop.failures


def test_a_run_ends_at_its_limit() -> None:
    """When nothing more is due before the limit, the clock stands at the limit."""
    loop = VirtualLoop()
    fired: list[float] = []
    loop.call_later(5.0, lambda: fired.append(loop.time()))
    loop.call_later(3.0, lambda: fired.append(loop.time())).cancel()
    assert not loop.run_until(lambda: False, 4.0)
    assert loop.time() == 4.0
    assert not loop.run_until(lambda: False, 6.0)
    assert fired == [5.0]


def test_a_frozen_process_goes_on_with_what_it_missed() -> None:
    """A frozen process's timers wait, and others' do not; thawed, it catches up in order."""
    loop = VirtualLoop()
    seen: list[tuple[str, float]] = []
    process = Process("service")
    context = loop.within(process)
    for delay in (1.0, 2.0):
        loop.call_later(
            delay, lambda delay=delay: seen.append((f"its {delay}", loop.time())), context=context
        )
    loop.later(1.5, lambda: seen.append(("other", loop.time())))
    process.frozen = True
    loop.later(10.0, loop.thaw, process)
    loop.run_until(lambda: False, 20.0)
    assert seen == [("other", 1.5), ("its 1.0", 10.0), ("its 2.0", 10.0)]


def test_a_task_belongs_to_the_process_that_it_was_made_in() -> None:
    """What a task asks for later is frozen with its process."""
    loop = VirtualLoop()
    process = Process("service")
    seen: list[float] = []

    async def work() -> None:
        for _ in range(3):
            await asyncio.sleep(1.0)
            seen.append(loop.time())

    task = loop.create_task(work(), context=loop.within(process))
    loop.later(1.5, lambda: setattr(process, "frozen", True))
    loop.later(7.5, loop.thaw, process)
    assert loop.run_until(task.done, 100.0)
    assert seen == [1.0, 7.5, 8.5]
