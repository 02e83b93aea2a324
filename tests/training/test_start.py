from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.exceptions import ConvergenceWarning
from tests.models import random_inputs, random_labels

from extremegp.engine import centres
from extremegp.engine.inducing import SparseInducingInputs
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.settings.model import ModelSettings

N, D, K, P, M, R, S = 30, 6, 5, 3, 4, 2, 3
SETTINGS = ModelSettings(n_features=D, n_labels=K, n_latent=P, n_inducing=M, kernel="ard")
KINDS: dict[str, dict[str, Any]] = {
    "free": {},
    "subspace": {"inducing": "subspace", "n_subspace": R},
    "subspace-basis": {"inducing": "subspace-basis", "n_subspace": R},
    "sparse": {"inducing": "sparse", "support_size": S},
}


def _data() -> tuple[scipy.sparse.csr_matrix, scipy.sparse.csr_matrix]:
    x, y = random_inputs(N, D).astype(np.float32), random_labels(N, K).astype(np.float32)
    return scipy.sparse.csr_matrix(x), scipy.sparse.csr_matrix(y)


def _started(
    settings: ModelSettings = SETTINGS, *, seed: int = 0, dense: bool = False, **options: Any
) -> VariationalModel:
    x, y = _data()
    model = settings.build()
    model.start(TrainingData(x.toarray() if dense else x, y, np.random.default_rng(seed), **options))
    return model


@pytest.mark.parametrize("start", ["kmeans", "rows"])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_start_comes_from_the_data(kind: str, dense: bool, normalise: bool, start: str):
    settings = replace(SETTINGS, normalise_inducing=normalise, **KINDS[kind])
    model = _started(settings, dense=dense, inducing_start=start)
    z = model.latents.inducing().detach().numpy()
    assert len(np.unique(z, axis=0)) == M
    norms = np.linalg.norm(z, axis=1)
    if normalise:
        np.testing.assert_allclose(norms, 1.0, rtol=1e-5)
    else:
        # Centres lie in the hull of the inputs, which have unit norm; a support adds a little noise.
        assert (norms < 1.1).all()
    frequency = np.clip(np.asarray(_data()[1].mean(axis=0)).ravel(), 0.5 / N, 1 - 0.5 / N)
    np.testing.assert_allclose(torch.sigmoid(model.mixing.bias.detach()), frequency, rtol=1e-5)
    assert model.mixing.loadings.detach().std() > 0
    model.latents.condition()


def test_random_rows_are_rows_of_the_data():
    z = _started(replace(SETTINGS, normalise_inducing=False), inducing_start="rows").latents.inducing().detach().numpy()
    x = _data()[0].toarray()
    assert all((np.abs(x - row).max(axis=1) < 1e-6).any() for row in z)


def test_a_subspace_is_that_of_the_leading_right_singular_vectors():
    inducing = _started(replace(SETTINGS, **KINDS["subspace"])).latents.inducing
    basis = inducing.transposed_basis.detach().numpy().astype(np.float64)
    np.testing.assert_allclose(basis.T @ basis, np.eye(R), atol=1e-5)
    leading = np.linalg.svd(_data()[0].toarray())[2][:R]
    np.testing.assert_allclose(basis @ basis.T, leading.T @ leading, atol=1e-4)


def test_a_support_is_where_a_centre_is_largest(monkeypatch: pytest.MonkeyPatch):
    settings = replace(SETTINGS, normalise_inducing=False, **KINDS["sparse"])
    inducing = _started(settings).latents.inducing
    assert isinstance(inducing, SparseInducingInputs)
    starts = centres.sparse_centres(_data()[0], M, TrainingData(*_data(), np.random.default_rng(0))).toarray()
    for centre, columns, entries in zip(starts, inducing.columns, inducing.entries.detach(), strict=True):
        assert len(set(columns.tolist())) == S
        outside = np.delete(np.abs(centre), columns.numpy())
        assert np.abs(centre[columns.numpy()]).min() >= outside.max()
        np.testing.assert_allclose(entries, centre[columns.numpy()], atol=0.05)


