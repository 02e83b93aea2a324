from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from tests.estimators.small import label_lists, small_classifier, small_data

from extremegp import MultiLabelGPClassifier
from extremegp.errors import DataError, ExtremeGPError, MemoryPlanError, SettingsError


@pytest.fixture(scope="module")
def trained() -> MultiLabelGPClassifier:
    return small_classifier().fit(*small_data())


# Bad data and bad settings: one line that says what and where


X, Y = small_data()


def _with(matrix: np.ndarray, value: float) -> np.ndarray:
    changed = matrix.astype(float)
    changed[3, 2] = value
    return changed


BAD_FITS: dict[str, tuple[dict[str, Any], Any, Any, str]] = {
    "kernel": ({"kernel": "foo"}, X, Y, "kernel must be one of"),
    "kernel no string": ({"kernel": None}, X, Y, "kernel"),
    "inducing": ({"inducing": "foo"}, X, Y, "inducing must be one of"),
    "inducing no string": ({"inducing": 3}, X, Y, "inducing must be one of"),
    "n_subspace": ({"inducing": "subspace", "n_subspace": 0}, X, Y, "n_subspace must be"),
    "support_size": ({"inducing": "sparse", "support_size": 1.5}, X, Y, "support_size must be"),
    "inducing_start": ({"inducing_start": "foo"}, X, Y, "inducing_start must be one of"),
    "loadings_start": ({"loadings_start": "foo"}, X, Y, "loadings_start must be one of"),
    "lengthscales_in": ({"lengthscales_in": "foo"}, X, Y, "lengthscales_in must be one of"),
    "lengthscales in no subspace": ({"lengthscales_in": "subspace"}, X, Y, "needs inducing"),
    "lengthscales in a learnt subspace": (
        {"inducing": "subspace-basis", "lengthscales_in": "subspace"},
        X,
        Y,
        "a subspace that stays fixed",
    ),
    "posterior": ({"posterior": "foo"}, X, Y, "posterior must be one of"),
    "features": ({"features": "foo"}, X, Y, "features must be one of"),
    "features no string": ({"features": ["unit"]}, X, Y, "features must be one of"),
    "no X": ({"features": "auto"}, None, Y, "Expected 2D array"),
    "n_inducing zero": ({"n_inducing": 0}, X, Y, "n_inducing must be"),
    "n_inducing float": ({"n_inducing": 2.5}, X, Y, "n_inducing must be"),
    "n_latent negative": ({"n_latent": -1}, X, Y, "n_latent must be"),
    "n_latent bool": ({"n_latent": True}, X, Y, "n_latent must be"),
    "kl_weight": ({"kl_weight": -1}, X, Y, "kl_weight must be"),
    "kl_weight NaN": ({"kl_weight": float("nan")}, X, Y, "kl_weight must be"),
    "epochs": ({"epochs": "many"}, X, Y, "epochs must be"),
    "epochs zero": ({"epochs": 0}, X, Y, "epochs must be"),
    "batch_size": ({"batch_size": 0}, X, Y, "batch_size must be"),
    "learning_rate zero": ({"learning_rate": 0}, X, Y, "learning_rate must be"),
    "learning_rate none": ({"learning_rate": None}, X, Y, "learning_rate must be"),
    "learning_rate infinite": ({"learning_rate": float("inf")}, X, Y, "learning_rate must be"),
    "optimizer": ({"optimizer": "sgd"}, X, Y, "optimizer must be one of"),
    "natural_step": ({"natural_step": 1.5}, X, Y, "natural_step must be"),
    "mean_function": ({"mean_function": "one"}, X, Y, "mean_function must be one of"),
    "validation_fraction": ({"validation_fraction": 1.5}, X, Y, "validation_fraction must be"),
    "patience": ({"patience": 0, "validation_fraction": 0.2}, X, Y, "patience must be"),
    "patience without validation": ({"patience": 2}, X, Y, "patience needs validation"),
    "propensity": ({"propensity": "yes"}, X, Y, "propensity must be one of auto"),
    "propensity zero": ({"propensity": np.array([0.5, 0.0, 1, 1, 1])}, X, Y, r"propensity must be .* in \(0, 1\]"),
    "propensity inverse": ({"propensity": np.full(5, 2.0)}, X, Y, "propensity must be"),
    "propensity NaN": ({"propensity": np.full(5, np.nan)}, X, Y, "propensity must be"),
    "propensity length": ({"propensity": np.ones(4)}, X, Y, "of 5 labels; it has shape"),
    "propensity no numbers": ({"propensity": np.array(["a"] * 5)}, X, Y, "propensity must be"),
    "propensity pair": ({"propensity": (0.5, -1.0)}, X, Y, "each of the pair propensity must be a number above 0"),
    "propensity triple": ({"propensity": (0.5, 1.0, 1.0)}, X, Y, "the pair"),
    "propensity of two rows": ({"propensity": "auto"}, X[:2], Y[:2] | 1, "at least 3 training rows"),
    "n_sampled_labels": ({"n_sampled_labels": 0}, X, Y, "n_sampled_labels must be"),
    "n_sampled_labels float": ({"n_sampled_labels": 0.1}, X, Y, "n_sampled_labels must be"),
    "label_sampling": ({"label_sampling": "hardest"}, X, Y, "label_sampling must be one of"),
    "time_budget": ({"time_budget": -5}, X, Y, "time_budget must be"),
    "optimizer_state": ({"optimizer_state": "third"}, X, Y, "optimizer_state must be one of"),
    "max_memory": ({"max_memory": "much"}, X, Y, "max_memory must be bytes, or a size"),
    "max_memory zero": ({"max_memory": 0}, X, Y, "max_memory must be"),
    "relative_jitter": ({"relative_jitter": 1.0}, X, Y, "relative_jitter must be"),
    "dtype": ({"dtype": "float16"}, X, Y, "dtype must be one of"),
    "device": ({"device": "toaster"}, X, Y, "device"),
    "linear_term": ({"linear_term": "yes"}, X, Y, "linear_term must be"),
    "learn_inducing": ({"learn_inducing": 2}, X, Y, "learn_inducing must be"),
    "normalise_inducing": ({"normalise_inducing": "no"}, X, Y, "normalise_inducing must be"),
    "NaN in X": ({}, _with(X, np.nan), Y, "NaN at row 3, column 2"),
    "infinity in X": ({}, _with(X, np.inf), Y, "infinity"),
    "NaN in sparse X": ({}, scipy.sparse.csr_matrix(_with(X, np.nan)), Y, "NaN at row 3, column 2"),
    "X 1-D": ({}, X[0], Y, "1D array"),
    "X without rows": ({}, X[:0], Y[:0], "0 sample"),
    "X without columns": ({}, X[:, :0], Y, "0 feature"),
    "X of texts": ({}, ["a", "b"], Y[:2], "holds texts"),
    "X no texts": ({"features": "text"}, X, Y, "takes one column of texts"),
    "X a single text": ({"features": "text"}, "abc", Y, "list of texts"),
    "X negative for tf-idf": ({"features": "tfidf"}, -X, Y, "counts"),
    "lengths": ({}, X, Y[:-1], "X has 40 rows and Y has 39"),
    "Y none": ({}, X, None, "requires y"),
    "Y of twos": ({}, X, 2 * Y, "only 0 and 1"),
    "NaN in Y": ({}, X, _with(Y, np.nan), "only 0 and 1"),
    "Y 1-D": ({}, X, Y[:, 0], "one value per row"),
    "Y without columns": ({}, X, Y[:, :0], "at least one"),
    "Y of strings": ({}, X, Y.astype(str), "dtype"),
    "Y bare names": ({}, X[:2], ["a", "b"], "one value per row"),
    "Y a dict": ({}, X, {"a": 1}, "not dict"),
    "Y as nested lists": ({}, X, Y.tolist(), "nested lists"),
    "no labels": ({}, X, np.zeros_like(Y), "no row has any label"),
    "no names": ({}, X[:2], [[], []], "no labels"),
}


