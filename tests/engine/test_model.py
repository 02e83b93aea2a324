from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from tests.models import (
    as_array,
    batch_of,
    random_inputs,
    random_labels,
    random_model,
    reference_covariance,
    reference_covariances,
    reference_latents,
    sparse_rows,
    whitened_moments,
)
from tests.reference import svgp

from extremegp.engine import mixing as mixing_module
from extremegp.engine.batch import Batch
from extremegp.engine.latents import SparseGP
from extremegp.engine.model import ELBO, VariationalModel
from extremegp.engine.utilities import Utilities
from extremegp.settings.model import ModelSettings
from extremegp.settings.parts import KERNEL_NAMES, POSTERIORS

N, D, K, P, M = 6, 4, 5, 2, 3


def _settings(**changes: object) -> ModelSettings:
    defaults = {
        "n_features": D,
        "n_labels": K,
        "n_latent": P,
        "n_inducing": M,
        "kernel": "ard",
        "posterior": "shared-basis",
        "relative_jitter": 1e-4,
    }
    return ModelSettings(**{**defaults, **changes})  # type: ignore[arg-type]


def _batch(x: np.ndarray, y: np.ndarray, n_rows: int | None = None, **known: Any) -> Batch:
    return batch_of(sparse_rows(y), sparse_rows(x), scale=(n_rows or len(x)) / len(x), **known)


def _bound(model: VariationalModel, x: np.ndarray, y: np.ndarray, n_rows: int | None = None) -> float:
    with torch.no_grad():
        return float(model.elbo(_batch(x, y, n_rows)).bound)


def _reference_bound(model: VariationalModel, x: np.ndarray, y: np.ndarray) -> float:
    latents = model.latents
    assert isinstance(latents, SparseGP)
    reference = reference_latents(latents, reference_covariances(latents))
    data = svgp.expected_log_likelihood(
        y, *reference.marginals(x), as_array(model.mixing.loadings), as_array(model.mixing.bias)
    )
    return data - reference.kl()


@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("kernel", KERNEL_NAMES)
def test_the_bound_equals_the_naive_reference(kernel: str, posterior: str):
    model = random_model(_settings(kernel=kernel, posterior=posterior))
    x, y = random_inputs(N, D), random_labels(N, K)
    assert _bound(model, x, y) == pytest.approx(_reference_bound(model, x, y), rel=1e-7)


def test_sparse_and_dense_inputs_give_the_same_bound_and_gradients():
    x, y = random_inputs(N, D), random_labels(N, K)
    model = random_model(_settings(kernel="ard+linear", linear_term=True))
    parameters = [p for p in model.parameters() if p.requires_grad]
    bounds, gradients = [], []
    for rows in (sparse_rows(x), torch.from_numpy(x)):
        bound = model.elbo(batch_of(sparse_rows(y), rows)).bound
        bounds.append(bound.detach())
        gradients.append(torch.autograd.grad(bound, parameters))
    torch.testing.assert_close(*bounds, rtol=1e-12, atol=0)
    for sparse, dense in zip(*gradients, strict=True):
        torch.testing.assert_close(sparse, dense, rtol=1e-9, atol=1e-12)
        assert sparse.abs().max() > 0


def test_chunks_of_labels_do_not_change_the_bound(monkeypatch: pytest.MonkeyPatch):
    model = random_model(_settings())
    x, y = random_inputs(N, D), random_labels(N, K)
    whole = _bound(model, x, y)
    monkeypatch.setattr(mixing_module, "_CHUNK_ELEMENTS", 2 * N)
    assert _bound(model, x, y) == pytest.approx(whole, rel=1e-13)


def test_float32_agrees_with_float64():
    model = random_model(_settings(kernel="ard+linear"))
    x, y = random_inputs(N, D), random_labels(N, K)
    exact = _bound(model, x, y)
    model.float()
    with torch.no_grad():
        elbo = model.elbo(batch_of(*(sparse_rows(part, torch.float32) for part in (y, x))))
    assert elbo.bound.dtype == torch.float32
    assert float(elbo.bound) == pytest.approx(exact, rel=1e-5)


