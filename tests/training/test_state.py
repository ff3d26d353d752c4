"""What a rank's state is made of: kept and put back, compared, and put in place elsewhere."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_module, distribute_tensor

from trainmover.errors import ConfigError, JobError
from trainmover.training.state import PIECE_BYTES, PIECES, TrackedState, sample_bytes, tensor_bytes


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Data:
    """A data loader's position."""

    def __init__(self, at: int = 0) -> None:
        self.at = at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Replica:
    """A small model with batch normalisation, an optimizer, a scheduler, a scaler and data."""

    def __init__(self, seed: int = 0, hidden: int = 5, kind: type = torch.optim.AdamW) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, 1))
        self.optimizer = kind(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 4], 0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        self.data = Data()
        self.tracked = TrackedState()
        self.tracked.add("model", self.model)
        self.tracked.add("optimizer", self.optimizer)
        self.tracked.add("scheduler", self.scheduler)
        self.tracked.add("scaler", self.scaler)
        self.tracked.add("data", self.data)

    def backward(self) -> None:
        self.model(torch.randn(8, 3)).square().sum().backward()
        self.data.at += 8

    def step(self) -> None:
        self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()


def test_a_void_step_leaves_no_trace() -> None:
    """Forward and backward, then put back: parameters, running statistics, data and random numbers."""
    replica = Replica()
    replica.step()
    tracked = replica.tracked
    private = tracked.private_values()
    before = [(name, tensor.clone()) for name, tensor in tracked.tensors()]
    digest = tracked.digest()
    first = None
    for _ in range(3):
        tracked.keep()
        replica.backward()
        drawn = torch.rand(3).tolist(), random.random()
        first = first or drawn
        assert drawn == first, "the redone step draws the same numbers"
        tracked.put_back()
        tracked.load_private_values(private)
        after = tracked.tensors()
        for (name, old), (_, new) in zip(before, after, strict=True):
            assert torch.equal(old, new), name
        assert replica.data.at == 8
        assert all(parameter.grad is None for parameter in replica.model.parameters())
    assert tracked.digest() == digest


def test_a_void_step_does_not_count_for_the_scaler() -> None:
    """GradScaler.update() is called whether the step counts or not; a void one is undone."""
    replica = Replica()
    for _ in range(2):
        replica.tracked.keep()
        replica.scaler.scale(replica.model(torch.randn(8, 3)).sum()).backward()
        replica.scaler.step(replica.optimizer)
        replica.scaler.update()
        assert replica.scaler.state_dict()["_growth_tracker"] == 1
        replica.tracked.put_back()
        assert replica.scaler.state_dict()["_growth_tracker"] == 0
    assert replica.scaler.get_scale() == 8.0


def test_keeping_follows_the_buffers() -> None:
    """What is kept is the state at the last keep(), also after buffers were replaced."""
    replica = Replica()
    norm = replica.model[1]
    replica.tracked.keep()
    replica.backward()
    replica.tracked.keep()
    kept = norm.running_mean.clone()
    replica.backward()
    replica.tracked.put_back()
    assert torch.equal(norm.running_mean, kept)
    norm.running_mean = torch.full((5,), 3.0)
    replica.tracked.keep()
    replica.backward()
    replica.tracked.put_back()
    assert torch.equal(norm.running_mean, torch.full((5,), 3.0))


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_a_replica_becomes_another(kind: type) -> None:
    """With another's tensors, shared and private values in place, both go on alike, bit for bit."""
    old, new = Replica(1, kind=kind), Replica(2, kind=kind)
    for _ in range(3):
        old.step()
    new.step()
    assert old.tracked.digest() != new.tracked.digest()
    assert old.tracked.schema() == new.tracked.schema()
    new.tracked.load_shared_values(old.tracked.shared_values())
    for (_, source), (_, target) in zip(old.tracked.tensors(), new.tracked.tensors(), strict=True):
        target.copy_(source)
    private = old.tracked.private_values()
    assert old.tracked.digest() == new.tracked.digest()
    assert new.scheduler.get_last_lr() == old.scheduler.get_last_lr() != [0.1]
    for replica in (old, new):
        replica.tracked.load_private_values(private)
        for _ in range(3):
            replica.step()
    assert old.tracked.digest() == new.tracked.digest()
    assert old.data.at == new.data.at == 48


def test_scalar_optimizer_state_is_shared() -> None:
    """Numbers in an optimizer's state travel with the shared values."""
    old, new = Replica(), Replica()
    for replica in (old, new):
        replica.step()
    parameter = old.optimizer.param_groups[0]["params"][0]
    old.optimizer.state[parameter]["seen"] = 17
    new.tracked.load_shared_values(old.tracked.shared_values())
    assert new.optimizer.state[new.optimizer.param_groups[0]["params"][0]]["seen"] == 17


def test_the_digest_sees_everything() -> None:
    """A change of any tensor, hyper-parameter or scheduler changes the digest."""
    replica = Replica()
    replica.step()
    seen = {replica.tracked.digest()}
    assert seen == {replica.tracked.digest()}
    for _, tensor in replica.tracked.tensors():
        tensor.view(-1)[0] += 1
        seen.add(replica.tracked.digest())
    replica.optimizer.param_groups[0]["lr"] = 0.3
    seen.add(replica.tracked.digest())
    replica.scheduler.last_epoch += 1
    seen.add(replica.tracked.digest())
    assert len(seen) == len(replica.tracked.tensors()) + 3


