"""State dictionaries as plain bytes: numbers, strings, lists, dicts and tensors, nothing else.

What a rank sends to another must never be unpickled, so anything that is not plain data is
refused when it is packed, with its path in the message.
"""

from __future__ import annotations

from typing import Any

import msgpack
import torch

from trainmover.errors import ConfigError, DecodeError

_TENSOR = "__tensor__"
_TUPLE = "__tuple__"
_PAIRS = "__pairs__"
_INT = "__int__"


def pack(value: Any, what: str, **plain: Any) -> bytes:
    """The value's bytes; ``plain`` are more entries of a dictionary, known to be plain data.

    Raises:
        ConfigError: something in it is not plain data; ``what`` names whose state it is.
    """
    found = _plain(value, what)
    packed: bytes = msgpack.packb({**plain, **found} if plain else found, use_bin_type=True)
    return packed


def unpack(data: bytes | memoryview) -> Any:
    """The value of :func:`pack`'s bytes."""
    try:
        return _rich(msgpack.unpackb(data, raw=False, strict_map_key=False))
    except (ValueError, TypeError, RuntimeError, msgpack.UnpackException) as error:
        raise DecodeError(f"state from another rank is not plain data: {error}") from error


def _plain(value: Any, path: str) -> Any:
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return {_INT: str(value)}
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        return {_TENSOR: [str(value.dtype).removeprefix("torch."), list(value.shape), data]}
    if isinstance(value, tuple):
        return {_TUPLE: [_plain(item, f"{path}[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, list):
        return [_plain(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("__") for key in value):
            return {key: _plain(item, f"{path}.{key}") for key, item in value.items()}
        return {_PAIRS: [[_plain(k, path), _plain(v, f"{path}[{k!r}]")] for k, v in value.items()]}
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    raise ConfigError(
        f"the state of {path} holds a {type(value).__name__}; a tracked object's state_dict may hold only "
        "numbers, strings, bytes, lists, tuples, dicts and tensors"
    )


def _rich(value: Any) -> Any:
    if isinstance(value, list):
        return [_rich(item) for item in value]
    if isinstance(value, dict):
        if _TENSOR in value:
            dtype, shape, data = value[_TENSOR]
            kind = getattr(torch, str(dtype), None)
            if not isinstance(kind, torch.dtype):
                raise ValueError(f"{dtype!r:.40} is no dtype")
            return (
                torch.frombuffer(bytearray(data), dtype=kind).reshape(shape)
                if data
                else torch.empty(shape, dtype=kind)
            )
        if _INT in value:
            return int(value[_INT])
        if _TUPLE in value:
            return tuple(_rich(item) for item in value[_TUPLE])
        if _PAIRS in value:
            return {_rich(key): _rich(item) for key, item in value[_PAIRS]}
        return {key: _rich(item) for key, item in value.items()}
    return value
