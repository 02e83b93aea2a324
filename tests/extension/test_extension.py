"""A stranger's test: parts in files of their own are trained, saved and loaded without a change to the library."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from tests.extension.periodic import Periodic
from tests.extension.poisson import Poisson
from tests.extension.rational_quadratic import RationalQuadratic

from extremegp import MultiClassGPClassifier, MultiLabelGPClassifier, load
from extremegp.engine.kernels import InnerProductKernel, SquaredExponential, WhiteNoise
from extremegp.engine.likelihoods import Softmax
from extremegp.errors import DataError, ModelFormatError, SettingsError

N, TRAINED = 400, 300


def counts():
    """Counts of 6 labels, whose rates are smooth functions of 2 features."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 2))
    rates = np.exp(np.sin(x @ rng.normal(size=(2, 6)) * 1.5) + rng.normal(size=6) * 0.5)
    return x, rng.poisson(rates).astype(float), rates


def waves():
    """Two classes that take turns with a period of 1, over ten periods; held out are periods between."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, size=(N, 1))
    return x, (np.sin(2 * np.pi * x[:, 0]) + 0.2 * rng.normal(size=N) > 0).astype(int)


def rings():
    """Two labels by the distance from the origin."""
    x = np.random.default_rng(0).normal(size=(N, 2)) * 1.5
    distance = np.linalg.norm(x, axis=1)
    return x, np.stack([distance < 1.2, (distance > 1.0) & (distance < 2.5)], axis=1).astype(int)


def of_counts(**options):
    return MultiLabelGPClassifier(
        **{"likelihood": Poisson(), "features": "raw", "n_inducing": 40, "epochs": 60, "random_state": 0, **options}
    )


def of_waves(**options):
    options = {"kernel": Periodic(period=1.1), "features": "raw", "n_inducing": 30, "epochs": 60, **options}
    return MultiClassGPClassifier(mean_function="zero", random_state=0, **options)


def of_rings(**options):
    options = {"kernel": RationalQuadratic() + WhiteNoise(), "features": "raw", "n_inducing": 40, **options}
    return MultiLabelGPClassifier(mean_function="zero", epochs=60, random_state=0, **options)


def loss(y, rates):
    return float(np.mean(rates - y * np.log(rates)))


def check_saving(classifier, x, folder, parts):
    """Refused without the classes, and with them the same to the bit."""
    classifier.save(folder)
    with pytest.raises(ModelFormatError, match=r"load\(folder, parts=\[\w+\]\)") as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    loaded = load(folder, parts=parts)
    np.testing.assert_array_equal(loaded.predict_proba(x), classifier.predict_proba(x))
    np.testing.assert_array_equal(loaded.decision_function(x), classifier.decision_function(x))


def test_a_likelihood_of_counts_learns_rates(tmp_path):
    x, y, rates = counts()
    classifier = of_counts().fit(x[:TRAINED], y[:TRAINED])
    predicted, base = classifier.predict_proba(x[TRAINED:]), y[:TRAINED].mean(0)
    least = loss(y[TRAINED:], rates[TRAINED:])
    gap = loss(y[TRAINED:], np.broadcast_to(base, predicted.shape)) - least
    assert loss(y[TRAINED:], predicted) - least < 0.3 * gap
    np.testing.assert_allclose(predicted.mean(0), y[TRAINED:].mean(0), rtol=0.25)
    check_saving(classifier, x[TRAINED:], tmp_path / "model", [Poisson])


def test_counts_are_trained_on_samples_of_the_labels_and_with_validation():
    x, y, _ = counts()
    sampled = of_counts(n_sampled_labels=3).fit(x[:TRAINED], scipy.sparse.csr_matrix(y[:TRAINED]))
    base = np.broadcast_to(y[:TRAINED].mean(0), y[TRAINED:].shape)
    assert loss(y[TRAINED:], sampled.predict_proba(x[TRAINED:])) < loss(y[TRAINED:], base)
    validated = of_counts(epochs=2).fit(x[:TRAINED], y[:TRAINED], validation=(x[TRAINED:], y[TRAINED:]))
    assert 0 <= validated.history_[-1]["validation_P@1"] <= 1
    assert 0 < validated.score(x, y) <= 1


@pytest.mark.parametrize(("value", "shown"), [(-1.0, "-1"), (0.5, "0.5"), (np.nan, "nan"), (2.0**25, "3.35544e[+]07")])
def test_what_is_no_count_is_refused(value, shown):
    x, y, _ = counts()
    y[7, 2] = value
    with pytest.raises(DataError, match=rf"Y must hold counts, .* but has {shown} at row 7, column 2"):
        of_counts().fit(x, y)


def test_counts_need_a_likelihood_of_counts():
    x, y, _ = counts()
    y = np.minimum(y, 2)
    with pytest.raises(DataError, match="Y must hold only 0 and 1, or soft labels between them, but has 2 at row"):
        of_counts(likelihood="bernoulli").fit(x, y)


def test_a_periodic_kernel_goes_on_where_another_does_not_reach(tmp_path):
    x, y = waves()
    near = x[:, 0] < 7
    classifier = of_waves().fit(x[near], y[near])
    other = of_waves(kernel=SquaredExponential(10.0)).fit(x[near], y[near])
    assert classifier.score(x[~near], y[~near]) > 0.85
    assert other.score(x[~near], y[~near]) < 0.7
    check_saving(classifier, x[~near], tmp_path / "model", [Periodic])


def test_a_kernel_of_arrays_refuses_sparse_inputs():
    x, y = waves()
    message = "the kernel Periodic needs dense inputs: pass X as an array"
    with pytest.raises(DataError, match=message):
        of_waves().fit(scipy.sparse.csr_matrix(x), y)
    with pytest.raises(DataError, match=message):
        of_waves().fit(x, y, validation=(scipy.sparse.csr_matrix(x), y))
    classifier = of_waves(epochs=1).fit(x, y)
    with pytest.raises(DataError, match=message):
        classifier.predict(scipy.sparse.csr_matrix(x))


def test_a_kernel_of_distances_adds_to_others(tmp_path):
    x, y = rings()
    classifier = of_rings().fit(x[:TRAINED], y[:TRAINED])
    right = (classifier.predict(x[TRAINED:]) == y[TRAINED:]).mean()
    assert right > 0.9 > max(y[TRAINED:].mean(0).max(), 1 - y[TRAINED:].mean(0).min())
    check_saving(classifier, x[TRAINED:], tmp_path / "model", [RationalQuadratic])
    on_sparse = of_rings().fit(scipy.sparse.csr_matrix(x[:TRAINED]), y[:TRAINED])
    assert (on_sparse.predict(x[TRAINED:]) == y[TRAINED:]).mean() > 0.9


class Scaled(InnerProductKernel):
    def __init__(self, scale):
        super().__init__()
        self.scale = torch.as_tensor(scale)

    def from_products(self, xz, xx, zz):
        return self.scale * xz


def test_a_part_that_is_made_with_a_tensor_is_refused():
    x, y = rings()
    classifier = of_rings(kernel=Scaled(torch.tensor(2.0)))
    for each in (classifier, clone(classifier)):
        with pytest.raises(
            SettingsError, match="Scaled was made with 'scale' that is no number, string or part"
        ) as caught:
            each.fit(x, y)
        assert "\n" not in str(caught.value)


def test_a_likelihood_of_other_targets_is_refused():
    x, y = rings()
    with pytest.raises(SettingsError, match="Softmax is not of many labels per row"):
        of_rings(likelihood=Softmax()).fit(x, y)


def test_estimators_with_parts_follow_scikit_learn():
    kernel = RationalQuadratic(np.float64(2.0))
    classifier = of_rings(kernel=kernel)
    assert classifier.get_params()["kernel"] is kernel
    copied = clone(classifier)
    assert copied.kernel is not kernel
    assert copied.kernel.arguments() == {"alpha": 2.0}
    x, y = waves()
    kernels = [Periodic(period=p) for p in (1.0, 0.3)] + ["se"]
    search = GridSearchCV(of_waves(epochs=20), {"kernel": kernels}, cv=2).fit(x, y)
    assert isinstance(search.best_params_["kernel"], Periodic)
    assert float(kernels[0].log_period.detach()) == 0.0