def test_the_mean_over_batches_of_equal_size_is_exactly_the_bound():
    model = random_model(_settings())
    x, y = random_inputs(N, D), random_labels(N, K)
    order = np.random.default_rng(0).permutation(N)
    estimates = [_bound(model, x[rows], y[rows], n_rows=N) for rows in np.split(order, 3)]
    assert np.mean(estimates) == pytest.approx(_bound(model, x, y), rel=1e-12)
    assert np.std(estimates) > 1e-3


def test_over_all_orders_of_the_rows_batches_of_unequal_size_are_unbiased():
    model = random_model(_settings())
    x, y = random_inputs(5, D), random_labels(5, K)
    known = {
        rows: _bound(model, x[list(rows)], y[list(rows)], n_rows=5)
        for size in (1, 2)
        for rows in itertools.combinations(range(5), size)
    }
    estimates = [
        known[tuple(sorted(batch.tolist()))]
        for order in itertools.permutations(range(5))
        for batch in np.array_split(np.array(order), 3)
    ]
    assert np.mean(estimates) == pytest.approx(_bound(model, x, y), rel=1e-12)


def test_tempering_weighs_the_kl_alone():
    elbo = ELBO(torch.tensor(-3.0), torch.tensor(2.0), 5.0)
    assert float(elbo.bound) == -17.0
    assert float(elbo.tempered(1.0)) == -17.0
    assert float(elbo.tempered(0.5)) == -16.0
    assert float(elbo.tempered(0.0)) == -15.0


@pytest.mark.parametrize(("n_rows", "n_latent", "nodes"), [(3, 1, 40), (2, 2, 24)])
def test_the_bound_stays_below_the_exact_evidence_and_comes_close_when_optimised(
    n_rows: int, n_latent: int, nodes: int
):
    x = random_inputs(n_rows + 1, D, density=1.0)[1:]
    y = random_labels(n_rows, 2, density=0.7)
    gaps = []
    for seed in range(3):
        model = random_model(
            _settings(n_labels=2, n_latent=n_latent, n_inducing=n_rows, kernel="se", posterior="full"),
            scale=0.8,
            seed=seed,
        )
        with torch.no_grad():
            # With an inducing input at every row nothing but the Gaussian form of q(u) separates bound and evidence.
            model.latents.inducing.transposed.copy_(torch.from_numpy(x).T)
        k_x = svgp.gram(reference_covariance(model.latents.kernel, D), x, x)
        evidence = svgp.log_evidence(y, k_x, as_array(model.mixing.loadings), as_array(model.mixing.bias), nodes=nodes)
        start = _bound(model, x, y)
        assert start < evidence
        optimizer = torch.optim.LBFGS(model.latents.posterior.parameters(), max_iter=60, line_search_fn="strong_wolfe")

        def closure(optimizer: torch.optim.Optimizer = optimizer, model: VariationalModel = model) -> torch.Tensor:
            optimizer.zero_grad()
            loss = -model.elbo(_batch(x, y)).bound
            loss.backward()
            return loss

        optimizer.step(closure)
        gaps.append(evidence - _bound(model, x, y))
        assert gaps[-1] < evidence - start
    assert all(-1e-6 < gap < 0.05 for gap in gaps)