def test_clusters_of_hashed_features_are_clusters_of_the_features():
    # Two groups of rows on disjoint features, far more than the hash has buckets.
    rng, n_features = np.random.default_rng(0), 5 * centres._HASHED_FEATURES
    group = np.repeat([0, 1], 40)
    columns = rng.integers(100, size=(80, 20)) + 10000 * group[:, None]
    x = scipy.sparse.csr_matrix(
        (np.ones(1600, dtype=np.float32), (np.repeat(np.arange(80), 20), columns.ravel())), shape=(80, n_features)
    )
    found = centres.sparse_centres(x, 2, TrainingData(x, scipy.sparse.csr_matrix((80, 1)), rng))
    sides = [np.unique(found[i].indices // 10000).tolist() for i in range(2)]
    assert sorted(sides) == [[0], [1]]


def test_labels_in_no_row_and_in_every_row_get_finite_biases():
    x, _ = _data()
    y = scipy.sparse.csr_matrix(np.tile(np.array([[0.0, 1.0, 0.0, 1.0, 0.0]], dtype=np.float32), (N, 1)))
    model = SETTINGS.build()
    model.start(TrainingData(x, y, np.random.default_rng(0)))
    bias = model.mixing.bias.detach().numpy()
    assert np.isfinite(bias).all()
    assert bias[0] < -3 < 3 < bias[1]


@pytest.mark.parametrize("kind", ["free", "sparse"])
@pytest.mark.parametrize("n_rows", [1, 2, 3])
def test_more_inducing_inputs_than_distinct_rows_are_still_distinct(kind: str, n_rows: int):
    x = scipy.sparse.csr_matrix(np.tile(np.eye(1, D, dtype=np.float32), (n_rows, 1)))
    y = scipy.sparse.csr_matrix(np.ones((n_rows, K), dtype=np.float32))
    model = replace(SETTINGS, **KINDS[kind]).build()
    with warnings.catch_warnings():
        # scikit-learn may say that there are fewer distinct rows than centres.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.start(TrainingData(x, y, np.random.default_rng(0)))
    z = model.latents.inducing().detach().numpy()
    assert np.isfinite(z).all()
    assert len(np.unique(z, axis=0)) == M
    model.latents.condition()


@pytest.mark.parametrize("kind", KINDS)
def test_equal_generators_give_equal_starts_and_others_do_not(kind: str):
    states = [_started(replace(SETTINGS, **KINDS[kind]), seed=seed).state_dict() for seed in (1, 1, 2)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_with_propensities_biases_start_at_the_frequency_with_which_labels_apply():
    propensities = np.linspace(0.5, 1.0, K)
    model = _started(replace(SETTINGS, propensity=True), propensities=propensities)
    np.testing.assert_allclose(model.likelihood.propensities, propensities, rtol=1e-6)
    frequency = np.clip(np.asarray(_data()[1].mean(axis=0)).ravel() / propensities, 0.5 / N, 1 - 0.5 / N)
    np.testing.assert_allclose(torch.sigmoid(model.mixing.bias.detach()), frequency, rtol=1e-5)


@pytest.mark.parametrize("n_latent", [2, K - 1, K + 3])
def test_spectral_loadings_are_the_leading_eigenvectors_of_the_covariance_of_the_labels(n_latent: int):
    x, y = _data()
    model = replace(SETTINGS, n_latent=n_latent).build()
    model.start(TrainingData(x, y, np.random.default_rng(0), loadings_start="spectral"))
    loadings = model.mixing.loadings.detach().numpy().astype(np.float64)
    covariance = np.cov(y.toarray().astype(np.float64), rowvar=False, bias=True)
    found = min(n_latent, K - 1)
    values, vectors = np.linalg.eigh(covariance)
    leading = vectors[:, ::-1][:, :found] * np.sqrt(values[::-1][:found])
    got = loadings[:, :found] @ loadings[:, :found].T
    expected = leading @ leading.T
    np.testing.assert_allclose(got / np.trace(got), expected / np.trace(expected), atol=1e-5)
    assert np.square(loadings[:, :found]).mean() == pytest.approx(1 / n_latent, rel=1e-4)
    assert np.abs(loadings[:, found:]).max(initial=0) < 1 / np.sqrt(n_latent)


def test_labels_that_are_all_alike_have_no_direction_and_still_finite_loadings():
    x, _ = _data()
    for y in (np.ones((N, K)), np.ones((N, 1))):
        model = replace(SETTINGS, n_labels=y.shape[1]).build()
        labels = scipy.sparse.csr_matrix(y.astype(np.float32))
        model.start(TrainingData(x, labels, np.random.default_rng(0), loadings_start="spectral"))
        assert torch.isfinite(model.mixing.loadings).all()


def test_biases_of_classes_are_logarithms_of_their_frequencies_and_functions_start_from_their_own_rows():
    rng = np.random.default_rng(0)
    classes = np.repeat([0, 1, 3], [20, 9, 1])
    y = scipy.sparse.csr_matrix((np.ones(30, np.float32), classes, np.arange(31)), shape=(30, 4))
    x = (10 * np.eye(4)[classes] + 0.01 * rng.normal(size=(30, 4))).astype(np.float32)
    settings = ModelSettings(
        n_features=4,
        n_labels=4,
        n_latent=4,
        n_inducing=3,
        kernel="se",
        inducing="separate",
        likelihood="softmax",
        mixing="identity",
        normalise_inducing=False,
    )
    for how in ("kmeans", "rows"):
        model = settings.build()
        assert model.start(TrainingData(x, y, np.random.default_rng(1), inducing_start=how)) is None
        expected = np.log(np.array([20, 9, 0.5, 1]) / 30)
        np.testing.assert_allclose(model.mixing.bias.detach(), expected, rtol=1e-5)
        z = model.latents.inducing().detach().numpy()
        assert z.shape == (4, 3, 4)
        for k in (0, 1):
            np.testing.assert_allclose(z[k], np.tile(10 * np.eye(4)[k], (3, 1)), atol=0.1)
        # One row is not enough for three inducing inputs.
        assert np.linalg.norm(z[3] - 10 * np.eye(4)[3], axis=1).min() < 0.1
        assert len(np.unique(z[3], axis=0)) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_of_very_many_rows_or_entries_some_are_enough_to_start(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, seen = replace(SETTINGS, **KINDS[kind]), []

    def noted(data: TrainingData, size: int) -> Any:
        seen.append(centres.in_memory(data, size).toarray())
        return scipy.sparse.csr_matrix(seen[-1])

    monkeypatch.setattr(f"extremegp.engine.inducing.{kind.partition('-')[0]}.in_memory", noted)
    of_all = _started(settings)
    monkeypatch.setattr(centres, "_START_ROWS", 12)
    _started(settings)
    monkeypatch.setattr(centres, "_START_ROWS", 500_000)
    monkeypatch.setattr(centres, "_START_ENTRIES", _data()[0].nnz // 2)
    _started(settings)
    monkeypatch.setattr(centres, "_START_ENTRIES", 1)
    least = _started(settings)
    assert [len(rows) for rows in seen] == [N, 12, N // 2, M]
    rows = {row.tobytes() for row in _data()[0].toarray()}
    assert all({row.tobytes() for row in some} <= rows for some in seen)
    assert of_all.latents.inducing().shape == least.latents.inducing().shape


def test_biases_and_spectral_loadings_of_weighted_rows_are_those_of_repeated_ones():
    x, y = _data()
    counts = np.random.default_rng(5).integers(1, 4, size=N)
    rows = np.repeat(np.arange(N), counts)
    models = []
    for inputs, labels, weights in ((x, y, counts.astype(float)), (x[rows], y[rows], None)):
        model = replace(SETTINGS, n_latent=3).build()
        given = {"loadings_start": "spectral", "weights": weights}
        model.start(TrainingData(inputs, labels, np.random.default_rng(0), **given))
        models.append(model)
    biases = [model.mixing.bias.detach() for model in models]
    torch.testing.assert_close(*biases)
    first, second = (model.mixing.loadings.detach() @ model.mixing.loadings.detach().T for model in models)
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-4)
    assert float((biases[0] - _started(replace(SETTINGS, n_latent=3)).mixing.bias.detach()).abs().max()) > 1e-2


def test_soft_labels_that_are_all_alike_have_no_direction():
    x, _ = _data()
    labels = scipy.sparse.csr_matrix(np.full((N, K), 0.3, dtype=np.float32))
    model = replace(SETTINGS).build()
    model.start(TrainingData(x, labels, np.random.default_rng(0), loadings_start="spectral"))
    assert torch.isfinite(model.mixing.loadings).all()
    np.testing.assert_allclose(torch.sigmoid(model.mixing.bias.detach()), 0.3, rtol=1e-5)


def test_functions_of_classes_start_from_the_rows_that_most_likely_have_them():
    rng = np.random.default_rng(0)
    classes = np.repeat([0, 1, 2], 10)
    x = (10 * np.eye(3)[classes] + 0.01 * rng.normal(size=(30, 3))).astype(np.float32)
    y = scipy.sparse.csr_matrix((0.1 + 0.7 * np.eye(3)[classes]).astype(np.float32))
    one_each = {"mixing": "identity", "n_latent": 3, "inducing": "separate", "normalise_inducing": False}
    model = replace(SETTINGS, n_features=3, n_labels=3, likelihood="softmax", **one_each).build()
    model.start(TrainingData(x, y, np.random.default_rng(0)))
    for k, points in enumerate(model.latents.inducing().detach().numpy()):
        np.testing.assert_allclose(points, np.tile(10 * np.eye(3)[k], (len(points), 1)), atol=0.1)
