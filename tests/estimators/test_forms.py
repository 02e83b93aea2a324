"""CSR and arrays of equal numbers: the same models, and the same predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray

from extremegp import LabelTreeGPClassifier, MultiClassGPClassifier, MultiLabelGPClassifier, SequenceGPClassifier
from extremegp.engine.matrices import mostly_zero, suited_form
from extremegp.engine.sparse import SparseRows, row_block, suited_block

N_ROWS, N_FEATURES, N_LABELS, LENGTH = 120, 40, 4, 6
QUICK: dict[str, Any] = {"random_state": 0, "verbose": False, "epochs": 3, "n_inducing": 20}
ROWS: list[tuple[type[Any], dict[str, Any]]] = [
    (MultiLabelGPClassifier, {"mean_function": "zero", "features": "unit"}),
    (MultiLabelGPClassifier, {"mean_function": "regression", "features": "unit"}),
    (MultiLabelGPClassifier, {"inducing": "sparse", "mean_function": "zero", "features": "raw"}),
    (MultiClassGPClassifier, {"features": "unit"}),
    (MultiClassGPClassifier, {"features": "raw", "latents": "linear-mean-field"}),
]


def data(density: float) -> tuple[scipy.sparse.csr_matrix, NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    x = scipy.sparse.random(N_ROWS, N_FEATURES, density, "csr", np.float32, rng=rng, data_rvs=rng.random)
    utilities = x @ rng.normal(size=(N_FEATURES, N_LABELS))
    return scipy.sparse.csr_matrix(x), utilities > np.quantile(utilities, 0.7, axis=0)


def sequences(x: Any) -> list[Any]:
    return [x[start : start + LENGTH] for start in range(0, N_ROWS, LENGTH)]


def predictions(model: Any, x: Any) -> NDArray[np.float32]:
    if isinstance(model, SequenceGPClassifier):
        return np.concatenate(model.predict_marginals(sequences(x)))
    probabilities: NDArray[np.float32] = model.predict_proba(x)
    return probabilities


@pytest.mark.parametrize("density", [0.05, 0.6])
@pytest.mark.parametrize(("estimator", "params"), ROWS)
def test_rows_held_either_way_make_one_model(estimator: type[Any], params: dict[str, Any], density: float):
    x, indicator = data(density)
    y = indicator.argmax(axis=1) if estimator is MultiClassGPClassifier else indicator.astype(int)
    models = [estimator(**QUICK, **params).fit(form, y) for form in (x, x.toarray())]
    expected = predictions(models[0], x)
    for model in models:
        for form in (x, x.toarray()):
            np.testing.assert_array_equal(predictions(model, form), expected)


@pytest.mark.parametrize("density", [0.05, 0.6])
@pytest.mark.parametrize("latents", ["random-features", "gp", "linear-mean-field", "linear-point"])
def test_sequences_held_either_way_make_one_model(latents: Any, density: float):
    x, indicator = data(density)
    y = sequences(indicator.argmax(axis=1))
    options: dict[str, Any] = {"n_random_features": 20, "latents": latents}
    models = [SequenceGPClassifier(**QUICK, **options).fit(sequences(form), y) for form in (x, x.toarray())]
    expected = predictions(models[0], x)
    for model in models:
        for form in (x, x.toarray()):
            np.testing.assert_array_equal(predictions(model, form), expected)


def test_trees_of_rows_held_either_way_are_one_model():
    x, y = data(0.1)
    models = [
        LabelTreeGPClassifier(features="unit", random_state=0, verbose=False, leaf_size=2).fit(form, y.astype(int))
        for form in (x, x.toarray())
    ]
    expected = predictions(models[0], x)
    for model in models:
        for form in (x, x.toarray()):
            np.testing.assert_array_equal(predictions(model, form), expected)


@pytest.mark.parametrize("density", [0.0, 0.05, 0.6, 1.0])
def test_a_block_has_the_numbers_of_the_matrix_in_the_form_of_its_density(density: float):
    x, _ = data(density)
    empty_row = scipy.sparse.csr_matrix((1, N_FEATURES), dtype=np.float32)
    x = scipy.sparse.csr_matrix(scipy.sparse.vstack([x[:3], empty_row, x[3:]]))
    rows = slice(1, 50)
    of_csr, of_array = suited_block(x, rows), suited_block(x.toarray(), rows)
    assert isinstance(of_csr, SparseRows) == isinstance(of_array, SparseRows) == mostly_zero(x) == (density < 0.2)
    if isinstance(of_csr, SparseRows) and isinstance(of_array, SparseRows):
        for name in ("offsets", "columns", "values"):
            np.testing.assert_array_equal(getattr(of_array, name), getattr(of_csr, name))
    else:
        np.testing.assert_array_equal(of_array, x[rows].toarray())
        np.testing.assert_array_equal(of_csr, x[rows].toarray())


def test_stored_zeros_count_as_zeros():
    x = np.zeros((4, 50), np.float32)
    x[0, 1] = 1
    stored = scipy.sparse.csr_matrix(np.ones_like(x))
    stored.data = x.ravel().copy()
    assert mostly_zero(stored)
    assert mostly_zero(x)


def test_a_kernel_of_arrays_gets_arrays():
    x, _ = data(0.05)
    np.testing.assert_array_equal(
        suited_block(x.toarray(), slice(0, 9), dense=True), row_block(x.toarray(), slice(0, 9))
    )


def test_wide_csr_never_becomes_an_array():
    wide = scipy.sparse.csr_matrix(np.ones((2, 10_000), np.float32))
    assert suited_form(wide) is wide
    assert isinstance(suited_form(wide[:, :100]), np.ndarray)
    assert isinstance(suited_form(np.eye(30, dtype=np.float32)), scipy.sparse.csr_matrix)