@pytest.mark.parametrize("name", BAD_FITS)
def test_what_cannot_be_fitted_is_said_in_one_line(name: str):
    settings, x, y, message = BAD_FITS[name]
    with pytest.raises(ExtremeGPError, match=message) as caught:
        small_classifier(**settings).fit(x, y)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


BAD_CALLS: dict[str, tuple[Callable[[MultiLabelGPClassifier], Any], type[Exception], str]] = {
    "width": (lambda c: c.predict(X[:, :-1]), DataError, "5 features"),
    "sparse width": (lambda c: c.predict(scipy.sparse.csr_matrix(X[:, :-1])), DataError, "5 features"),
    "NaN": (lambda c: c.predict_proba(_with(X, np.nan)), DataError, "NaN"),
    "no rows": (lambda c: c.predict(X[:0]), DataError, "0 sample"),
    "1-D": (lambda c: c.predict(X[0]), DataError, "1D array"),
    "k zero": (lambda c: c.predict_topk(X, 0), SettingsError, "k must be"),
    "k float": (lambda c: c.predict_topk(X, 2.0), SettingsError, "k must be"),  # type: ignore[arg-type]
    "by": (lambda c: c.predict_topk(X, by="size"), SettingsError, "by must be"),  # type: ignore[arg-type]
    "output": (lambda c: c.predict_topk(X, output="list"), SettingsError, "output must be"),
    "score lengths": (lambda c: c.score(X, Y[:-1]), DataError, "40 rows and Y has 39"),
    "score labels": (lambda c: c.score(X, Y[:, :-1]), DataError, "Y has 4 labels"),
    "score names": (lambda c: c.score(X, label_lists(Y)), DataError, "without names"),
    "save over a file": (lambda c: c.save(__file__), DataError, "not a saved model"),
    "validation width": (lambda c: clone(c).fit(X, Y, validation=(X[:, :-1], Y)), DataError, "5 features"),
    "validation labels": (
        lambda c: clone(c).fit(X, Y, validation=(X, Y[:, :-1])),
        DataError,
        "validation has 4 labels",
    ),
    "validation lengths": (lambda c: clone(c).fit(X, Y, validation=(X, Y[:-1])), DataError, "39"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_are_refused_in_one_line(name: str, trained: MultiLabelGPClassifier):
    act, kind, message = BAD_CALLS[name]
    with pytest.raises(kind, match=message) as caught:
        act(trained)
    assert "\n" not in str(caught.value)


def test_a_plan_larger_than_memory_is_refused_before_it_is_tried(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(MemoryPlanError, match="lower n_inducing"):
        small_classifier(n_latent=10**12).fit(X, Y)


@pytest.mark.parametrize("learning_rate", [1e3, 1e10])
def test_divergence_is_said_and_never_predicted(learning_rate: float):
    outcome: Any
    try:
        outcome = small_classifier(learning_rate=learning_rate, epochs=5).fit(X, Y).predict_proba(X)
    except ExtremeGPError as error:
        outcome = str(error)
    assert "\n" not in outcome if isinstance(outcome, str) else np.isfinite(outcome).all()
