"""Which kind of model suits many labels: each is trained on some of the rows, and others say which did better."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from extremegp.errors import BudgetWarning, ExtremeGPError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from extremegp.cli.options import ModelKind
    from extremegp.cli.rows import Rows
    from extremegp.estimators import MultiLabelEstimator

KS = (1, 3, 5)
_TRAINED, _HELD_OUT = 4000, 1000
_LEAST = 200  # rows, of which a fifth tells something
_SHORTEST = 10.0  # seconds


class KindTrial(NamedTuple):
    """What became of a trial.

    Attributes:
        kind: that did best, or as well as any in less time.
        told: what to tell of it, a line.
    """

    kind: ModelKind
    told: str


def tried_kind(rows: Rows, classifiers: Mapping[ModelKind, MultiLabelEstimator]) -> KindTrial | None:
    """The kind whose precision at 1, 3 and 5 is highest on rows held out of a part of the training rows.

    A kind that takes longer has to be better by more than a standard error of the difference. The last comes first, and
    others get twice the time that it took, so that a trial is never much longer than that.

    Args:
        rows: of training.
        classifiers: one of each kind, as it would be trained, by name, the quickest last; they are fitted.

    Returns:
        None where rows are too few to tell, or a kind cannot be fitted to them.
    """
    import numpy as np

    if rows.n_rows < _LEAST:
        return None
    order = np.random.default_rng(0).permutation(rows.n_rows)
    held = min(_HELD_OUT, rows.n_rows // 5)
    tested, trained = np.sort(order[:held]), np.sort(order[held : held + _TRAINED])
    found: dict[ModelKind, tuple[float, NDArray[np.float64]]] = {}
    for kind in reversed([*classifiers]):
        classifier, started = classifiers[kind], time.perf_counter()
        if found:
            classifier.set_params(time_budget=max(_SHORTEST, 2 * max(seconds for seconds, _ in found.values())))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", BudgetWarning)
                classifier.fit(_some(rows.X, trained), _some(rows.y, trained))
            found[kind] = time.perf_counter() - started, _precisions(classifier, rows, tested)
        except ExtremeGPError:
            # Whatever is wrong is told where all rows are trained on.
            return None
    kinds = sorted(found, key=lambda kind: found[kind][0])
    best = kinds[0]
    for kind in kinds[1:]:
        gains = (found[kind][1] - found[best][1]).mean(axis=1)
        if gains.mean() > gains.std() / len(gains) ** 0.5:
            best = kind
    scores = "; ".join(
        f"{kind} {'/'.join(f'{100 * p:.1f}' for p in found[kind][1].mean(axis=0))} in {found[kind][0]:.0f} s"
        for kind in found
    )
    by = f"P@{'/'.join(map(str, KS))} on {held} rows held out of {held + len(trained)}"
    return KindTrial(best, f"model {best}, chosen by {by}: {scores} (--model chooses without a trial).")


def _precisions(classifier: MultiLabelEstimator, rows: Rows, tested: NDArray[np.int64]) -> NDArray[np.float64]:
    """Precision at each k of every row."""
    import numpy as np

    from extremegp.metrics.topk import as_topk

    best = as_topk(classifier.predict_topk(_some(rows.X, tested), max(KS)), max(KS)).labels
    truth = classifier.encode_labels(_some(rows.y, tested))
    of_rows = np.repeat(np.arange(len(best)), best.shape[1])
    hits = np.asarray(truth[of_rows, np.maximum(best, 0).ravel()] > 0).reshape(best.shape) & (best >= 0)
    return np.stack([hits[:, :k].sum(axis=1) / k for k in KS], axis=1)


def _some(values: Any, rows: NDArray[np.int64]) -> Any:
    """Some rows of inputs or labels, of whatever kind."""
    from extremegp.data.rows import take_rows

    if isinstance(values, dict):
        return {name: _some(block, rows) for name, block in values.items()}
    return [values[row] for row in rows] if isinstance(values, list) else take_rows(values, rows)
