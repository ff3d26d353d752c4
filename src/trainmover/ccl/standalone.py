"""Standalone: the backend in any script, without a job, a bus or a machine program.

``dist.init_process_group("trainmover", ...)`` finds no communicator that a job has installed, so the
process makes its own.  What a job's bus would tell is told by torch's own store (``env://``,
``tcp://``, ``file://``, or one that the caller made): the first process to come names a secret, and every
process writes down where it listens, which process it is and on which machine.  Whoever can read that
store can join; it is as safe as the store.

A process has one link table, one engine and one communicator for all its groups, from the first
group to the last one destroyed.  Its only epoch is the first: nobody votes here, so a broken epoch is
raised to the caller, and lasts until the groups are destroyed and made again.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import Store

from trainmover.ccl.communicator import Communicator, GroupInfo
from trainmover.ccl.engine import Engine
from trainmover.ccl.membership import Handle
from trainmover.ccl.table import LinkTable, Peer, Plan, new_life
from trainmover.errors import LinkError

log = logging.getLogger(__name__)

HOST = "TRAINMOVER_HOST"
"""Environment variable: the address that this process listens on and gives to its peers."""

IDENTITY = "TRAINMOVER_MACHINE_IDENTITY"
"""Environment variable: a name for this machine, in place of the one found; equal names, same machine."""

EPOCH = 1
JOB = "standalone"


@dataclass(frozen=True, slots=True)
class Address:
    """What a process writes into the store about itself."""

    peer: Peer
    machine: str

    def encode(self) -> str:
        return json.dumps([self.peer.host, self.peer.port, self.peer.life, self.machine])

    @classmethod
    def decode(cls, text: bytes) -> Address:
        host, port, life, machine = json.loads(text)
        return cls(Peer(str(host), int(port), str(life)), str(machine))


class Standalone:
    """A process's own engine and communicator, for as long as it has groups.

    Args:
        store: a store that all processes share.
        rank: own global rank.
        world_size: number of ranks.
        limit: seconds that meeting the peers, and each call, may take.
    """

    def __init__(self, store: Store, rank: int, world_size: int, limit: float) -> None:
        self._store, self.limit, self._pid = store, limit, os.getpid()
        # A store can outlive the groups made with it: each round of making them has its own keys.
        self._round = store.add(f"trainmover/round/{rank}", 1)
        self._secret = self._agree_on_secret()
        table = LinkTable(JOB, new_life("rank", rank), self._secret, listening_host(store))
        self._peers: dict[int, Peer] = {}
        self._positions: dict[int, int] = {}
        self._machines: dict[str, int] = {}
        self._engine = Engine(table, self._broke)
        self.communicator = Communicator(
            self._engine, rank, world_size, 1, limit, positions=self._positions, on_broken="raise"
        )
        self._machine = machine_identity()
        own = Address(Peer(table.host, table.port, table.life), self._machine)
        store.set(self._key(rank), own.encode())
        plan = Plan(EPOCH, rank, self._peers, frozenset(), limit)
        self._engine.adopt(plan)
        self.communicator.plan = plan
        atexit.register(self._leave)

    def meet(self, ranks: Sequence[int]) -> None:
        """Learn where these ranks are; each of them must be about to do the same.

        Raises:
            LinkError: one of them did not come in time.
        """
        unknown = [rank for rank in ranks if rank not in self._peers]
        for rank in unknown:
            try:
                self._store.wait([self._key(rank)], timedelta(seconds=self.limit))
            except RuntimeError as error:
                raise LinkError(
                    f"rank {self.communicator.rank}: rank {rank} did not come within {self.limit:g} s; "
                    "every rank of a group must make it"
                ) from error
            address = Address.decode(self._store.get(self._key(rank)))
            beside = address.machine == self._machine
            self._peers[rank] = replace(address.peer, beside=beside)
            self._positions[rank] = self._machines.setdefault(address.machine, len(self._machines))

    def handle(self) -> Handle:
        """What others need to take this process into a group, as of now."""
        table, comm = self._engine.table, self.communicator
        own = Peer(table.host, table.port, table.life)
        return Handle(own, self._machine, comm.rank, self._engine.epoch, self._secret.hex())

    def trust(self, secret: bytes) -> None:
        """Connect with those who know this secret from now on."""
        self._secret = secret
        self._engine.table.trust(secret)

    def enter(self, plan: Plan, positions: Mapping[int, int], group: str, drop_pairs: bool) -> None:
        """Begin a prepared epoch, in which the group is everybody and the ranks are the plan's.

        Raises:
            CallsOpen: calls of the current epoch are under way.
        """
        table, comm = self._engine.table, self.communicator
        if drop_pairs:
            self._engine.ask(lambda: table.drop_pairs(group))
        self._engine.adopt(plan)
        self._engine.fatal = None
        self._peers, self._positions = dict(plan.peers), dict(positions)
        comm.rank, comm.world_size, comm.positions = plan.rank, len(positions), self._positions
        comm.groups[group] = GroupInfo(group, tuple(range(len(positions))), comm.groups[group].limit)
        comm.plan = plan

    def close(self) -> None:
        """Say goodbye on every link and end the engine's thread."""
        atexit.unregister(self._leave)
        self._engine.stop()
        self._engine.table.join()

    def _leave(self) -> None:
        # A script that ends without destroying its groups must not look like one that was killed.
        # A forked child holds copies of the sockets, but it is not the one to say goodbye.
        if os.getpid() == self._pid and threading.current_thread() is threading.main_thread():
            self._engine.stop()

    def _agree_on_secret(self) -> bytes:
        mine = os.urandom(32).hex()
        agreed: Any = self._store.compare_set(f"trainmover/{self._round}/secret", "", mine)
        return bytes.fromhex(agreed.decode() if isinstance(agreed, bytes) else agreed)

    def _key(self, rank: int) -> str:
        return f"trainmover/{self._round}/rank/{rank}"

    def _broke(self, epoch: int, peer: int | None, reason: str, told: bool) -> None:
        log.info("rank %d: links are broken: %s", self.communicator.rank, reason)


def machine_identity() -> str:
    """A name that processes share exactly when they can share memory and abstract sockets."""
    if given := os.environ.get(IDENTITY):
        return given
    parts = [socket.gethostname()]
    for read in (_boot_id, _network_namespace):
        try:
            parts.append(read())
        except OSError:
            parts.append("?")
    return " ".join(parts)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _network_namespace() -> str:
    return os.readlink("/proc/self/ns/net")


def listening_host(store: Store) -> str:
    """The address to listen on: the one that reaches the store's host, else this host's name."""
    if given := os.environ.get(HOST):
        return given
    target = store_host(store)
    if target in ("localhost", "127.0.0.1", "::1"):
        return "127.0.0.1"
    try:
        if target:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))  # sends nothing: only chooses the way there
                return str(probe.getsockname()[0])
        found = socket.gethostbyname(socket.gethostname())
        socket.create_server((found, 0)).close()
    except OSError:
        return "127.0.0.1"
    return found


def store_host(store: Any) -> str:
    """Name of the host that keeps a TCP store; empty for other stores."""
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    return str(getattr(store, "host", ""))
