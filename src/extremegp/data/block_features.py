"""Several kinds of features of the same rows, such as texts and vectors, each with a step of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse

from extremegp.data.features_base import Features
from extremegp.data.rows import mapped_blocks, with_values
from extremegp.data.validation import check_inputs
from extremegp.engine.blocks import Block, columns_of
from extremegp.engine.matrices import FloatCSR, FloatMatrix, csr_of, is_mapped, row_blocks
from extremegp.errors import DataError, ModelFormatError

_UNIT = ("unit", "tfidf", "text")


class BlockFeatures(Features):
    """The features of several steps beside each other, each of a block of the input by its name.

    The input is a mapping from names to texts or matrices, or a data frame whose columns have these names. A column of
    strings is texts, one of lists or arrays of equal lengths a matrix, one of numbers a matrix of one column.

    Args:
        blocks: for every name a step, which has not been fitted; features come in this order. None where the step is to
            be restored.
    """

    kind: ClassVar[str] = "blocks"

    def __init__(self, blocks: Mapping[str, Features] | None = None) -> None:
        self.blocks: dict[str, Features] = dict(blocks or {})
        self._dense: dict[str, bool] = {}
        self._factors = dict.fromkeys(self.blocks, 1.0)

    def fit(self, X: Any) -> Self:
        inputs = self._inputs(X)
        for name, step in self.blocks.items():
            _of_block(name, step.fit, inputs[name])
            self._dense[name] = step.kind != "text" and not issparse(inputs[name])
        self.n_features_in = sum(step.n_features_in for step in self.blocks.values())
        return self

    def transform(self, X: Any) -> FloatMatrix:
        inputs = self._inputs(X)
        parts = [self._part(name, inputs[name]) for name in self.blocks]
        if all(self._dense.values()):
            everything = slice(0, parts[0].n_rows)
            arrays = [part.rows(everything) for part in parts]
            return np.ascontiguousarray(np.concatenate(arrays, axis=1), dtype=np.float32)
        return _beside(parts, self.n_features_in)

    def weigh(self, factors: Sequence[float] | NDArray[np.float64], x: FloatMatrix) -> FloatMatrix:
        """Multiply the features of every block by a factor from now on.

        Args:
            factors: one for every block, in their order.
            x: features that were made before.

        Returns:
            These with the factors.
        """
        self._factors = dict(zip(self.blocks, map(float, factors), strict=True))
        of_columns = np.repeat(
            np.array(factors, dtype=np.float32), [step.n_features_in for step in self.blocks.values()]
        )

        def weighed(rows: FloatCSR) -> FloatCSR:
            return csr_of(rows.data * of_columns[rows.indices], rows.indices, rows.indptr, rows.shape)

        if not issparse(x):
            array: NDArray[np.float32] = x * of_columns
            return array
        return with_values(csr_matrix(x), weighed) if is_mapped(x) else weighed(csr_matrix(x))

    @property
    def layout(self) -> tuple[Block, ...]:
        return tuple(
            Block(step.n_features_in, self._dense[name], step.kind in _UNIT) for name, step in self.blocks.items()
        )

    def names(self) -> list[str]:
        found = []
        for name, step in self.blocks.items():
            own = step.names() or map(str, range(step.n_features_in))
            found += [f"{name}: {feature}" for feature in own]
        return found

    def n_unknown(self, x: FloatMatrix) -> int:
        if any(step.kind != "text" for step in self.blocks.values()):
            return 0
        assert issparse(x)
        return int(np.count_nonzero(np.diff(x.indptr) == 0))

    def unknown_shares(self, X: Any) -> NDArray[np.float32] | None:
        inputs = self._inputs(X)
        shares = [step.unknown_shares(inputs[name]) for name, step in self.blocks.items()]
        if all(share is None for share in shares):
            return None
        none = np.zeros((_n_rows(next(iter(inputs.values()))), 1), dtype=np.float32)
        return np.concatenate([none if share is None else share for share in shares], axis=1)

    def rare_columns(self, x: FloatMatrix) -> NDArray[np.int64]:
        found = [
            step.rare_columns(part.of_matrix(x)) + part.start
            for step, part in zip(self.blocks.values(), columns_of(self.layout), strict=True)
        ]
        return np.concatenate(found)

    def to_state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        config, arrays = super().to_state()
        blocks = []
        for number, (name, step) in enumerate(self.blocks.items()):
            own, of_step = step.to_state()
            blocks.append({"name": name, "dense": self._dense[name], "factor": self._factors[name], "step": own})
            arrays |= {f"{number}.{key}": array for key, array in of_step.items()}
        return config | {"blocks": blocks}, arrays

    def _restore(self, config: dict[str, Any], arrays: dict[str, Any]) -> None:
        super()._restore(config, arrays)
        stored = config.get("blocks")
        if not isinstance(stored, list) or not stored or not all(map(_is_stored_block, stored)):
            raise ModelFormatError("the stored features step has no list of blocks")
        steps = {}
        for number, block in enumerate(stored):
            prefix = f"{number}."
            own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            steps[block["name"]] = Features.from_state(block["step"], own)
        self.blocks = steps
        self._dense = {block["name"]: block["dense"] for block in stored}
        self._factors = {block["name"]: block["factor"] for block in stored}
        if len(steps) != len(stored) or sum(step.n_features_in for step in steps.values()) != self.n_features_in:
            raise ModelFormatError("the blocks of the stored features step do not fit each other")

    def _inputs(self, X: Any) -> dict[str, Any]:
        """The blocks of the input, which are those of the steps and have equally many rows."""
        inputs = input_blocks(X)
        for problem, names in (
            ("lacks", self.blocks.keys() - inputs.keys()),
            ("also has", inputs.keys() - self.blocks.keys()),
        ):
            if names:
                listed = ", ".join(map(repr, sorted(names)))
                raise DataError(f"X {problem} the block {listed}: give exactly {', '.join(map(repr, self.blocks))}")
        counts = {name: _n_rows(block) for name, block in inputs.items()}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name!r} has {count}" for name, count in counts.items())
            raise DataError(f"the blocks of X are of different numbers of rows: {listed}")
        return {name: inputs[name] for name in self.blocks}

    def _part(self, name: str, block: Any) -> _Part:
        step, factor = self.blocks[name], np.float32(self._factors[name])
        if self._dense[name]:
            checked: Any = _of_block(name, lambda X: check_inputs(X, step.n_features_in), block)
            # Transformed as it is asked for: an array of all rows might not fit into memory.
            mapped = is_mapped(checked) if issparse(checked) else _on_disk(checked)
            n_rows, n_columns = checked.shape
            return _Part(n_columns, n_rows, lambda rows: step.transform(_as_array(checked[rows])) * factor, mapped)
        found = csr_matrix(_of_block(name, step.transform, block))
        counts = np.diff(found.indptr).astype(np.int64)
        return _Part(counts, found.shape[0], lambda rows: _weighed(found[rows], factor), is_mapped(found))


class _Part(NamedTuple):
    """The features of a block: stored entries of every row, how many rows, some of them, and whether on disk."""

    counts: NDArray[np.int64] | int
    n_rows: int
    rows: Callable[[slice], Any]
    on_disk: bool


def input_blocks(X: Any) -> dict[str, Any]:
    """The blocks of an input by name.

    Raises:
        DataError: X is neither a mapping nor a data frame, or a column cannot be used.
    """
    if not isinstance(X, Mapping) and not is_frame(X):
        raise DataError(
            f"features are of blocks, so X must be a mapping from their names to texts or matrices, or a data frame; "
            f"it is of type {type(X).__name__}"
        )
    names = list(X) if isinstance(X, Mapping) else list(X.columns)
    if not names:
        raise DataError("X has no blocks; give at least one")
    for name in names:
        if not isinstance(name, str):
            raise DataError(f"the names of blocks are strings; {name!r} is none")
    return {name: _of_block(name, _matrix_or_texts, X[name]) for name in names}


def is_frame(X: Any) -> bool:
    """Whether X is a data frame."""
    return hasattr(X, "columns") and hasattr(X, "dtypes") and hasattr(X, "__getitem__")


def has_blocks(X: Any) -> bool:
    """Whether X is a mapping, or a data frame of more than numbers."""
    if isinstance(X, Mapping):
        return True
    return is_frame(X) and any(getattr(X[name].dtype, "kind", "O") not in "biuf" for name in X.columns)


def are_texts(block: Any) -> bool:
    """Whether a block is of texts, by its first row."""
    return isinstance(block, (list, tuple)) and len(block) > 0 and isinstance(block[0], str)


def _matrix_or_texts(block: Any) -> Any:
    """A block as a list of texts or something with two dimensions."""
    if issparse(block) or getattr(block, "ndim", 1) != 1 or not hasattr(block, "dtype"):
        return block
    if getattr(block.dtype, "kind", "O") in "biuf":
        return np.asarray(block).reshape(-1, 1)
    rows = list(block)
    if not rows or not isinstance(rows[0], (list, tuple, np.ndarray)):
        numbers = bool(rows) and all(isinstance(row, (int, float, np.number)) for row in rows)
        return np.asarray(rows, dtype=np.float64).reshape(-1, 1) if numbers else rows
    for number, row in enumerate(rows):
        if not isinstance(row, (list, tuple, np.ndarray)) or len(row) != len(rows[0]):
            raise DataError(f"row {number} (counted from 0) is no vector of {len(rows[0])} numbers, as row 0 is")
    return np.array(rows)


def _of_block(name: str, use: Callable[[Any], Any], block: Any) -> Any:
    try:
        return use(block)
    except DataError as error:
        raise DataError(f"block {name!r}: {error}") from error
    except (TypeError, ValueError) as error:
        raise DataError(f"block {name!r} is no matrix of numbers: {' '.join(str(error).split())}") from error


def _n_rows(block: Any) -> int:
    shape = getattr(block, "shape", None)
    return int(shape[0]) if shape else len(block)


def _as_array(rows: Any) -> Any:
    sparse: bool = issparse(rows)
    return rows.toarray() if sparse else rows


def _on_disk(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


def _weighed(rows: Any, factor: np.float32) -> Any:
    return rows if factor == 1 else csr_matrix(rows * factor, dtype=np.float32)


def _beside(parts: Sequence[_Part], n_features: int) -> FloatMatrix:
    """The features of all blocks in a CSR matrix, which is on disk if that of a block is."""
    n_rows = parts[0].n_rows
    counts = np.zeros(n_rows, np.int64)
    for part in parts:
        counts += part.counts
    indptr = np.concatenate([[0], np.cumsum(counts)])
    dtype = np.int32 if indptr[-1] < 2**31 else np.int64
    if any(part.on_disk for part in parts):
        data = mapped_blocks((block.data for block in _row_blocks(parts, indptr)), np.float32)
        indices = mapped_blocks((block.indices for block in _row_blocks(parts, indptr)), dtype)
    else:
        data, indices = np.empty(indptr[-1], np.float32), np.empty(indptr[-1], dtype)
        end = 0
        for block in _row_blocks(parts, indptr):
            end += len(block.data)
            data[end - len(block.data) : end], indices[end - len(block.data) : end] = block
    return csr_of(data, indices, indptr.astype(dtype), (n_rows, n_features))


class _Entries(NamedTuple):
    data: NDArray[np.float32]
    indices: NDArray[np.int64]


def _row_blocks(parts: Sequence[_Part], indptr: NDArray[np.int64]) -> Iterator[_Entries]:
    """The entries of consecutive rows, some at a time."""
    for rows in row_blocks(indptr):
        starts = indptr[rows] - indptr[rows.start]
        size = int(indptr[rows.stop] - indptr[rows.start])
        entries, first = _Entries(np.empty(size, np.float32), np.empty(size, np.int64)), 0
        for part in parts:
            block = part.rows(rows)
            sparse: bool = issparse(block)
            if sparse:
                lengths, columns, values = np.diff(block.indptr), block.indices, block.data
            else:
                lengths = np.full(len(block), block.shape[1])
                columns, values = np.tile(np.arange(block.shape[1]), len(block)), block.ravel()
            own = np.arange(len(values)) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
            entries.data[own], entries.indices[own] = values, columns + first
            starts, first = starts + lengths, first + block.shape[1]
        yield entries


def _is_stored_block(block: Any) -> bool:
    return (
        isinstance(block, dict)
        and block.keys() == {"name", "dense", "factor", "step"}
        and isinstance(block["name"], str)
        and isinstance(block["dense"], bool)
        and isinstance(block["factor"], float)
        and 0 <= block["factor"] < np.inf
        and isinstance(block["step"], dict)
        and block["step"].get("kind") != BlockFeatures.kind
    )
