from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from scipy.integrate import quad
from scipy.stats import norm
from tests.label_tree.small import D, small_classifier, small_data

from extremegp import LabelTreeGPClassifier, load
from extremegp.engine.likelihoods import BernoulliLabels
from extremegp.label_tree.prior import N_NEAREST, UtilityPrior


def learnt(unlike: float = 0.2, like: float = 0.6, variance: float = 2.0) -> UtilityPrior:
    found = UtilityPrior()
    found.unlike.fill_(unlike), found.like.fill_(like), found.variance.fill_(variance)
    return found


@pytest.fixture(scope="module")
def fitted() -> LabelTreeGPClassifier:
    return small_classifier(beam=2).fit(*small_data(n_rows=400))


def empty(n_rows: int = 1) -> scipy.sparse.csr_matrix:
    return scipy.sparse.csr_matrix((n_rows, D), dtype=np.float32)


def test_trust_goes_from_nothing_to_all_between_unlike_and_like_rows():
    found = learnt().trust(np.array([-1.0, 0.2, 0.3, 0.4, 0.6, 1.0], np.float32))
    np.testing.assert_allclose(found, [0, 0, 0.25, 0.5, 1, 1], atol=1e-6)


def test_like_is_what_few_training_rows_are_below_and_unlike_what_chance_makes():
    found = UtilityPrior()
    found.learn(np.linspace(0.5, 1, 101, dtype=np.float32), np.array([0.1, 0.2, 0.9], np.float32), 3.0)
    assert [float(found.unlike), float(found.like), float(found.variance)] == pytest.approx([0.2, 0.51, 3.0])


@pytest.mark.parametrize("known", [0.0, 0.3])
def test_rows_that_chance_has_made_as_near_as_others_leave_a_sound_prior(known: float):
    found = UtilityPrior()
    found.learn(np.full(9, known, np.float32), np.full(9, 0.9, np.float32), 0.0)
    assert found.is_sound()
    assert found.trust(np.full(1, known, np.float32)) == (known > 0)
    assert found.trust(np.zeros(1, np.float32)) == 0


def test_labels_have_their_frequencies_under_the_prior():
    counts = np.array([0.0, 3, 10, 3, 20])
    groups = learnt().groups(BernoulliLabels(), counts, 20.0, 1e-4)
    assert groups.sizes.tolist() == [1, 2, 1, 1]
    for count, mean in zip(counts, groups.means[groups.of_label], strict=True):
        expected = np.clip(count / 20, 1e-4, 1 - 0.5 / 20)
        found, _ = quad(lambda f, mean=mean: norm.pdf(f, mean, np.sqrt(2)) / (1 + np.exp(-f)), mean - 15, mean + 15)
        assert found == pytest.approx(expected, rel=1e-4)


def test_utilities_go_from_the_posterior_to_the_prior():
    mean, variance = learnt().mixed(
        np.array([4.0, 4, 4]), np.array([0.5, 0.5, 9]), np.array([-2.0]), np.array([1, 0.5, 0])
    )
    np.testing.assert_allclose(mean, [4, 1, -2])
    np.testing.assert_allclose(variance, [0.5, 0.25 * 0.5 + 0.75 * 2, 2])


def test_a_row_without_a_feature_has_the_frequencies_of_the_labels(fitted: LabelTreeGPClassifier):
    frequencies = fitted.label_counts_ / fitted.n_rows_
    np.testing.assert_allclose(fitted.predict_proba(empty())[0], frequencies, atol=0.002)


def test_nothing_is_less_certain_than_a_row_without_a_feature(fitted: LabelTreeGPClassifier):
    none, new = (fitted.predict_uncertainty(x) for x in (empty(), small_data(5)[0]))
    assert none.variance[0] == pytest.approx(float(fitted.model_.prior.variance), rel=1e-5)
    assert new.variance.max() < none.variance[0]
    assert new.epistemic.max() < none.epistemic[0]
    assert none.novelty[0] < 0.01


def test_entropies_are_the_sums_of_those_of_all_labels(fitted: LabelTreeGPClassifier):
    x = scipy.sparse.vstack([empty(), small_data(5)[0][:20], 0.1 * empty()]).tocsr()
    p = fitted.predict_proba(x).astype(np.float64)
    total = -(p * np.log(p) + (1 - p) * np.log1p(-p)).sum(axis=1)
    np.testing.assert_allclose(fitted.predict_uncertainty(x).total, total, rtol=1e-4)


def test_rows_between_are_between(fitted: LabelTreeGPClassifier, monkeypatch: pytest.MonkeyPatch):
    x = small_data(5)[0][1:3]
    near = fitted.predict_proba(x)
    prior = fitted.model_.prior
    assert prior is not None
    monkeypatch.setattr(prior, "trust", lambda closeness: np.full(len(closeness), 0.5, np.float32))
    between, found = fitted.predict_proba(x), fitted.predict_uncertainty(x)
    frequencies = fitted.label_counts_ / fitted.n_rows_
    most, low = near.argmax(axis=1), np.arange(2)
    assert np.all(between[low, most] < near[low, most])
    assert np.all(between[low, most] > np.minimum(frequencies[most], near[low, most]))
    total = -(between * np.log(between) + (1 - between) * np.log1p(-between)).sum(axis=1)
    np.testing.assert_allclose(found.total, total, rtol=1e-3)


def test_closeness_is_the_mean_cosine_with_the_nearest_rows(fitted: LabelTreeGPClassifier):
    model, x = (
        fitted.model_,
        scipy.sparse.csr_matrix(fitted.features_.transform(small_data(5)[0][1:6]), dtype=np.float32),
    )
    z = model.rows.inputs()
    nearest = model.rows.nearest(3 * x, np.full(5, -1))
    lengths = np.outer(*(np.linalg.norm(rows.toarray(), axis=1) for rows in (x, z)))
    cosines = -np.sort(-(x @ z.T).toarray() / np.maximum(lengths, 1e-9), axis=1)[:, :N_NEAREST]
    np.testing.assert_allclose(model.rows.closeness(3 * x, nearest), cosines.mean(axis=1), rtol=1e-5)


def test_the_prior_is_saved(fitted: LabelTreeGPClassifier, tmp_path: Path):
    fitted.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(empty()), fitted.predict_proba(empty()))


@pytest.mark.parametrize(("name", "value"), [("unlike", 0.9), ("unlike", -0.1), ("variance", 0.0), ("like", np.inf)])
def test_a_prior_out_of_its_domain_is_not_sound(name: str, value: float):
    found = learnt(like=0.8)
    getattr(found, name).fill_(value)
    assert not found.is_sound()
