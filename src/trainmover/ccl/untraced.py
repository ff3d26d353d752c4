"""Keep ``torch.compile`` out of the back end's own Python.

While a compiled model runs, Dynamo looks at every Python frame that is entered on that thread, also
at ours when torch's C++ side calls a collective (DDP broadcasts its buckets' order from there).  It
would trace code that hands work to other threads, break the graph in many places, and compile at
different moments on different ranks.  ``torch.compiler.disable`` prevents that, but imports the compiler,
which costs every process seconds that most never need.  Here the same is done with the two C functions
behind it, which are there without that import.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

T = TypeVar("T")

BASES = frozenset({"_allgather_base", "_reduce_scatter_base"})
"""Methods that torch calls although their names begin with an underscore."""


def untraced(kind: type[T]) -> type[T]:
    """Class decorator: the methods that torch calls, inherited ones too, run without being traced."""
    for name in dir(kind):
        method = getattr(kind, name)
        if isinstance(method, FunctionType) and (name in BASES or not name.startswith("_")):
            setattr(kind, name, _behind(method))
    return kind


def _behind(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        before = eval_frame.set_eval_frame(None)
        try:
            return method(*args, **kwargs)
        finally:
            eval_frame.set_eval_frame(before)

    _skip(call.__code__)
    return functools.wraps(method)(call)


def _skip(code: CodeType) -> None:
    """Mark a function as one that Dynamo runs as it is."""
    tools: Any = eval_frame
    if hasattr(tools, "skip_code"):
        tools.skip_code(code)
    elif hasattr(tools, "set_code_exec_strategy"):
        action = tools._FrameAction
        tools.set_code_exec_strategy(code, tools._FrameExecStrategy(action.SKIP, action.DEFAULT))