def test_private_values_do_not_enter_the_digest() -> None:
    """Replicas have the same digest although each has its own data and random numbers."""
    replica = Replica()
    digest = replica.tracked.digest()
    replica.data.at = 99
    torch.rand(4)
    assert replica.tracked.digest() == digest


@pytest.mark.parametrize("other", [Replica(hidden=6), Replica(kind=torch.optim.SGD)])
def test_another_model_is_refused(other: Replica) -> None:
    """A joiner whose tensors differ in name, dtype or shape says so and takes nothing."""
    replica = Replica()
    replica.step()
    other.step()
    digest = other.tracked.digest()
    with pytest.raises(JobError, match="do not have the tensors of the rank it replaces"):
        other.tracked.load_shared_values(replica.tracked.shared_values())
    assert other.tracked.digest() == digest


@pytest.mark.parametrize(
    ("name", "thing", "said"),
    [
        ("model", nn.Linear(1, 1), "'model' is tracked already"),
        ("data", Data(), "'data' is tracked already"),
        ("x", 5, "int has no state_dict"),
    ],
)
def test_what_cannot_be_tracked(name: str, thing: object, said: str) -> None:
    """A taken name, or an object without state, is a ConfigError that says so."""
    with pytest.raises(ConfigError, match=said):
        Replica().tracked.add(name, thing)


def test_private_state_must_be_plain_from_the_start() -> None:
    """An object whose state cannot travel is refused at once, not when a machine dies."""

    class Loader(Data):
        def state_dict(self) -> dict[str, object]:
            return {"file": object()}

    tracked = TrackedState()
    tracked.add("loader", Loader())
    with pytest.raises(ConfigError, match=r"loader\.file holds a object"):
        tracked.check()


def test_drawing_after_the_vote_changes_nothing() -> None:
    """Random numbers drawn after the vote (an evaluation, say) are undone at the boundary."""
    tracked = Replica().tracked
    tracked.private_values()
    expected = torch.rand(())
    tracked.settle_random()
    assert torch.rand(()) == expected
    TrackedState().settle_random()


def test_strided_tensors_count_too() -> None:
    """A channels-last or transposed parameter is compared by its values."""
    left, right = TrackedState(), TrackedState()
    weight = torch.randn(4, 3)
    for tracked, value in ((left, weight.clone()), (right, weight.t().contiguous().t())):
        module = nn.Linear(3, 4, bias=False)
        module.weight = nn.Parameter(value)
        tracked.add("m", module)
    assert left.digest() == right.digest()


def test_state_is_read_without_warnings() -> None:
    """Looking at the state of a fresh replica does not make torch complain."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replica = Replica()
        replica.tracked.shared_values()
        replica.tracked.load_shared_values(replica.tracked.shared_values())
        replica.step()


def test_a_distributed_tensor_is_what_this_rank_holds_of_it(alone: None) -> None:
    """Parameters, their optimizer state, buffers and gradients of a DTensor model count by their shards."""
    mesh = init_device_mesh("cpu", (1,))
    replicas = [Replica(seed) for seed in (1, 2)]
    for replica in replicas:
        model = replica.model
        for part in (model[0], model[2]):
            distribute_module(part, mesh, lambda _, part, mesh: shard(part, mesh))
        replica.tracked = TrackedState()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        replica.tracked.add("model", model)
        replica.tracked.add("optimizer", optimizer)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert {type(tensor) for _, tensor in replica.tracked.tensors()} <= {torch.Tensor, nn.Parameter}
        assert {type(tensor) for tensor in replica.tracked.gradients()} == {torch.Tensor}
    one, two = (replica.tracked for replica in replicas)
    assert one.schema() == two.schema()
    assert one.digest() != two.digest()
    for (_, mine), (_, theirs) in zip(two.tensors(), one.tensors(), strict=True):
        mine.copy_(theirs)
    assert one.digest() == two.digest()


def shard(part: nn.Module, mesh: DeviceMesh) -> None:
    """Cut a layer's parameters by rows."""
    for name, parameter in list(part.named_parameters(recurse=False)):
        part.register_parameter(name, nn.Parameter(distribute_tensor(parameter, mesh, [Shard(0)])))


def test_the_fingerprint_tells_ranks_apart() -> None:
    """Equal on replicas; another after a step, with other values, shapes or shared values."""
    one, two = Replica(), Replica()
    assert one.tracked.fingerprint() == two.tracked.fingerprint()
    assert Replica(seed=1).tracked.fingerprint() != one.tracked.fingerprint()
    assert Replica(hidden=6).tracked.fingerprint() != one.tracked.fingerprint()
    two.optimizer.param_groups[0]["lr"] = 0.2
    assert one.tracked.fingerprint() != two.tracked.fingerprint()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_a_sample_is_spread_over_the_tensor(kind: torch.dtype) -> None:
    """It has the first and the last bytes, and a bounded size; a small tensor is whole."""
    tensor = torch.arange(1_000_003).to(kind)
    whole = bytes(tensor_bytes(tensor))
    step = (len(whole) - PIECE_BYTES) // (PIECES - 1)
    pieces = [whole[number * step :][:PIECE_BYTES] for number in range(PIECES)]
    assert bytes(sample_bytes(tensor)) == b"".join(pieces)
    assert len(whole) - step * (PIECES - 1) - PIECE_BYTES < PIECES
    assert bytes(sample_bytes(tensor[:100])) == bytes(tensor_bytes(tensor[:100]))
    assert sample_bytes(torch.empty(0)).nbytes == 0
