"""What is made of a model once, and kept for the calls that follow."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from torch import Tensor, nn

T = TypeVar("T")

# One for all: what is made takes memory and all processors, so that nothing is won by making two at once.
_making = threading.RLock()


class Kept:
    """Things made of a model, until it is another model or its tensors have changed; for any number of threads.

    A tensor has changed where it is another one, lies elsewhere, or was written to in place, as PyTorch counts. PyTorch
    does not count what is written through `.data` or a NumPy array that shares its memory.

    A copy of it, pickled or not, is empty.
    """

    def __init__(self) -> None:
        self._things: dict[str, tuple[_State, Any]] = {}

    def clear(self) -> None:
        """Make all of it anew: of a model that was written to in a way that shows in no tensor's version."""
        self._things = {}

    def get(self, name: str, make: Callable[[], T], model: nn.Module, *others: object) -> T:
        """What `make` makes of the model, from the last call unless something has changed since.

        Args:
            name: of the thing.
            make: makes it.
            model: what it is made of.
            others: what it is made of besides, any of which may be another object next time.
        """
        state = _State(model, others)
        known = self._things.get(name)
        if known is None or known[0] != state:
            with _making:
                # Another thread may have made it meanwhile.
                known = self._things.get(name)
                if known is None or known[0] != state:
                    known = self._things[name] = state, make()
        return cast(T, known[1])

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()


class _State:
    """What a model is at a moment; equal to another one if nothing has changed in between."""

    def __init__(self, model: nn.Module, others: tuple[object, ...]) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        # They are held, so that no other object can come to have the identity of one.
        self._held = (model, *others, *tensors)
        self._seen = [*map(id, self._held), *map(_seen, tensors)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _State) and self._seen == other._seen

    __hash__ = None  # type: ignore[assignment]


def _seen(tensor: Tensor) -> tuple[object, ...]:
    written = 0 if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), written, tensor.device, tensor.dtype


def _make_lock_anew() -> None:
    """In a forked process: a thread that it does not have may have held the lock."""
    global _making
    _making = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_make_lock_anew)
