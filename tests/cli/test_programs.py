"""The programs of a cluster, as processes: how they start, what they answer, how they end."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import nats

from trainmover.events import NatsServer


async def ask(url: str, subject: str) -> dict:
    """The first answer, asked for until somebody is there, at most 30 s."""
    client = await nats.connect(url)
    try:
        for _ in range(150):
            try:
                return json.loads((await client.request(subject, b"", timeout=0.2)).data)
            except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
                await asyncio.sleep(0.05)
    finally:
        await client.close()
    raise TimeoutError(subject)


def test_a_service_answers_nats_micro_logs_json_and_ends_on_sigterm(tmp_path: Path) -> None:
    """A tool that knows the protocol finds it; its lines are JSON with the job and the service."""
    with NatsServer(tmp_path) as server:
        command = [sys.executable, "-m", "trainmover.cli", "-v", "service", "health"]
        child = subprocess.Popen(
            [*command, "--bus", server.url, "--job", "job"], stderr=subprocess.PIPE, text=True
        )
        try:
            stats = asyncio.run(ask(server.url, "$SRV.STATS.trainmover-health"))
        finally:
            child.send_signal(signal.SIGTERM)
            _, lines = child.communicate(timeout=30)
    assert child.returncode == 0
    assert stats["metadata"] == {"job": "job"}
    assert stats["endpoints"][0]["subject"] == "trainmover.job.>"
    rows = [json.loads(line) for line in lines.splitlines()]
    assert "rebuilt from the log" in {row["event"] for row in rows}
    assert {(row["job"], row["service"], row["level"]) for row in rows} == {("job", "health", "info")}
