"""What every estimator shares: the names of features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import extremegp
from extremegp import MultiClassGPClassifier, MultiLabelGPClassifier
from extremegp.errors import DataError
from extremegp.estimators import GPEstimator


def _frame(n_rows: int = 30) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(n_rows, 3)), columns=["width", "height", "depth"])
    return frame, frame["width"].to_numpy() > 0


@pytest.fixture(params=["classes", "labels"])
def case(request: pytest.FixtureRequest) -> tuple[GPEstimator, pd.DataFrame, np.ndarray]:
    """An estimator with data to fit it to."""
    x, y = _frame()
    options = {"n_inducing": 5, "epochs": 1, "random_state": 0, "verbose": False, "features": "raw"}
    if request.param == "classes":
        return MultiClassGPClassifier(**options), x, y
    return MultiLabelGPClassifier(**options), x, np.stack([y, ~y], axis=1).astype(int)


def test_names_of_columns_are_kept_and_saved(
    case: tuple[GPEstimator, pd.DataFrame, np.ndarray], tmp_path: Path
) -> None:
    estimator, x, y = case
    assert estimator.fit(x, y).feature_names_in_.tolist() == ["width", "height", "depth"]
    estimator.save(tmp_path / "model")
    again = extremegp.load(tmp_path / "model")
    assert again.feature_names_in_.tolist() == ["width", "height", "depth"]
    np.testing.assert_array_equal(again.predict_proba(x), estimator.predict_proba(x.to_numpy()))


def test_other_columns_or_another_order_are_refused(case: tuple[GPEstimator, pd.DataFrame, np.ndarray]) -> None:
    estimator, x, y = case
    estimator.fit(x, y)
    with pytest.raises(DataError, match=r"The feature names should match.*their order differs"):
        estimator.predict(x[["height", "width", "depth"]])
    with pytest.raises(DataError, match="only one of the two has 'colour', 'depth'"):
        estimator.predict_proba(x.rename(columns={"depth": "colour"}))
    with pytest.raises(DataError, match="their order differs"):
        estimator.fit(x, y, validation=(x[["height", "width", "depth"]], y))


def test_a_fit_without_names_forgets_them(case: tuple[GPEstimator, pd.DataFrame, np.ndarray], tmp_path: Path) -> None:
    estimator, x, y = case
    estimator.fit(x, y).fit(x.to_numpy(), y)
    assert not hasattr(estimator, "feature_names_in_")
    estimator.fit(x.set_axis([0, 1, 2], axis="columns"), y)
    assert not hasattr(estimator, "feature_names_in_")
    estimator.predict(x)
    estimator.save(tmp_path / "model")
    assert not hasattr(extremegp.load(tmp_path / "model"), "feature_names_in_")
