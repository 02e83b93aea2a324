"""Tensors with a JSON header in one file that is either whole or absent (safetensors, never pickle)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from extremegp.data._files import atomic_writer
from extremegp.errors import ModelFormatError


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a JSON-able header to one safetensors file, atomically.

    Raises:
        DataError: the file cannot be written there.
    """
    content = to_safetensors(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, {"json": json.dumps(header)}
    )
    with atomic_writer(path) as stream:
        stream.write(content)


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote.

    Raises:
        ModelFormatError: the file is missing, truncated, altered, or has no header of ours.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelFormatError(f"{path}: no such file")
    try:
        with safetensors.safe_open(str(path), framework="pt") as opened:
            header = json.loads((opened.metadata() or {})["json"])
            # A clone lives in memory of torch's own alignment, on which bit-identical arithmetic depends.
            tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, KeyError, ValueError, OSError, RecursionError) as error:
        raise ModelFormatError(f"{path}: not a readable tensor file ({error})") from error
    if not isinstance(header, dict):
        raise ModelFormatError(f"{path}: its header is not a JSON object")
    return tensors, header


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
        if not torch.isfinite(tensor).all():
            raise ModelFormatError(f"{source}: tensor {name!r} holds NaN or infinity")
        if not tensor.is_floating_point() and not _indexes(module, name, tensor):
            raise ModelFormatError(f"{source}: tensor {name!r} holds an index out of range")


def _indexes(module: torch.nn.Module, name: str, tensor: Tensor) -> bool:
    """Whether an integer tensor holds indices below the limit that its owner states (see `InducingInputs`)."""
    owner, _, buffer = name.rpartition(".")
    limit = getattr(module.get_submodule(owner), "index_limits", {}).get(buffer)
    return limit is not None and bool(((tensor >= 0) & (tensor < limit)).all())


def copy_state(module: torch.nn.Module, tensors: Mapping[str, Tensor], *, source: str | Path) -> None:
    """Load tensors into a module in place, after `check_state`.

    Raises:
        ModelFormatError: `tensors` are not those of such a module.
    """
    check_state(module, tensors, source=source)
    module.load_state_dict(dict(tensors), assign=any(parameter.is_meta for parameter in module.parameters()))