def test_the_parsimonious_posterior_reaches_the_optimal_covariances_where_every_input_is_an_inducing_input():
    """T proposition 1: at the optimum of the full posterior, S_p = (K_X^-1 + Sigma_p^-1)^-1 with diagonal Sigma_p."""
    x, y = random_inputs(N + 1, D, density=1.0)[1:], random_labels(N, K)
    bounds, moments = [], []
    for posterior in ("full", "parsimonious"):
        model = random_model(_settings(posterior=posterior, n_inducing=N, relative_jitter=0.0), scale=0.8)
        with torch.no_grad():
            model.latents.inducing.transposed.copy_(torch.from_numpy(x).T)
        # The kernel, loadings and bias are equal; only the parameters of q are optimised.
        _copy_all_but_posterior(random_model(_settings(n_inducing=N), scale=0.8), model)
        optimizer = torch.optim.LBFGS(
            model.latents.posterior.parameters(),
            max_iter=3000,
            max_eval=6000,
            tolerance_grad=1e-9,
            tolerance_change=0,
            history_size=50,
            line_search_fn="strong_wolfe",
        )

        def closure(optimizer: torch.optim.Optimizer = optimizer, model: VariationalModel = model) -> torch.Tensor:
            optimizer.zero_grad()
            loss = -model.elbo(_batch(x, y)).bound
            loss.backward()
            return loss

        optimizer.step(closure)
        bounds.append(_bound(model, x, y))
        k_z = svgp.gram(reference_covariance(model.latents.kernel, D), x, x)
        moments.append(whitened_moments(model.latents.posterior, k_z))
    assert bounds[1] == pytest.approx(bounds[0], rel=1e-9)
    for optimal, reached in zip(*moments, strict=True):
        np.testing.assert_allclose(reached, optimal, atol=2e-4)


def _copy_all_but_posterior(source: VariationalModel, target: VariationalModel) -> None:
    state = {
        name: tensor
        for name, tensor in source.state_dict().items()
        if not name.startswith(("latents.posterior", "latents.inducing"))
    }
    target.load_state_dict(state, strict=False)


def test_utilities_are_the_mixed_marginals_of_the_latents():
    model = random_model(_settings())
    x = torch.from_numpy(random_inputs(N, D))
    conditioned = model.latents.condition()
    for got, expected in zip(
        model.utilities(conditioned, x).marginals(), model.mixing.marginals(conditioned.marginals(x)), strict=True
    ):
        torch.testing.assert_close(got, expected)


# A mean function


def _with_mean(**changes: object) -> VariationalModel:
    """A model with a mean function that is a regression on three rows."""
    model = random_model(_settings(n_mean_points=3, n_mean_stored=None, **changes))
    mean, generator = model.mean_function, torch.Generator().manual_seed(3)
    with torch.no_grad():
        mean.points.normal_(generator=generator)
        mean.coefficients.normal_(std=0.1, generator=generator)
        mean.frequencies.fill_(0.4)
    return model


@pytest.mark.parametrize("known", [False, True], ids=["worked out", "known"])
def test_a_mean_function_is_added_to_means_and_draws_alike(known: bool):
    model, x = _with_mean(), torch.from_numpy(random_inputs(N, D))
    conditioned, lengths = model.latents.condition(), torch.tensor([2, 4])
    logits = torch.randn(N, K, dtype=torch.float64) if known else model.mean_function.logits(x)
    added = model.mean_function.slope * logits
    assert added.std() > 0.1
    utilities = model.utilities(conditioned, x, logits if known else None)
    plain = Utilities(model.mixing, conditioned.marginals(x))
    torch.testing.assert_close(utilities.means(), plain.means() + added)
    torch.testing.assert_close(utilities.marginals().variance, plain.marginals().variance)
    drawn = utilities.draws(lengths, 5, torch.Generator().manual_seed(1))
    h = conditioned.draws(x, lengths, 5, torch.Generator().manual_seed(1))
    torch.testing.assert_close(drawn, h @ model.mixing.loadings.T + model.mixing.bias + added)


