"""Which kind of model is trained where there are many labels: that which did better on rows held out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from tests.cli.conftest import Run

import extremegp
from extremegp.cli.rows import Rows
from extremegp.cli.tasks import kind_trial
from extremegp.cli.tasks import labels as task
from extremegp.cli.tasks.kind_trial import tried_kind
from extremegp.errors import DataError
from extremegp.metrics import TopK, precision_at_k

N, K = 300, 8


class _Known:
    """Says the first labels of a row with a share of mistakes, after a while; labels are the row's features."""

    def __init__(self, mistakes: float, seconds: float = 0.0) -> None:
        self.mistakes, self.seconds, self.fitted = mistakes, seconds, 0
        self.budget: float | None = None

    def fit(self, X: Any, Y: Any) -> None:
        time.sleep(self.seconds)
        self.fitted = len(Y) if isinstance(Y, list) else Y.shape[0]

    def set_params(self, *, time_budget: float) -> None:
        self.budget = time_budget

    def encode_labels(self, Y: Any) -> Any:
        if isinstance(Y, list):
            return scipy.sparse.csr_matrix([[float(str(k) in names) for k in range(K)] for names in Y])
        return Y

    def predict_topk(self, X: Any, k: int) -> TopK:
        x = np.asarray(X.todense())
        wrong = np.random.default_rng(1).random(len(x)) < self.mistakes
        scores = np.where(wrong[:, None], 1 - x, x) - 0.01 * np.arange(K)
        return TopK.from_scores(scores.astype(np.float32), k)


def _rows(n: int = N, *, names: bool = False) -> Rows:
    y = (np.random.default_rng(0).random((n, K)) < 0.5).astype(np.float32)
    labels = [[str(k) for k in np.flatnonzero(row)] for row in y] if names else scipy.sparse.csr_matrix(y)
    return Rows(scipy.sparse.csr_matrix(y), labels)


@pytest.mark.parametrize("names", [False, True])
def test_the_kind_that_does_better_on_rows_held_out_wins(names: bool) -> None:
    kinds = {"factor": _Known(0.5), "tree": _Known(0.1, seconds=0.05)}
    found = tried_kind(_rows(names=names), kinds)  # type: ignore[arg-type]
    assert found is not None
    assert found.kind == "tree"
    assert [kind.fitted for kind in kinds.values()] == [N - N // 5] * 2
    assert f"on {N // 5} rows held out of {N}" in found.told


def test_of_kinds_that_do_alike_the_quick_one_wins() -> None:
    for seconds, kind in (((0.1, 0.0), "tree"), ((0.0, 0.1), "factor")):
        kinds = {name: _Known(0.3, wait) for name, wait in zip(("factor", "tree"), seconds, strict=True)}
        found = tried_kind(_rows(), kinds)  # type: ignore[arg-type]
        assert found is not None
        assert found.kind == kind


def test_the_first_kind_gets_twice_the_time_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind_trial, "_SHORTEST", 0.01)
    kinds = {"factor": _Known(0.3), "tree": _Known(0.3, seconds=0.2)}
    assert tried_kind(_rows(), kinds) is not None  # type: ignore[arg-type]
    assert kinds["tree"].budget is None
    assert kinds["factor"].budget is not None
    assert 0.4 <= kinds["factor"].budget < 2.0
    monkeypatch.setattr(kind_trial, "_SHORTEST", 10.0)
    assert tried_kind(_rows(), kinds) is not None  # type: ignore[arg-type]
    assert kinds["factor"].budget == 10.0


def test_precisions_are_those_of_the_metrics() -> None:
    rows, known = _rows(), _Known(0.4)
    each = kind_trial._precisions(known, rows, np.arange(40))  # type: ignore[arg-type]
    best = known.predict_topk(rows.X[:40], 5)
    np.testing.assert_allclose(each.mean(axis=0), precision_at_k(rows.y[:40], best, kind_trial.KS))


def test_there_is_no_trial_of_few_rows_or_of_what_cannot_be_fitted() -> None:
    class Refusing(_Known):
        def fit(self, X: Any, Y: Any) -> None:
            raise DataError("no")

    assert tried_kind(_rows(50), {"factor": _Known(0.1)}) is None  # type: ignore[dict-item]
    assert tried_kind(_rows(), {"factor": _Known(0.1), "tree": Refusing(0.1)}) is None  # type: ignore[dict-item]


def test_train_says_which_kind_it_chose_and_why(
    files: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "FACTOR_LABELS", 1)
    monkeypatch.setattr(kind_trial, "_LEAST", 10)
    quick = ("--set", "n_inducing=5", "--seed", "0")
    result = run("train", files / "train.txt", "--out", tmp_path / "m", *quick)
    assert result.exit_code == 0, result.output
    told = next(line for line in result.output.splitlines() if "rows held out" in line)
    kind = told.split("model ")[1].split(",")[0]
    expected = {"factor": extremegp.MultiLabelGPClassifier, "tree": extremegp.LabelTreeGPClassifier}[kind]
    assert isinstance(extremegp.load(tmp_path / "m"), expected)
    budget = run("train", files / "train.txt", "--out", tmp_path / "b", *quick, "--time-budget", "60s")
    assert budget.exit_code == 0, budget.output
    assert "rows held out" not in budget.output
