"""What PyTorch makes while something runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class WideTensors(TorchDispatchMode):
    """Storages of dense tensors with at least so many entries, in the order of their creation.

    Args:
        n_entries: how many.
        known: tensors that were there before.
    """

    def __init__(self, n_entries: int, known: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.n_entries = n_entries
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.made: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and tensor.numel() >= self.n_entries:
                pointer = tensor.untyped_storage().data_ptr()
                if pointer not in self.known:
                    self.known.add(pointer)
                    self.made.append(str(func))
        return result
