"""Tensors with a JSON header in one file that is either whole or absent (safetensors, never pickle)."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from torch import Tensor

from extremegp.errors import ModelFormatError
from extremegp.storage.streams import atomic_writer

_BLOCK = 1 << 22  # numbers written at a time
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a JSON-able header to one safetensors file, atomically.

    Raises:
        DataError: the file cannot be written there.
    """
    # By hand, and a tensor at a time: the library would hold a copy of all of them.
    described: dict[str, Any] = {"__metadata__": {"json": json.dumps(header)}}
    ordered, end = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])), 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.element_size()
        described[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(described, separators=(",", ":")).encode()
    # The numbers start at a multiple of 8 bytes.
    text += b" " * (-len(text) % 8)
    with atomic_writer(path) as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            flat = tensor.detach().cpu().contiguous().view(-1)
            for part in torch.split(flat, _BLOCK):
                stream.write(part.view(torch.uint8).numpy().tobytes())


class StoredTensors(dict[str, Tensor]):
    """Tensors of a file by name, some of which may be mapped from it."""

    def __init__(self, whole: mmap.mmap | None = None) -> None:
        super().__init__()
        self._whole = whole

    def release(self) -> None:
        """Let go of the memory of what was read of mapped tensors, which are read again where they are used.

        What was written to them is lost: it is for after they were checked.
        """
        if self._whole is not None and hasattr(self._whole, "madvise"):
            self._whole.madvise(mmap.MADV_DONTNEED)


def read_tensors(path: str | Path, *, mapped: Sequence[str] = ()) -> tuple[StoredTensors, dict[str, Any]]:
    """Read what `write_tensors` wrote.

    Args:
        path: the file.
        mapped: how the names of tensors start that are mapped from the file rather than read. What is written to them
            stays in this process. They outlive the name of the file, but the file must not be written to.

    Raises:
        ModelFormatError: the file is missing, truncated, altered, or has no header of ours.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelFormatError(f"{path}: no such file")
    try:
        with safetensors.safe_open(str(path), framework="pt") as opened:
            header = json.loads((opened.metadata() or {})["json"])
        tensors = _read_all(path, tuple(mapped))
    except (safetensors.SafetensorError, KeyError, ValueError, OSError, RecursionError) as error:
        raise ModelFormatError(f"{path}: not a readable tensor file ({error})") from error
    if not isinstance(header, dict):
        raise ModelFormatError(f"{path}: its header is not a JSON object")
    return tensors, header


def _read_all(path: Path, mapped: tuple[str, ...]) -> StoredTensors:
    """The tensors of a file whose header is sound.

    Those that are not mapped go into memory of torch's own alignment, on which bit-identical arithmetic depends, and
    without mapping the file, whose pages would count as memory of the process.
    """
    dtypes = {name: dtype for dtype, name in _DTYPES.items()}
    with open(path, "rb") as stream:
        whole = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY) if mapped else None
        tensors = StoredTensors(whole)
        size = int.from_bytes(stream.read(8), "little")
        for name, entry in json.loads(stream.read(size)).items():
            if name == "__metadata__":
                continue
            shape, dtype, start = entry["shape"], dtypes[entry["dtype"]], 8 + size + entry["data_offsets"][0]
            # Files of other writers may have numbers anywhere.
            if whole is not None and name.startswith(mapped) and start % dtype.itemsize == 0 and 0 not in shape:
                n_bytes = math.prod(shape) * dtype.itemsize
                tensors[name] = torch.from_numpy(np.frombuffer(whole, np.uint8, n_bytes, start)).view(dtype).view(shape)
                continue
            tensor = torch.empty(shape, dtype=dtype)
            stream.seek(start)
            content = memoryview(tensor.view(-1).view(torch.uint8).numpy().data)
            if stream.readinto(content) != len(content):
                raise ValueError(f"tensor {name!r} is cut short")
            tensors[name] = tensor
    return tensors


def all_finite(tensor: Tensor) -> bool:
    """Whether no entry is NaN or infinite, found out in one pass and without a copy of the tensor."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return all(math.isfinite(extreme) for extreme in torch.aminmax(tensor.detach()))


def check_state(module: torch.nn.Module, tensors: Mapping[str, Tensor], *, source: str | Path) -> None:
    """Check that tensors have the names, shapes and dtypes of a module's, and are finite.

    Raises:
        ModelFormatError: `tensors` are not those of such a module.
    """
    state = module.state_dict()
    if state.keys() != tensors.keys():
        odd = sorted(state.keys() ^ tensors.keys())[0]
        raise ModelFormatError(f"{source}: tensor {odd!r} is missing or unexpected")
    for name, parameter in state.items():
        tensor = tensors[name]
        if tensor.shape != parameter.shape or tensor.dtype != parameter.dtype:
            raise ModelFormatError(
                f"{source}: tensor {name!r} is {tensor.dtype} {tuple(tensor.shape)}, "
                f"expected {parameter.dtype} {tuple(parameter.shape)}"
            )
        if not all_finite(tensor):
            raise ModelFormatError(f"{source}: tensor {name!r} holds NaN or infinity")
        if not tensor.is_floating_point() and not _indexes(module, name, tensor):
            raise ModelFormatError(f"{source}: tensor {name!r} holds an index out of range")
        if not _within_limits(module, name, tensor):
            raise ModelFormatError(f"{source}: tensor {name!r} holds a value out of range")


def _indexes(module: torch.nn.Module, name: str, tensor: Tensor) -> bool:
    """Whether an integer tensor holds indices below the limit that its owner states (see `InducingInputs`)."""
    owner, _, buffer = name.rpartition(".")
    limit = getattr(module.get_submodule(owner), "index_limits", {}).get(buffer)
    if limit is None or not tensor.numel():
        return limit is not None
    # As numbers of Python: 256 is none of uint8.
    least, most = map(int, torch.aminmax(tensor))
    return least >= 0 and most < limit


def _within_limits(module: torch.nn.Module, name: str, tensor: Tensor) -> bool:
    """Whether a tensor holds values that its owner allows."""
    owner, _, buffer = name.rpartition(".")
    limits = getattr(module.get_submodule(owner), "value_limits", {}).get(buffer)
    return limits is None or bool(((tensor >= limits[0]) & (tensor <= limits[1])).all())


def copy_state(module: torch.nn.Module, tensors: Mapping[str, Tensor], *, source: str | Path) -> None:
    """Load tensors into a module in place, after `check_state`.

    Raises:
        ModelFormatError: `tensors` are not those of such a module.
    """
    check_state(module, tensors, source=source)
    module.load_state_dict(dict(tensors), assign=any(parameter.is_meta for parameter in module.parameters()))
