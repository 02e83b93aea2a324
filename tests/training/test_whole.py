"""L-BFGS on all sequences at once."""

from itertools import pairwise, product

import numpy as np
import pytest
import scipy.optimize

from extremegp import SequenceGPClassifier, load
from extremegp.errors import SettingsError

POINT = {"latents": "linear-point", "transitions": "point", "optimizer": "lbfgs", "random_state": 0, "verbose": False}


def sentences(n: int = 25) -> tuple[list[list[list[str]]], list[list[str]]]:
    rng = np.random.default_rng(0)
    X, y = [], []
    for _ in range(n):
        words = rng.integers(0, 6, rng.integers(1, 7))
        X.append([[f"w{w}", f"even{w % 2 == 0}"] for w in words])
        y.append([str("abc"[(w + rng.integers(0, 2)) % 3]) for w in words])
    return X, y


def score_by_hand(
    model: SequenceGPClassifier, X: list[list[list[str]]], y: list[list[str]], vector: np.ndarray
) -> float:
    """Minus the log-posterior, every labelling of a sequence enumerated."""
    x, lengths = model.features_.transform(X)
    dense, v = np.asarray(x.todense(), dtype=float), len(model.classes_)
    d = dense.shape[1]
    weights, bias, pairs = np.split(vector, [d * v, d * v + v])
    f, pairs = dense @ weights.reshape(d, v) + bias, pairs.reshape(v, v)
    total = 0.5 * (weights @ weights / model.prior_variance + bias @ bias / 4 + (pairs**2).sum())
    codes = [[list(model.classes_).index(label) for label in own] for own in y]
    for own, truth in zip(np.split(f, np.cumsum(lengths)[:-1]), codes, strict=True):

        def value(labels: tuple[int, ...] | list[int], own: np.ndarray = own) -> float:
            unary = own[np.arange(len(labels)), list(labels)].sum()
            return float(unary + sum(pairs[i, j] for i, j in pairwise(labels)))

        every = np.array([value(labels) for labels in product(range(v), repeat=len(truth))])
        total += np.logaddexp.reduce(every) - value(truth)
    return float(total)


def learnt(model: SequenceGPClassifier) -> np.ndarray:
    parts = model.model_.latents.q_mean, model.model_.mixing.bias, model.model_.likelihood.q_mean
    return np.concatenate([part.detach().double().numpy().ravel() for part in parts])


def test_it_ends_at_the_maximum_of_the_posterior_of_enumerated_labellings() -> None:
    X, y = sentences(8)
    X, y = [tokens[:4] for tokens in X], [labels[:4] for labels in y]
    model = SequenceGPClassifier(**POINT, prior_variance=2.0).fit(X, y)
    found = learnt(model)
    value = score_by_hand(model, X, y, found)
    best = scipy.optimize.minimize(lambda v: score_by_hand(model, X, y, v), found, method="L-BFGS-B")
    assert value - best.fun < 1e-3 * abs(best.fun)


def test_it_is_no_worse_than_many_steps_of_adam() -> None:
    X, y = sentences()
    adam = SequenceGPClassifier(**{**POINT, "optimizer": "adam"}, epochs=300).fit(X, y)
    whole = SequenceGPClassifier(**POINT).fit(X, y)
    assert whole.history_[-1]["elbo"] >= adam.history_[-1]["elbo"] - 0.05
    for one, other in zip(whole.predict_marginals(X), adam.predict_marginals(X), strict=True):
        np.testing.assert_allclose(one, other, atol=0.05)


def test_unlabelled_tokens_weights_and_saved_models_work(tmp_path) -> None:
    X, y = sentences()
    twice = SequenceGPClassifier(**POINT).fit(X + X[:5], y + y[:5])
    partly = [[None if t == 1 else label for t, label in enumerate(labels)] for labels in y]
    weighted = SequenceGPClassifier(**POINT).fit(X, y, sample_weight=[2.0] * 5 + [1.0] * (len(X) - 5))
    for one, other in zip(twice.predict_marginals(X), weighted.predict_marginals(X), strict=True):
        np.testing.assert_allclose(one, other, atol=0.02)
    model = SequenceGPClassifier(**POINT).fit(X, partly)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert all(map(np.array_equal, again.predict_marginals(X), model.predict_marginals(X)))


def test_a_budget_ends_it_early_with_a_usable_model() -> None:
    X, y = sentences()
    model = SequenceGPClassifier(**POINT, time_budget=1e-6).fit(X, y)
    assert model.history_[-1]["iterations"] == 1
    assert all(np.isfinite(rows).all() for rows in model.predict_marginals(X))


@pytest.mark.parametrize("changes", [{"latents": "linear"}, {"transitions": "gaussian"}, {"patience": 2}])
def test_what_has_noise_or_epochs_is_refused(changes: dict[str, object]) -> None:
    X, y = sentences(4)
    with pytest.raises(SettingsError, match="lbfgs"):
        SequenceGPClassifier(**{**POINT, **changes}, validation_fraction=0.5).fit(X, y)
