from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import entr, expit
from scipy.stats import norm
from tests.label_tree.small import change_tensor, small_classifier, small_data

from extremegp import LabelTreeGPClassifier, load
from extremegp.errors import ModelFormatError
from extremegp.label_tree import LabelTreeModel, LabelTreePredictor
from extremegp.storage.tensors import copy_state


@pytest.fixture(scope="module")
def fitted() -> LabelTreeGPClassifier:
    return small_classifier(beam=2, all_rows=True).fit(*small_data(n_rows=400))


def inputs(fitted: LabelTreeGPClassifier, n_rows: int = 30) -> scipy.sparse.csr_matrix:
    return scipy.sparse.csr_matrix(fitted.features_.transform(small_data(5, n_rows)[0]), dtype=np.float32)


def without_posterior(model: LabelTreeModel) -> LabelTreeModel:
    """As earlier versions have it."""
    settings = replace(model.settings, weight_variances=False)
    with torch.device("meta"):
        other = settings.build()
    kept = {name: tensor for name, tensor in model.state_dict().items() if name in other.state_dict()}
    copy_state(other, kept, source="test")
    return other


def test_evidence_varies_as_the_weights_of_trees_and_regressions_do(fitted: LabelTreeGPClassifier):
    model, x = fitted.model_, inputs(fitted)
    evidence = model.evidence(x)
    found = model.evidence_deviations(x, evidence)
    assert list(found) == [0, *model.settings.regressions]
    assert len(found) == 3
    of_trees = [tree.log_probabilities(x, evidence.rows, evidence.labels) for tree in model.trees]
    chances = np.exp([scores for scores, _ in of_trees])
    # Errors of trees are one: their deviations add up, or nearly.
    spread = np.sqrt([variances for _, variances in of_trees])
    most, least = (
        (chances * part).sum(axis=0) / (chances.sum(axis=0) + 2e-5) for part in (spread.max(0), spread.min(0))
    )
    assert np.all((found[0] < most * 1.001) & (found[0] > least * 0.999))
    for column in model.settings.regressions:
        said = (np.exp(evidence.values[:, column]) - 0.01).clip(model.frequencies()[evidence.labels], 0.5)
        expected = np.sqrt(evidence.values[:, column + 1] * said * (1 - said)) / (said + 0.01)
        np.testing.assert_allclose(found[column], expected, rtol=1e-4)


def test_a_label_that_few_rows_tell_of_is_the_less_sure(fitted: LabelTreeGPClassifier):
    model, x = fitted.model_, inputs(fitted, 100)
    evidence = model.evidence(x)
    sure = np.array([np.inf if count == 0 else 1 / count for count in fitted.label_counts_])[evidence.labels]
    deviations = np.sqrt(model.trees[0].log_probabilities(x, evidence.rows, evidence.labels)[1])
    rare = sure > np.median(sure)
    assert deviations[rare].mean() > 1.1 * deviations[~rare].mean()


def test_what_is_unknown_of_the_evidence_is_epistemic_and_leaves_the_probabilities(fitted: LabelTreeGPClassifier):
    model, x = fitted.model_, inputs(fitted, 6)
    predictor = LabelTreePredictor(model)
    (_, total, aleatoric, variance), *_ = predictor.uncertainty(x)
    rows, evidence, mean, of_last = next(iter(predictor._moments(x)))
    extra = predictor._variance_of_evidence(x, evidence)
    assert np.all(extra >= 0)
    assert extra.max() > 0.05
    wider = np.maximum(np.minimum(of_last + extra, float(model.prior.variance)), of_last)
    np.testing.assert_allclose(variance, np.bincount(evidence.rows, wider) / np.bincount(evidence.rows), rtol=1e-5)
    others_total, others_left = predictor._entropies_of_others(
        evidence, np.bincount(evidence.rows, minlength=rows.stop)
    )
    left = np.zeros(rows.stop)
    for row, m, v, w in zip(evidence.rows, mean, of_last, wider, strict=True):
        left[row] += known_entropy(m, v, w)
    np.testing.assert_allclose(aleatoric - others_left, left, rtol=2e-3)
    chances = fitted.predict_proba(small_data(5, 6)[0]).astype(float)
    np.testing.assert_allclose(total, (entr(chances) + entr(1 - chances)).sum(axis=1), rtol=1e-4)
    assert np.all(total > aleatoric)
    assert others_total.shape == others_left.shape


def known_entropy(mean: float, variance: float, wider: float) -> float:
    """E H(sigma(f)) for f of the variance `wider` with the probability that N(mean, variance) gives."""

    def expected(function, m: float, v: float) -> float:
        s = np.sqrt(v)
        return quad(lambda f: function(expit(f)) * norm.pdf(f, m, s), m - 9 * s, m + 9 * s, limit=200)[0]

    chance = expected(float, mean, variance)
    centre = brentq(lambda m: expected(float, m, wider) - chance, -40, 40, xtol=1e-9)
    return expected(lambda p: entr(p) + entr(1 - p), centre, wider)


@pytest.mark.parametrize("variance", [0.01, 0.8, 3.0, 30.0])
def test_means_are_those_of_the_probabilities(fitted: LabelTreeGPClassifier, variance: float):
    predictor = LabelTreePredictor(fitted.model_)
    chances = np.array([1e-6, 1e-3, 0.2, 0.5, 0.7, 0.999], np.float32)
    variances = np.full(6, variance, np.float32)
    means = predictor._mean_of(chances, variances)
    np.testing.assert_allclose(predictor._probabilities(means, variances), chances, rtol=1e-3)


def test_the_posterior_is_saved(fitted: LabelTreeGPClassifier, tmp_path: Path):
    fitted.save(tmp_path / "model")
    x = small_data(5)[0]
    for one, other in zip(load(tmp_path / "model").predict_uncertainty(x), fitted.predict_uncertainty(x), strict=True):
        np.testing.assert_array_equal(one, other)


def test_models_without_it_have_that_of_the_rest(fitted: LabelTreeGPClassifier):
    x = inputs(fitted)
    older, today = (LabelTreePredictor(model) for model in (without_posterior(fitted.model_), fitted.model_))
    (_, total, aleatoric, variance), (_, same, less, more) = (
        next(iter(each.uncertainty(x))) for each in (older, today)
    )
    np.testing.assert_array_equal(total, same)
    assert np.all(less < aleatoric)
    assert np.all(more > variance)
    assert [*older.model.evidence_deviations(x, older.model.evidence(x))] == older.model.settings.regressions


@pytest.mark.parametrize("name", ["model.trees.0.prior_variance", "model.trees.1.levels.0.bias_variances"])
@pytest.mark.parametrize("value", [-1.0, np.nan])
def test_a_posterior_out_of_its_domain_is_refused(
    fitted: LabelTreeGPClassifier, tmp_path: Path, name: str, value: float
):
    fitted.save(tmp_path / "model")
    change_tensor(tmp_path / "model", name, lambda tensor: torch.full_like(tensor, value))
    with pytest.raises(ModelFormatError, match=r"out of range|NaN"):
        load(tmp_path / "model")
