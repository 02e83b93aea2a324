"""Rows of whatever inputs estimators take, and what there is of them to show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from extremegp.report.markup import Markup, element, text

_LONGEST = 700
_NUMBERS = 8


def some(X: Any, rows: Sequence[int]) -> Any:
    """Some rows of inputs: of lists, arrays, matrices, data frames or blocks of these."""
    places = list(rows)
    if isinstance(X, dict):
        return {name: some(part, places) for name, part in X.items()}
    if hasattr(X, "iloc"):
        return X.iloc[places]
    if scipy.sparse.issparse(X):
        matrix: Any = X
        return matrix.tocsr()[places]
    if isinstance(X, np.ndarray):
        return X[places]
    return [X[place] for place in places]


def drawn(n_rows: int, most: int, seed: int) -> NDArray[np.int64]:
    """All rows, or as many as may be, drawn at random."""
    if n_rows <= most:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(seed).choice(n_rows, most, replace=False))


def shown(X: Any, row: int, names: Sequence[str] | None) -> Markup:
    """What a row says: its text, or the largest of its numbers by name."""
    if isinstance(X, dict):
        parts = [
            element("div", element("small", name, class_="soft"), shown(part, row, None)) for name, part in X.items()
        ]
        return element("div", *parts)
    one: Any = some(X, [row])
    if hasattr(one, "iloc"):
        values = one.iloc[0] if one.ndim == 1 else [*one.iloc[0]]
        return _as_text(values if isinstance(values, str) else " · ".join(map(str, values)))
    if isinstance(one, list):
        return _as_text(str(one[0]))
    values = np.asarray(one.toarray() if hasattr(one, "toarray") else one).ravel()
    if values.dtype.kind not in "biuf":
        return _as_text(" · ".join(map(str, values)))
    order = np.argsort(-np.abs(values), kind="stable")
    order = order[values[order] != 0][:_NUMBERS]
    called = [f"{names[i] if names is not None and i < len(names) else i}: {values[i]:.4g}" for i in order.tolist()]
    left = int(np.count_nonzero(values)) - len(order)
    return _as_text(", ".join(called) + (f" and {left:,} more features" if left else ""))


def _as_text(value: str) -> Markup:
    return element("blockquote", text(value.strip(), _LONGEST))
