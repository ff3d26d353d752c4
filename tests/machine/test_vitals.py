"""What a machine sees of itself: processes in every state, GPUs that answer and GPUs that do not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types

import pytest

from tests.waiting import until
from trainmover.machine.vitals import GpuVitals, ProcessVitals


def test_a_running_process_has_a_state_and_figures() -> None:
    """This process runs, uses memory, and after some work shows CPU time."""
    vitals = ProcessVitals()
    vitals.read([os.getpid()])
    busy_until = time.process_time() + 0.1
    while time.process_time() < busy_until:
        pass
    reading = vitals.read([os.getpid()])[os.getpid()]
    assert reading.state == "running"
    assert reading.rss_bytes > 1_000_000
    assert reading.cpu_percent > 0


def test_processes_that_are_gone_are_exited() -> None:
    """A zombie and a process that does not exist are both exited, without an exception."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    vitals = ProcessVitals()
    assert vitals.read([process.pid])[process.pid].state == "exited"
    process.wait()
    assert vitals.read([process.pid])[process.pid].state == "exited"


def fake_nvml(*, works: bool) -> types.ModuleType:
    module = types.ModuleType("pynvml")
    module.NVMLError = type("NVMLError", (Exception,), {})
    module.NVML_TEMPERATURE_GPU = 0
    module.nvmlDeviceGetCount = lambda: 1
    module.nvmlDeviceGetHandleByIndex = lambda index: index
    module.nvmlDeviceGetMemoryInfo = lambda _: types.SimpleNamespace(used=2, total=8)
    module.nvmlDeviceGetTemperature = lambda *_: 55
    module.nvmlDeviceGetPowerUsage = lambda _: 120_500

    def no_utilization(handle: int) -> None:
        raise module.NVMLError("not supported")

    def start() -> None:
        if not works:
            raise module.NVMLError("no driver")

    module.nvmlDeviceGetUtilizationRates = no_utilization
    module.nvmlInit = start
    return module


async def test_gpu_figures_come_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look asks, a later one has the figures; what a GPU cannot say is left out."""
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(works=True))
    gpus = GpuVitals()
    await until(gpus.latest)
    assert gpus.latest() == (
        {
            "index": 0.0,
            "memory_used_bytes": 2.0,
            "memory_total_bytes": 8.0,
            "temperature_celsius": 55.0,
            "power_watts": 120.5,
        },
    )


@pytest.mark.parametrize("module", [None, fake_nvml(works=False)])
async def test_no_gpu_is_no_trouble(module: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library or a driver there are simply no figures."""
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert GpuVitals().latest() == ()
