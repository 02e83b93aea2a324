"""Matrices as tensors of a saved model, and taken out of it without trust."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse
from torch import Tensor

from extremegp.engine.matrices import FloatMatrix, csr_of, first_fault
from extremegp.errors import ModelFormatError
from extremegp.storage.tensors import all_finite


def matrix_tensors(matrix: FloatMatrix, prefix: str) -> dict[str, Tensor]:
    """What `matrix_of` takes: the arrays of CSR, or the rows of an array, by names that begin with the prefix."""
    if issparse(matrix):
        arrays = {"values": matrix.data, "columns": matrix.indices, "starts": matrix.indptr}
    else:
        arrays = {"rows": matrix}
    return {f"{prefix}{name}": torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def matrix_of(tensors: Mapping[str, Tensor], prefix: str, shape: tuple[int, int], source: str | Path) -> FloatMatrix:
    """The matrix of float32 that `matrix_tensors` gave.

    Args:
        tensors: by name.
        prefix: of the names.
        shape: that it must have.
        source: where they are from, for messages.

    Raises:
        ModelFormatError: a tensor is missing or altered, or the matrix has another shape.
    """
    if f"{prefix}rows" in tensors:
        return _checked(tensors, f"{prefix}rows", shape, source)
    values = _checked(tensors, f"{prefix}values", None, source)
    indices: dict[str, NDArray[Any]] = {}
    for name, size in (("columns", len(values)), ("starts", shape[0] + 1)):
        tensor = tensors.get(f"{prefix}{name}")
        if tensor is None or tensor.dtype not in (torch.int32, torch.int64) or tensor.shape != (size,):
            raise ModelFormatError(f"{source}: the tensor '{prefix}{name}' is missing, altered or of another shape")
        indices[name] = tensor.numpy()
    matrix: csr_matrix = csr_of(values, indices["columns"], indices["starts"], shape)
    if first_fault(matrix) is not None:
        raise ModelFormatError(f"{source}: the tensors '{prefix}*' are no sparse matrix of {shape[0]} rows")
    return matrix


def _checked(
    tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...] | None, source: str | Path
) -> NDArray[np.float32]:
    """A stored array of finite numbers; of one dimension where no shape is told."""
    tensor = tensors.get(name)
    if (
        tensor is None
        or tensor.dtype != torch.float32
        or (tensor.ndim != 1 if shape is None else tuple(tensor.shape) != shape)
        or not all_finite(tensor)
    ):
        raise ModelFormatError(f"{source}: the tensor {name!r} is missing, altered or of another shape")
    array: NDArray[np.float32] = tensor.numpy()
    return array
