"""The state of a rank: what it is made of, how it is kept, compared and put in place.

Three kinds.  *Tensors*: parameters, buffers and the optimizers' tensors, shared by all replicas;
they are copied straight into place.  *Shared values*: the rest of what replicas have in common
(hyper-parameters, schedulers, scalers, the step number), small.  *Private values*: what belongs
to one rank alone (random generators, data position, anything else tracked), small; a guardian on
another machine keeps a copy of them, see :mod:`trainmover.training.boundary`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainmover.ccl.view import as_bytes
from trainmover.errors import ConfigError, JobError
from trainmover.training import plainly, randomness
from trainmover.training.guards import Calls

PIECES, PIECE_BYTES = 16, 1024
"""How many pieces of which size are a sample of a tensor."""

SHARED_TYPES: tuple[type, ...] = (LRScheduler, torch.amp.GradScaler)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor: the shard of a distributed one (DTensor), else the tensor itself."""
    to_local = getattr(tensor, "to_local", None)
    if to_local is None:
        return tensor
    with torch.no_grad():
        found: torch.Tensor = to_local()
    return found


class TrackedState:
    """Everything that the script asked to track."""

    def __init__(self) -> None:
        self.modules: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.shared: dict[str, Any] = {}
        self.private: dict[str, Any] = {}
        self._shadow: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._scalers: dict[str, dict[str, Any]] = {}
        self._random: dict[str, Any] = {}
        self.seed: int | None = None
        """What the random numbers of this rank's shares are made from; None where it asked for none."""
        self._calls = Calls()
        self._called = Calls()
        self.watch: Callable[[Any], None] = lambda _: None
        """Called with each thing that is tracked, as the script made it."""

    def add(self, name: str, thing: Any) -> None:
        """Track one more object.

        Raises:
            ConfigError: the name is taken or the object has no state_dict / load_state_dict.
        """
        if any(name in kind for kind in (self.modules, self.optimizers, self.shared, self.private)):
            raise ConfigError(f"something named {name!r} is tracked already")
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise ConfigError(
                f"cannot track {name!r}: {type(thing).__name__} has no state_dict and load_state_dict"
            )
        self.watch(thing)
        if isinstance(thing, nn.Module):
            self.modules[name] = thing
        elif isinstance(thing, Optimizer):
            self.optimizers[name] = thing
        elif isinstance(thing, SHARED_TYPES):
            self.shared[name] = thing
        else:
            self.private[name] = thing

    def check(self) -> None:
        """Find out now, not at the first switch, whether all of it can travel.

        Raises:
            ConfigError: an object's state holds something that is not plain data.
        """
        self.shared_values()
        self.private_values()

    # -- tensors -------------------------------------------------------------------------------

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """All shared tensors with their names, in an order that is the same on every replica."""
        found = [(f"{name}.{key}", tensor) for name, tensor, key in self._module_tensors()]
        for name, optimizer in self.optimizers.items():
            for index, (key, value) in self._optimizer_items(optimizer):
                if isinstance(value, torch.Tensor):
                    found.append((f"{name}.{index}.{key}", local(value)))
        return found

    def gradients(self) -> list[torch.Tensor]:
        """The gradients that there are now."""
        parameters = [p for module in self.modules.values() for p in module.parameters()]
        for optimizer in self.optimizers.values():
            parameters += [p for group in optimizer.param_groups for p in group["params"]]
        return [local(p.grad) for p in dict.fromkeys(parameters) if p.grad is not None]

    def _module_tensors(self) -> Iterator[tuple[str, torch.Tensor, str]]:
        for name, module in self.modules.items():
            for key, parameter in module.named_parameters():
                yield name, local(parameter).detach(), key  # in this order: a DTensor's own detach is slow
            for key, buffer in module.named_buffers():
                yield name, local(buffer), key

    @staticmethod
    def _optimizer_items(optimizer: Optimizer) -> Iterator[tuple[int, tuple[str, Any]]]:
        index = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for key in sorted(optimizer.state.get(parameter, {})):
                    yield index, (key, optimizer.state[parameter][key])
                index += 1

    def schema(self) -> str:
        """A digest of the tensors' names, dtypes and shapes: equal on ranks that can replace each other."""
        text = "\n".join(f"{name} {tensor.dtype} {tuple(tensor.shape)}" for name, tensor in self.tensors())
        return hashlib.sha256(text.encode()).hexdigest()

    # -- shared values -------------------------------------------------------------------------

    def shared_values(self) -> bytes:
        """The small state that replicas have in common, and what tensors it belongs to."""
        return plainly.pack({"schema": self.schema(), **self._values()}, "job")

    def values(self) -> bytes:
        """The small state that replicas have in common."""
        return plainly.pack(self._values(), "job")

    def _values(self) -> dict[str, Any]:
        optimizers: dict[str, Any] = {}
        for name, optimizer in self.optimizers.items():
            groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
            scalars = [
                [index, key, value]
                for index, (key, value) in self._optimizer_items(optimizer)
                if not isinstance(value, torch.Tensor)
            ]
            optimizers[name] = {"groups": groups, "scalars": scalars}
        others = {name: thing.state_dict() for name, thing in self.shared.items()}
        return {"optimizers": optimizers, "others": others}

    def load_shared_values(self, data: bytes) -> None:
        """Put another replica's shared values in place.

        Raises:
            JobError: its tensors differ from this rank's in name, dtype or shape.
        """
        values = plainly.unpack(data)
        if values["schema"] != self.schema():
            raise JobError(
                "this rank's model and optimizer do not have the tensors of the rank it replaces; "
                "does the script build something else on this machine?"
            )
        for name, saved in values["optimizers"].items():
            optimizer = self.optimizers[name]
            for group, fresh in zip(optimizer.param_groups, saved["groups"], strict=True):
                group.update(fresh)
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            for index, key, value in saved["scalars"]:
                optimizer.state[parameters[index]][key] = value
        for name, saved in values["others"].items():
            self.shared[name].load_state_dict(saved)

    # -- private values ------------------------------------------------------------------------

    def private_values(self) -> bytes:
        """The small state that belongs to this rank alone."""
        things = {name: thing.state_dict() for name, thing in self.private.items()}
        self._random = randomness.capture()
        return plainly.pack({"things": things, "seed": self.seed}, "job", random=self._random)

    def load_private_values(self, data: bytes) -> None:
        """Put a rank's private values in place (its own earlier ones, or those of the rank it becomes)."""
        values = plainly.unpack(data)
        for name, saved in values["things"].items():
            self.private[name].load_state_dict(saved)
        randomness.restore(values["random"])
        self.seed = values.get("seed", self.seed)

    def settle_random(self) -> None:
        """Set the generators to what the step was voted with.

        Numbers drawn after the vote (an evaluation, say) must not shift the training's, because a
        rank that takes over from the voted state has not drawn them.
        """
        if self._random and randomness.capture() != self._random:
            randomness.restore(self._random)

    # -- void and redo -------------------------------------------------------------------------

    def keep(self) -> None:
        """Remember what a step may change without its vote: buffers (forward passes write them), scalers.

        All are copied every time: a tensor's version does not tell, since batch normalisation writes
        its running statistics without counting it up.
        """
        self._calls = Calls()
        self._scalers = self._scaler_states()
        buffers = [local(tensor) for module in self.modules.values() for tensor in module.buffers()]
        if len(buffers) != len(self._shadow) or any(
            a is not b for a, (b, _) in zip(buffers, self._shadow, strict=False)
        ):
            self._shadow = [(tensor, tensor.detach().clone()) for tensor in buffers]
            return
        for tensor, copy in self._shadow:
            copy.copy_(tensor)

    def _scaler_states(self) -> dict[str, dict[str, Any]]:
        things = self.shared.items()
        return {name: thing.state_dict() for name, thing in things if not isinstance(thing, LRScheduler)}

    def note_call(self, name: str, *args: Any, **kwargs: Any) -> None:
        """A tracked optimizer or scheduler does its step."""
        self._calls.note(name, *args, **kwargs)

    def keep_calls(self, committed: int) -> None:
        """The body of a step that is committed has ended: nothing more is called for it."""
        self._called = self._calls
        self._called.step = committed

    def calls(self) -> Calls:
        """What was called after the vote on the last committed step; between two iterations."""
        self._called.scalers = self._scaler_states()
        return self._called

    def put_back(self) -> None:
        """Undo what a void step changed: buffers and scalers back, gradients dropped."""
        for name, saved in self._scalers.items():
            self.shared[name].load_state_dict(saved)
        with torch.no_grad():
            for tensor, copy in self._shadow:
                tensor.copy_(copy)
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)

    # -- comparing -----------------------------------------------------------------------------

    def digest(self) -> str:
        """SHA-256 over parameters, buffers and optimizer tensors, then the shared values."""
        found = hashlib.sha256()
        for name, tensor in self.tensors():
            found.update(name.encode())
            found.update(tensor_bytes(tensor))
        found.update(self.shared_values())
        return found.hexdigest()

    def fingerprint(self) -> bytes:
        """SHA-256 over a sample of every tensor, and the shared values: equal on replicas, and only there.

        Ranks that hold different parts of a model differ in nearly every element, so a few pieces of each
        tensor tell them apart, at a cost that does not grow with the model.  When state is copied, the
        whole of it is compared.
        """
        found = hashlib.sha256()
        for name, tensor in self.tensors():
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            found.update(sample_bytes(tensor))
        found.update(self.shared_values())
        return found.digest()

    def rebuild_buckets(self) -> None:
        """Let every DistributedDataParallel settle its bucket order now.

        DDP does so in the forward pass after its first backward, with broadcasts from rank 0.  Done
        here, at the first boundary, it happens at the same point on every rank whatever breaks, and
        a joiner that replays the recording arrives with the same order.
        """
        for module in self.modules.values():
            for part in module.modules():
                if isinstance(part, DistributedDataParallel):
                    part.reducer._rebuild_buckets()


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """A tensor's content as bytes; without a copy when it is contiguous and on the CPU."""
    flat = tensor if tensor.is_cpu and tensor.is_contiguous() else tensor.detach().cpu().contiguous()
    return as_bytes(flat.view(-1)) if flat.numel() else memoryview(b"")


def sample_bytes(tensor: torch.Tensor) -> memoryview:
    """A tensor's content, or for a larger one pieces of it that are spread evenly."""
    if tensor.nbytes <= PIECES * PIECE_BYTES or not tensor.is_contiguous():
        return tensor_bytes(tensor)
    flat = tensor.detach().reshape(-1).view(torch.uint8)
    step = (flat.numel() - PIECE_BYTES) // (PIECES - 1)
    return tensor_bytes(flat.as_strided((PIECES, PIECE_BYTES), (step, 1)))
