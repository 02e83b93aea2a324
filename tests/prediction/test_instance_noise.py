from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.special import expit

from extremegp.engine.integrals.logistic import expected_sigmoid
from extremegp.engine.latents import Marginals
from extremegp.engine.mixing import FactorMixing
from extremegp.engine.utilities import Utilities
from extremegp.prediction import instance_noise
from extremegp.prediction.instance_noise import estimate_instance_noise
from extremegp.prediction.known_labels import InstanceNoise, utilities_given

N, K = 3000, 6


def together_and_apart(seed: int = 0) -> tuple[Utilities, np.ndarray]:
    """Functions that know nothing; labels 0 and 1 of an instance go together, 0 and 2 apart, the others are alone."""
    rng = np.random.default_rng(seed)
    e = 2 * rng.normal(size=N)
    scatter = np.stack([e, e, -e, *np.zeros((3, N))], axis=1)
    y = (rng.random((N, K)) < expit(-0.5 + scatter)).astype(float)
    frequency = torch.from_numpy(y.mean(axis=0)).float()
    mixing = FactorMixing(torch.eye(K), (frequency / (1 - frequency)).log()).requires_grad_(False)
    return Utilities(mixing, Marginals(torch.zeros(N, K), torch.full((N, K), 1e-3))), y


def estimate(utilities: Utilities, y: np.ndarray, **options: object) -> InstanceNoise:
    return estimate_instance_noise(
        utilities,
        scipy.sparse.csr_matrix(y),
        rng=np.random.default_rng(1),
        **options,  # type: ignore[arg-type]
    )


def log_loss_of_the_others(utilities: Utilities, y: np.ndarray, noise: InstanceNoise) -> float:
    rows = np.flatnonzero(y.any(axis=1))
    known = np.zeros_like(y[rows])
    known[np.arange(len(rows)), y[rows].argmax(axis=1)] = 1.0
    here = Utilities(utilities.mixing, utilities.latents.rows(torch.from_numpy(rows)))
    p = expected_sigmoid(*utilities_given(here, scipy.sparse.csr_matrix(known), noise)).numpy()
    loss = -np.where(y[rows] > 0, np.log(p), np.log1p(-p))
    return float(loss[known == 0].sum() / len(rows))


def test_it_finds_which_labels_go_together_and_which_apart() -> None:
    utilities, y = together_and_apart()
    noise = estimate(utilities, y)
    covariance = (noise.factor @ noise.factor.T).numpy()
    assert covariance[0, 1] > 0.4
    assert covariance[0, 2] < -0.4
    # One label is known of each row: that it is this one, and not another, speaks a little against the others.
    assert (covariance[0, 2] < covariance[0, 3:]).all()
    assert (covariance[0, 3:] < covariance[0, 1] - 0.4).all()


def test_it_predicts_the_other_labels_of_new_rows_better() -> None:
    noise = estimate(*together_and_apart())
    utilities, y = together_and_apart(seed=5)
    without = log_loss_of_the_others(utilities, y, InstanceNoise.none(utilities.mixing.bias, K))
    assert log_loss_of_the_others(utilities, y, noise) < without - 0.1


def test_the_shift_has_the_derivatives_of_finite_differences() -> None:
    rng = np.random.default_rng(0)
    latents = Marginals(torch.from_numpy(rng.normal(size=(4, 3))), torch.from_numpy(rng.gamma(1.0, size=(4, 3))))
    known, bias = torch.from_numpy(rng.normal(size=(4, 3))), torch.from_numpy(rng.normal(size=4))
    weight = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    factor = torch.from_numpy(rng.normal(size=(3, 3))).requires_grad_()
    torch.autograd.gradcheck(
        lambda w, f: instance_noise._shift(latents, known, bias, w, f), (weight, factor), eps=1e-5, atol=1e-5
    )


def test_the_gradient_is_that_of_the_log_likelihood_of_what_is_recorded() -> None:
    mean, variance = torch.linspace(-3, 3, 7).double()[None], torch.full((1, 7), 0.5).double()
    step = 1e-5
    for target in (torch.zeros(1, 7), torch.ones(1, 7), torch.full((1, 7), 0.3)):
        for recorded in (1.0, torch.tensor(0.4).double()):

            def loss(m: torch.Tensor, target: torch.Tensor = target, recorded: object = recorded) -> torch.Tensor:
                p = recorded * expected_sigmoid(m, variance)
                return -(target * p.log() + (1 - target) * (-p).log1p())

            difference = (loss(mean + step) - loss(mean - step)) / (2 * step)
            found = instance_noise._gradient(mean, variance, target, recorded)
            torch.testing.assert_close(found, difference, rtol=1e-4, atol=1e-6)


def test_a_sample_of_the_absent_labels_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    y = scipy.sparse.csr_matrix((np.random.default_rng(0).random((5, 50)) < 0.05).astype(float))
    monkeypatch.setattr(instance_noise, "_SAMPLED_LABELS", 10)
    labels, weights = instance_noise._labels_to_sum_over(y, np.random.default_rng(1))
    present = np.unique(y.indices)
    assert set(present) <= set(labels)
    assert len(set(labels)) == len(labels) == len(present) + 10
    assert weights.sum() == pytest.approx(50)
    utilities, y = together_and_apart()
    monkeypatch.setattr(instance_noise, "_SAMPLED_LABELS", 2)
    covariance = estimate(utilities, y).factor
    assert (covariance @ covariance.T)[0, 1] > 0.4


def test_equal_generators_give_equal_noise() -> None:
    first, second = (estimate(*together_and_apart()) for _ in range(2))
    assert torch.equal(first.factor, second.factor)
    assert torch.equal(first.weight, second.weight)


def test_one_row_and_one_label_are_enough() -> None:
    mixing = FactorMixing(torch.ones(1, 1), torch.zeros(1)).requires_grad_(False)
    noise = estimate(Utilities(mixing, Marginals(torch.zeros(1, 1), torch.ones(1, 1))), np.ones((1, 1)))
    assert torch.isfinite(noise.factor).all()
    assert noise.weight > 0


def test_rows_count_by_their_weights() -> None:
    utilities, y = together_and_apart()
    # Of half the rows labels 0 and 1 exclude each other: without these, they go together.
    mixed = y.copy()
    mixed[N // 2 :, 1] = 1 - mixed[N // 2 :, 0]
    weights = np.where(np.arange(N) < N // 2, 1.0, 1e-6)
    covariance = [
        noise.factor @ noise.factor.T
        for noise in (estimate(utilities, mixed, weights=weights), estimate(utilities, mixed))
    ]
    assert covariance[0][0, 1] > 0.4
    assert covariance[1][0, 1] < 0.2


def test_labels_are_drawn_by_their_probabilities() -> None:
    y = scipy.sparse.csr_matrix(np.tile([[0.1, 0.0, 0.6, 0.3]], (4000, 1)))
    drawn = instance_noise._one_label_each(y, np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 4000, [0.1, 0, 0.6, 0.3], atol=0.03)


def test_soft_labels_that_are_nearly_certain_give_nearly_the_noise_of_labels() -> None:
    utilities, y = together_and_apart()
    covariance = (lambda noise: noise.factor @ noise.factor.T)(estimate(utilities, 0.98 * y + 0.01))
    assert covariance[0, 1] > 0.3
    assert covariance[0, 2] < -0.3