def test_the_bound_takes_the_logits_of_the_batch():
    model, x, y = _with_mean(), random_inputs(N, D), random_labels(N, K)
    logits = torch.randn(N, K, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        bounds = [float(model.elbo(_batch(x, y, mean_logits=part)).bound) for part in (logits, None)]
        own = model.mean_function.logits(sparse_rows(x))
        assert float(model.elbo(_batch(x, y, mean_logits=own)).bound) == pytest.approx(bounds[1], rel=1e-12)
    assert bounds[0] != pytest.approx(bounds[1])


# Some of the labels

SOME = torch.tensor([0, 2, 3])
KINDS: dict[str, dict[str, object]] = {
    "factor": {},
    "factor, linear term": {"linear_term": True},
    "one each": {"mixing": "identity", "n_latent": K},
    "separate": {"mixing": "identity", "n_latent": K, "inducing": "separate", "posterior": "full"},
    "lengthscales": {"mixing": "identity", "n_latent": K, "kernel": "se-p-ell", "posterior": "parsimonious"},
    "linear": {"mixing": "identity", "n_latent": K, "latents": "linear"},
    "features": {"mixing": "identity", "n_latent": K, "latents": "random-features", "kernel": "se", "n_layers": 2},
    "propensities": {"propensity": True},
}


def _selectable(kind: str) -> VariationalModel:
    model = random_model(_settings(**{"n_random_features": 3, **KINDS[kind]}))
    if kind == "propensities":
        model.likelihood.propensities.copy_(torch.linspace(0.3, 0.9, K))
    return model


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_some_labels_has_their_utilities_and_data_term(kind: str, partial: bool):
    model, x, y = _selectable(kind), random_inputs(N, D), random_labels(N, K)
    part, rows = model.select(SOME, partial=partial), torch.from_numpy(x)
    everything = model.utilities(model.latents.condition(4), rows).marginals()
    some = part.utilities(part.latents.condition(4), rows).marginals()
    for got, whole in zip(some, everything, strict=True):
        torch.testing.assert_close(got, whole[:, SOME])
    # With weights of zero for the others the whole model has the same data term.
    alone, weights = y.copy(), torch.zeros(K, dtype=torch.float64)
    alone[:, [1, 4]], weights[SOME] = 0, 1
    with torch.no_grad():
        expected = model.elbo(_batch(x, alone, label_weights=weights, seed=4))
        got = part.elbo(_batch(x, y[:, SOME.numpy()], seed=4))
    torch.testing.assert_close(got.data, expected.data)
    if model.mixing.functions(SOME) is None or not partial:
        torch.testing.assert_close(got.kl, expected.kl)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].get("mixing") == "identity"])
def test_the_kl_of_a_partial_model_stands_for_that_of_all_without_bias(kind: str):
    model, conditioned = _selectable(kind), []
    whole = float(model.latents.condition().kl().detach())
    estimates = []
    for labels in itertools.combinations(range(K), 3):
        latents = model.select(torch.tensor(labels), partial=True).latents
        conditioned = latents.condition()
        estimates.append(latents.kl_weight * float(conditioned.kl().detach()))
    if kind == "features":
        # What hidden layers add stands for itself alone.
        inner = float(model.latents.inner_kl().detach())
        whole, estimates = whole - inner, [estimate - K / 3 * inner for estimate in estimates]
    assert np.mean(estimates) == pytest.approx(whole, rel=1e-6)
    assert np.std(estimates) > 1e-3


@pytest.mark.parametrize("partial", [False, True])
def test_training_some_labels_moves_the_functions_of_the_model_and_a_copy_of_the_mixing(partial: bool):
    model = _selectable("one each")
    part = model.select(SOME, partial=partial)
    part.elbo(_batch(random_inputs(N, D), random_labels(N, 3))).bound.backward()
    assert model.mixing.bias.grad is None
    assert part.mixing.bias.grad.shape == (3,)
    gradient = model.latents.posterior.q_mean.grad
    assert gradient[SOME].any(1).all()
    # The KL of the others moves them too, unless they are left out.
    assert gradient[[1, 4]].any() == (not partial)


def test_some_of_some_functions_are_those():
    model, x = _selectable("separate"), torch.from_numpy(random_inputs(N, D))
    everything = model.latents.condition().marginals(x)
    for partial in (False, True):
        latents = model.select(SOME, partial=partial).latents
        assert latents.n_functions == 3
        for got, whole in zip(latents.condition(functions=torch.tensor([1, 2])).marginals(x), everything, strict=True):
            torch.testing.assert_close(got, whole[:, [2, 3]])


def test_a_model_with_a_mean_function_takes_the_logits_of_the_labels():
    model, x = _with_mean(), torch.from_numpy(random_inputs(N, D))
    logits, conditioned = torch.randn(N, K, dtype=torch.float64), model.latents.condition()
    whole, part = model.utilities(conditioned, x, logits), model.select(SOME).utilities(conditioned, x, logits[:, SOME])
    torch.testing.assert_close(part.means(), whole.means()[:, SOME])


