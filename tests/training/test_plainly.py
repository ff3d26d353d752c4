"""State as plain bytes: what may travel arrives as it was, and nothing else travels."""

from __future__ import annotations

import collections
import contextlib
import math

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmover.errors import ConfigError, DecodeError
from trainmover.training import plainly

KEYS = st.text(max_size=5) | st.integers(-10, 10)
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.binary(max_size=9)
    | st.floats(allow_nan=False)
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(VALUES)
def test_plain_data_survives(value: object) -> None:
    """Numbers of any size, text, bytes, lists, tuples and dicts with any keys come out equal."""
    found = plainly.unpack(plainly.pack(value, "x"))
    assert found == value
    assert repr(found) == repr(value)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.tensor(3),
        torch.empty(0, 4),
        torch.tensor([True, False]),
        torch.randn(3, dtype=torch.bfloat16),
        torch.tensor([1 + 2j]),
        torch.tensor([float("nan"), float("inf")]),
        torch.ones(2, requires_grad=True),
    ],
)
def test_tensors_survive(tensor: torch.Tensor) -> None:
    """A tensor keeps its dtype, shape and bits, wherever it stands."""
    for value, get in (({"a": [tensor]}, lambda v: v["a"][0]), ({1: (tensor,)}, lambda v: v[1][0])):
        found = get(plainly.unpack(plainly.pack(value, "x")))
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found.nan_to_num(), tensor.detach().nan_to_num())


def test_special_keys_are_only_keys() -> None:
    """A user's dict may have keys that look like ours."""
    value = {"__tensor__": [1], "__tuple__": {"__pairs__": 2}, "__int__": "5"}
    assert plainly.unpack(plainly.pack(value, "x")) == value


def test_what_is_nearly_plain() -> None:
    """NumPy scalars, ordered dicts, counters and NaN are taken as what they hold."""
    value = {
        "scalar": np.float32(1.5),
        "count": np.int64(3),
        "ordered": collections.OrderedDict(a=1),
        "counter": collections.Counter({10: 1}),
        "nan": float("nan"),
    }
    found = plainly.unpack(plainly.pack(value, "x"))
    assert (found["scalar"], found["count"], found["ordered"]) == (1.5, 3, {"a": 1})
    assert found["counter"] == {10: 1}
    assert math.isnan(found["nan"])


def test_a_numpy_generator_state_survives() -> None:
    """Data loaders keep NumPy bit generators, whose state holds integers of 128 bits."""
    state = np.random.default_rng(3).bit_generator.state
    assert plainly.unpack(plainly.pack(state, "data")) == state


@pytest.mark.parametrize("thing", [object(), {1, 2}, lambda: 0, np.zeros(3), slice(1), Exception()])
def test_what_is_not_plain_is_refused_with_its_path(thing: object) -> None:
    """The message says where in whose state the foreign object is."""
    with pytest.raises(ConfigError, match=rf"state of loader\.shards\[1\] holds a {type(thing).__name__}"):
        plainly.pack({"shards": [0, thing]}, "loader")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb(1) + b"more",
        msgpack.packb({"__tensor__": ["float32", [2], b"\0" * 7]}),
        msgpack.packb({"__tensor__": ["float32", [3], b"\0" * 8]}),
        msgpack.packb({"__tensor__": ["load", [1], b"\0" * 4]}),
        msgpack.packb({"__tensor__": ["nothing", [1], b"\0" * 4]}),
        msgpack.packb({"__tensor__": ["float32", [-1], b""]}),
        msgpack.packb({"__tensor__": 5}),
        msgpack.packb({"__tuple__": 5}),
        msgpack.packb({"__pairs__": [[[1], 2]]}),
        msgpack.packb({"__pairs__": [1]}),
        msgpack.packb({"__int__": "five"}),
        msgpack.packb({"__int__": []}),
    ],
)
def test_malformed_bytes_are_a_decode_error(data: bytes) -> None:
    """Nothing another rank sends is executed or raises anything but DecodeError."""
    with pytest.raises(DecodeError, match="not plain data"):
        plainly.unpack(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_data_or_a_decode_error(data: bytes) -> None:
    """Random bytes never raise anything else."""
    with contextlib.suppress(DecodeError):
        plainly.unpack(data)
