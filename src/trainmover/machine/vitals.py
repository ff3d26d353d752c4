"""What a machine sees of itself: its rank processes, its memory, its GPUs.

What lives here: readings for the heartbeat.  Nothing here may block or raise: a process that ends
between two looks is simply ``exited``, and a GPU library that hangs only makes its own figures old
(it is asked in a thread, and never twice at a time).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import psutil

RankState = Literal["starting", "running", "stopped", "exited"]
STOPPED = frozenset({psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP})


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at one process."""

    state: Literal["running", "stopped", "exited"]
    cpu_percent: float = 0.0
    rss_bytes: int = 0


class ProcessVitals:
    """Readings of processes by pid; keeps what is needed to turn CPU time into a percentage."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}

    def read(self, pids: Iterable[int]) -> dict[int, Reading]:
        """Look at these processes now; others are forgotten."""
        wanted = tuple(pids)
        self._known = {pid: process for pid, process in self._known.items() if pid in wanted}
        return {pid: self._read(pid) for pid in wanted}

    def _read(self, pid: int) -> Reading:
        try:
            process = self._known.get(pid)
            if process is None:
                process = self._known[pid] = psutil.Process(pid)
            with process.oneshot():
                status = process.status()
                if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    return Reading("exited")
                state: Literal["running", "stopped"] = "stopped" if status in STOPPED else "running"
                return Reading(state, max(0.0, process.cpu_percent(None)), process.memory_info().rss)
        except psutil.Error:
            return Reading("exited")


class GpuVitals:
    """Figures of every GPU by NVML; none when there is no GPU or ``pynvml`` is not installed."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        self._asking: asyncio.Future[tuple[dict[str, float], ...]] | None = None
        self._latest: tuple[dict[str, float], ...] = ()
        with contextlib.suppress(Exception):
            import pynvml

            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            self._nvml = pynvml

    def latest(self) -> tuple[dict[str, float], ...]:
        """The newest figures there are; asks for newer ones in the background."""
        if self._nvml is None:
            return ()
        if self._asking is not None and self._asking.done():
            if self._asking.exception() is None:
                self._latest = self._asking.result()
            self._asking = None
        if self._asking is None:
            self._asking = asyncio.get_running_loop().run_in_executor(None, self._ask)
        return self._latest

    def _ask(self) -> tuple[dict[str, float], ...]:
        return tuple(self._one(index, handle) for index, handle in enumerate(self._handles))

    def _one(self, index: int, handle: Any) -> dict[str, float]:
        nvml = self._nvml
        figures: dict[str, float] = {"index": float(index)}
        # Not every GPU answers every question (a MIG slice has no utilization, for instance).
        with contextlib.suppress(nvml.NVMLError):
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            figures |= {"memory_used_bytes": float(memory.used), "memory_total_bytes": float(memory.total)}
        with contextlib.suppress(nvml.NVMLError):
            figures["utilization_percent"] = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        with contextlib.suppress(nvml.NVMLError):
            figures["temperature_celsius"] = float(
                nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            )
        with contextlib.suppress(nvml.NVMLError):
            figures["power_watts"] = nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0
        return figures