class _GPyTorch:
    """The same model assembled from GPyTorch's parts: a linear model of coregionalisation with logistic labels."""

    def __init__(self, model: VariationalModel) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            import gpytorch
        latents = model.latents
        z = as_array(latents.inducing())
        k_z = svgp.gram(reference_covariance(latents.kernel, D), z, z)
        means, covariances = whitened_moments(latents.posterior, k_z)
        weights = as_array(latents.kernel.log_weights.exp())
        kernel = gpytorch.kernels.RBFKernel(ard_num_dims=D).double()
        kernel.lengthscale = torch.from_numpy(1 / np.sqrt(weights))
        if hasattr(latents.kernel, "mixture_logit"):
            a = float(latents.kernel.mixture_logit.detach().sigmoid())
            stationary = gpytorch.kernels.ScaleKernel(kernel).double()
            stationary.outputscale = a
            dot = gpytorch.kernels.LinearKernel(ard_num_dims=D).double()
            dot.variance = torch.from_numpy((1 - a) * weights).unsqueeze(0)
            kernel = stationary + dot
        else:
            kernel = gpytorch.kernels.ScaleKernel(kernel).double()
            kernel.outputscale = float(latents.kernel.log_variance.detach().exp())
        in_u = not getattr(latents.posterior, "whitened", True)
        shape = torch.Size([P])
        distribution = gpytorch.variational.CholeskyVariationalDistribution(M, batch_shape=shape).double()
        distribution.variational_mean.data = torch.from_numpy(means)
        distribution.chol_variational_covar.data = torch.linalg.cholesky(torch.from_numpy(covariances))
        strategies = gpytorch.variational
        strategy_class = strategies.UnwhitenedVariationalStrategy if in_u else strategies.VariationalStrategy
        z = latents.inducing().detach()

        class Model(gpytorch.models.ApproximateGP):
            def __init__(self) -> None:
                base = strategy_class(self, z, distribution, learn_inducing_locations=False, jitter_val=0.0)
                base.variational_params_initialized.fill_(1)
                mixed = strategies.LMCVariationalStrategy(
                    base, num_tasks=K, num_latents=P, latent_dim=-1, jitter_val=0.0
                )
                super().__init__(mixed.double())
                mixed.lmc_coefficients.data = model.mixing.loadings.detach().T.contiguous()
                self.covar_module = kernel

            def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
                zeros = torch.zeros(*shape, x.shape[-2], dtype=x.dtype)
                return gpytorch.distributions.MultivariateNormal(zeros, self.covar_module(x).expand(*shape, -1, -1))

        class Labels(gpytorch.likelihoods.likelihood._OneDimensionalLikelihood):
            def forward(self, f: torch.Tensor, *_: object, **__: object) -> torch.distributions.Bernoulli:
                return torch.distributions.Bernoulli(logits=f + model.mixing.bias.detach())

        with gpytorch.settings.num_gauss_hermite_locs(80):
            self.model, self.likelihood = Model(), Labels()

    @torch.no_grad()
    def bound(self, x: np.ndarray, y: np.ndarray) -> float:
        self.model.train()
        f = self.model(torch.from_numpy(x))
        data = self.likelihood.expected_log_prob(torch.from_numpy(y), f).sum()
        return float(data - self.model.variational_strategy.kl_divergence().sum())


@pytest.mark.parametrize("kernel", ["ard", "ard+linear"])
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_the_bound_equals_that_of_gpytorch(kernel: str, posterior: str):
    model = random_model(_settings(kernel=kernel, posterior=posterior, relative_jitter=0.0), seed=2)
    x, y = random_inputs(N, D, density=1.0), random_labels(N, K)
    ours, theirs = _bound(model, x, y), _GPyTorch(model).bound(x, y)
    assert math.isfinite(theirs)
    assert ours == pytest.approx(theirs, rel=1e-6)
