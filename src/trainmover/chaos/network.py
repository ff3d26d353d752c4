"""Networks: each machine of a run in a network namespace of its own, so that it can be cut off.

What lives here: a namespace with a bridge (the switch of the room), a namespace and a cable per machine, a
cable to this computer, and what can be done to them.  It takes root and iproute2; :func:`why_not` says what
is missing.  The bridge has a namespace of its own so that this computer's packet filter has no say in it.

- *cut*: the cable is pulled at the bridge; nothing gets to the machine or from it, its bus neither.
- *part*: two machines take each other for somebody who is not there (a neighbour entry with an address
  that nobody has), so that frames between them are lost without a word.  Everybody else reaches both.
- *narrow*: the way between two machines takes small frames and loses large ones without a word (a cable
  for each direction, whose far end takes fewer bytes than the near end sends): links are made, and no tensor
  passes.

What is made here is named after the process that made it.  Nothing outlives :meth:`Network.close`;
:func:`sweep` removes what a killed process has left.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from typing import Final

import psutil

from trainmover.errors import ConfigError

NOBODY: Final = "02:00:00:00:00:01"
"""A link-layer address that no cable has."""
OUT, IN = "thin-out", "thin-in"
"""The cables that lose large frames, by their ends; a machine has at most one of each."""
LARGE, SMALL = 1500, 500
"""Bytes of a frame that one end of it sends, and that the other takes."""
LIMIT: Final = 10.0
PREFIX: Final = "tmc"
"""Names begin with it and the process id; a link's name has at most 15 characters."""


class Network:
    """The network of one run.

    Attributes:
        address: of this computer in it, where the bus is.
    """

    def __init__(self) -> None:
        pid = os.getpid()
        self._name = f"{PREFIX}{pid}"
        self._subnet = f"10.{224 + pid // 250 % 16}.{pid % 250}"
        self.address = f"{self._subnet}.1"
        self._machines: dict[str, int] = {}
        _ip("netns", "add", self._name)
        _ip("-n", self._name, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._name, "link", "set", "bridge", "up")
        _ip("link", "add", self._name, "type", "veth", "peer", "name", "home", "netns", self._name)
        self._plug("home")
        _ip("addr", "add", f"{self.address}/24", "dev", self._name)
        _ip("link", "set", self._name, "up")

    def machine(self, name: str) -> tuple[str, tuple[str, ...]]:
        """A machine's address, and what a command line begins with that runs there."""
        if name not in self._machines:
            self._machines[name] = number = len(self._machines) + 2
            space = self._space(name)
            _ip("netns", "add", space)
            _ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", name, "netns", self._name)
            self._plug(name)
            _ip("-n", space, "addr", "add", f"{self._subnet}.{number}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")
        return self._address(name), ("ip", "netns", "exec", self._space(name))

    def cut(self, name: str) -> None:
        """Nothing gets to a machine or from it any more."""
        _ip("-n", self._name, "link", "set", name, "down")

    def mend(self, name: str) -> None:
        """It is reached again."""
        _ip("-n", self._name, "link", "set", name, "up")

    def part(self, one: str, other: str) -> None:
        """Two machines do not reach each other any more."""
        for here, there in ((one, other), (other, one)):
            entry = (self._address(there), "lladdr", NOBODY, "nud", "permanent", "dev", "eth0")
            _ip("-n", self._space(here), "neigh", "replace", *entry)

    def join(self, one: str, other: str) -> None:
        """They reach each other again."""
        for here, there in ((one, other), (other, one)):
            _ip("-n", self._space(here), "neigh", "del", self._address(there), "dev", "eth0")

    def narrow(self, one: str, other: str) -> None:
        """Large packets between two machines are lost, in both directions."""
        for here, there in ((one, other), (other, one)):
            space, far = self._space(here), self._space(there)
            _ip("-n", space, "link", "add", OUT, "type", "veth", "peer", "name", IN, "netns", far)
            # A bundle of segments, which the card would cut, is not seen as too large: there are none.
            _ip("-n", space, "link", "set", OUT, "mtu", str(LARGE), "gso_max_segs", "1", "up")
            _ip("-n", far, "link", "set", IN, "mtu", str(SMALL), "up")
            # Each direction has a way of its own, which a strict system would take for a forgery.
            for conf in ("all", IN):
                _ip("netns", "exec", far, "sh", "-c", f"echo 0 > /proc/sys/net/ipv4/conf/{conf}/rp_filter")
        for here, there in ((one, other), (other, one)):
            way = (self._address(there), "dev", OUT, "src", self._address(here))
            _ip("-n", self._space(here), "route", "add", *way)

    def widen(self, one: str, other: str) -> None:
        """They take the same way as everybody again."""
        for name in (one, other):
            _ip("-n", self._space(name), "link", "del", OUT)

    def close(self) -> None:
        """Remove all of it."""
        for name in self._machines:
            with contextlib.suppress(ConfigError):
                _ip("netns", "del", self._space(name))
        self._machines.clear()
        for what in ("netns", "link"):
            with contextlib.suppress(ConfigError):
                _ip(what, "del", self._name)

    def _plug(self, cable: str) -> None:
        _ip("-n", self._name, "link", "set", cable, "master", "bridge")
        _ip("-n", self._name, "link", "set", cable, "up")

    def _address(self, name: str) -> str:
        return f"{self._subnet}.{self._machines[name]}"

    def _space(self, name: str) -> str:
        return f"{self._name}-{name}"


def why_not() -> str:
    """Why machines cannot have networks of their own here; empty when they can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no `ip` (Debian and Ubuntu: apt install iproute2)"
    try:
        network = Network()
    except ConfigError as error:
        return str(error)
    try:
        network.machine("m0")
        network.cut("m0")
    except ConfigError as error:
        return str(error)
    finally:
        network.close()
    return ""


def left() -> list[str]:
    """Namespaces of processes that are gone."""
    found = re.findall(rf"\b({PREFIX}(\d+)(?:-\w+)?)\b", _ip("netns", "list"))
    return [name for name, pid in dict.fromkeys(found) if not psutil.pid_exists(int(pid))]


def sweep() -> None:
    """Remove what killed processes have left."""
    for name in left():
        with contextlib.suppress(ConfigError):
            _ip("netns", "del", name)


def _ip(*arguments: str) -> str:
    """Run ``ip``.

    Raises:
        ConfigError: it says no, or hangs.
    """
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"ip {' '.join(arguments)}: {error}") from error
    if done.returncode:
        raise ConfigError(f"ip {' '.join(arguments)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
