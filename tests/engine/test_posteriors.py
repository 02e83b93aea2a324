from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.models import randomise, whitened_moments
from tests.moments import assert_gaussian_moments
from torch.distributions import MultivariateNormal, kl_divergence

from extremegp.engine.linalg import inverse_cholesky, lower_triangular
from extremegp.engine.posteriors import Full, MeanField, Parsimonious, Posterior, SharedBasis

P, M, B = 3, 4, 5
POSTERIORS: dict[str, Callable[..., Posterior]] = {
    "shared-basis": SharedBasis,
    "mean-field": MeanField,
    "full": Full,
    "full-u": lambda *sizes, **options: Full(*sizes, whitened=False, **options),
    "parsimonious": lambda *sizes, variance=0.25: Parsimonious(*sizes, noise=variance),
}


def _prior(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """K_Z and its L^-1."""
    root = torch.from_numpy(np.random.default_rng(seed).normal(size=(M, M + 2)))
    covariance = root @ root.T / M
    return covariance, inverse_cholesky(covariance, relative_jitter=0.0)


def _random(name: str, seed: int = 0, scale: float = 0.5) -> Posterior:
    posterior = POSTERIORS[name](P, M).double()
    randomise(posterior, seed=seed, scale=scale)
    return posterior


def _explicit(posterior: Posterior, k_z: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    means, covariances = whitened_moments(posterior, None if k_z is None else k_z.numpy())
    return torch.from_numpy(means), torch.from_numpy(covariances)


def _marginals(
    posterior: Posterior, a: torch.Tensor, inverse_factor: torch.Tensor, functions: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    return posterior.condition(inverse_factor, functions)[0].marginals(a)


def _kl(posterior: Posterior, inverse_factor: torch.Tensor, functions: torch.Tensor | None = None) -> torch.Tensor:
    return posterior.condition(inverse_factor, functions)[1]()


@pytest.mark.parametrize("name", POSTERIORS)
def test_the_kl_is_that_of_explicit_gaussians(name: str):
    posterior, (k_z, inverse_factor) = _random(name), _prior()
    means, covariances = _explicit(posterior, k_z)
    prior_covariance = k_z if name == "full-u" else torch.eye(M, dtype=torch.float64)
    q = MultivariateNormal(means, covariances)
    p = MultivariateNormal(torch.zeros(M, dtype=torch.float64), prior_covariance)
    torch.testing.assert_close(_kl(posterior, inverse_factor), kl_divergence(q, p).sum(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", POSTERIORS)
def test_the_marginals_are_those_of_explicit_covariances(name: str):
    posterior, (k_z, inverse_factor) = _random(name), _prior()
    means, covariances = _explicit(posterior, k_z)
    a = torch.from_numpy(np.random.default_rng(1).normal(size=(B, M)))
    projection = a @ inverse_factor if name == "full-u" else a
    mean, variance = _marginals(posterior, a, inverse_factor)
    torch.testing.assert_close(mean, projection @ means.T, rtol=1e-12, atol=1e-12)
    expected = torch.einsum("bi,pij,bj->bp", projection, covariances, projection)
    torch.testing.assert_close(variance, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("own", [False, True], ids=["one K_Z", "own K_Z"])
@pytest.mark.parametrize("name", POSTERIORS)
def test_the_noise_has_explicit_covariances_within_a_sequence(name: str, own: bool):
    posterior = _random(name, scale=1.0)
    priors = [_prior(seed) for seed in range(P if own else 1)]
    k_z, inverse_factor = (torch.stack(parts) if own else parts[0] for parts in zip(*priors, strict=True))
    shape = (P, B, M) if own else (B, M)
    a = torch.from_numpy(np.random.default_rng(1).normal(size=shape))
    lengths = [3, 1, 1]
    conditioned, _ = posterior.condition(inverse_factor)
    noise = conditioned.noise(a, torch.tensor(lengths), 20_000, torch.Generator().manual_seed(0))
    each = []
    for p in range(P):
        at = p if own else slice(None)
        covariance = _explicit(posterior, k_z[at])[1][p]
        projection = a[at] @ inverse_factor[at] if name == "full-u" else a[at]
        each.append((projection @ covariance @ projection.T).numpy())
    assert_gaussian_moments(noise, np.zeros((B, P)), np.array(each), lengths)


@pytest.mark.parametrize("start", ["shared-basis", "mean-field", "full", "parsimonious"])
def test_a_full_posterior_in_u_with_mapped_parameters_equals_the_whitened_one(start: str):
    whitened, (k_z, inverse_factor) = _random(start), _prior()
    means, covariances = _explicit(whitened, k_z)
    root = torch.linalg.cholesky(k_z)
    in_u = Full(P, M, whitened=False).double()
    with torch.no_grad():
        in_u.q_mean.copy_(means @ root.T)
        factors = root @ torch.linalg.cholesky(covariances)
        in_u.raw_factors.copy_(factors.tril(-1) + torch.diag_embed(factors.diagonal(dim1=-2, dim2=-1).log()))
    a = torch.from_numpy(np.random.default_rng(2).normal(size=(B, M)))
    results = ((*_marginals(q, a, inverse_factor), _kl(q, inverse_factor)) for q in (in_u, whitened))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@given(st.sampled_from(sorted(POSTERIORS)), st.integers(0, 2**31), st.floats(0, 2))
def test_the_kl_is_never_negative(name: str, seed: int, scale: float):
    _, inverse_factor = _prior(seed % 7)
    posterior = _random(name, seed, scale)
    assert float(_kl(posterior, inverse_factor).detach()) >= -1e-9


@pytest.mark.parametrize("name", ["shared-basis", "mean-field", "full"])
def test_the_whitened_prior_itself_has_zero_kl(name: str):
    posterior = POSTERIORS[name](P, M, variance=1.0).double()
    assert float(_kl(posterior, _prior()[1]).detach()) == pytest.approx(0.0, abs=1e-12)


def test_the_prior_in_u_has_zero_kl():
    k_z, inverse_factor = _prior()
    root = torch.linalg.cholesky(k_z)
    posterior = Full(P, M, whitened=False).double()
    with torch.no_grad():
        posterior.raw_factors.copy_(root.tril(-1) + root.diagonal().log().diag())
    assert float(_kl(posterior, inverse_factor).detach()) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("name", sorted(POSTERIORS.keys() - {"parsimonious"}))
def test_the_start_is_the_variance_asked_for(name: str):
    means, covariances = _explicit(POSTERIORS[name](P, M, variance=0.36))
    np.testing.assert_array_equal(means, 0.0)
    np.testing.assert_allclose(covariances, np.broadcast_to(0.36 * np.eye(M), (P, M, M)), rtol=1e-6)


@pytest.mark.parametrize("name", POSTERIORS)
def test_gradients_of_marginals_and_kl_pass_gradcheck(name: str):
    posterior, (_, inverse_factor) = _random(name), _prior()
    a = torch.from_numpy(np.random.default_rng(3).normal(size=(2, M))).requires_grad_()
    inverse_factor.requires_grad_()
    parameters = list(posterior.parameters())

    def outputs(a: torch.Tensor, inverse_factor: torch.Tensor, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # gradcheck perturbs the parameters in place, and the posterior reads them from there.
        return (
            *_marginals(posterior, a, inverse_factor.tril()),
            _kl(posterior, inverse_factor.tril()),
        )

    assert torch.autograd.gradcheck(outputs, (a, inverse_factor, *parameters))


@pytest.mark.parametrize("name", POSTERIORS)
def test_one_factor_for_each_function_equals_the_functions_one_by_one(name: str):
    posterior = _random(name)
    factors = torch.stack([_prior(seed)[1] for seed in range(P)])
    a = torch.from_numpy(np.random.default_rng(4).normal(size=(P, B, M)))
    mean, variance = _marginals(posterior, a, factors)
    kl = _kl(posterior, factors)
    totals = []
    for p in range(P):
        single_mean, single_variance = _marginals(posterior, a[p], factors[p])
        torch.testing.assert_close(mean[:, p], single_mean[:, p])
        torch.testing.assert_close(variance[:, p], single_variance[:, p])
        totals.append(_kl_of_one(posterior, p, factors[p]))
    torch.testing.assert_close(kl, torch.stack(totals).sum())


def _kl_of_one(posterior: Posterior, p: int, inverse_factor: torch.Tensor) -> torch.Tensor:
    state = {
        name: value[p : p + 1] if value.shape[0] == P and name != "raw_basis" else value
        for name, value in posterior.state_dict().items()
    }
    single = copy.deepcopy(posterior)
    for name, value in state.items():
        setattr(single, name, torch.nn.Parameter(value))
    return _kl(single, inverse_factor)


def _quadratic(posterior: Posterior, a: torch.Tensor, y: torch.Tensor, inverse_factor: torch.Tensor) -> torch.Tensor:
    """A bound whose data term is that of Gaussian noise of precision 3."""
    mean, variance = _marginals(posterior, a, inverse_factor)
    return -1.5 * ((y - mean).square() + variance).sum() - _kl(posterior, inverse_factor)


def _natural_problem(name: str) -> tuple[Posterior, torch.Tensor, torch.Tensor, torch.Tensor]:
    posterior, (_, inverse_factor) = _random(name), _prior()
    if isinstance(posterior, Full):
        # What lies above the diagonal has no effect, and no information.
        posterior.raw_factors.data.tril_()
    rng = np.random.default_rng(5)
    return (
        posterior,
        torch.from_numpy(rng.normal(size=(B, M))),
        torch.from_numpy(rng.normal(size=(B, P))),
        inverse_factor,
    )


def test_one_natural_step_of_the_full_posterior_reaches_the_exact_posterior_of_a_quadratic_model():
    posterior, a, y, inverse_factor = _natural_problem("full")
    (-_quadratic(posterior, a, y, inverse_factor) / 7).backward()
    posterior.natural_step(1.0, scale=7)
    means, covariances = _explicit(posterior)
    precision = torch.eye(M, dtype=torch.float64) + 3 * a.T @ a
    exact = torch.linalg.inv(precision)
    torch.testing.assert_close(covariances, exact.expand(P, M, M))
    torch.testing.assert_close(means, (exact @ (3 * a.T @ y)).T)


@pytest.mark.parametrize("name", ["shared-basis", "mean-field", "full"])
def test_a_short_natural_step_is_the_gradient_divided_by_the_fisher_information(name: str):
    posterior, a, y, inverse_factor = _natural_problem(name)
    moved = posterior.natural_parameters()
    before = [parameter.detach().clone() for parameter in moved]

    def divergence(*changed: torch.Tensor) -> torch.Tensor:
        """KL[q || q'] of the q here and one with changed parameters: its Hessian is the Fisher information."""
        names = {id(p): n for n, p in posterior.named_parameters()}
        other = copy.deepcopy(posterior)
        for parameter, value in zip(moved, changed, strict=True):
            other._parameters.pop(names[id(parameter)])
            setattr(other, names[id(parameter)], value)
        distributions = []
        for q in (posterior, other):
            basis = lower_triangular(q.raw_basis) if name == "shared-basis" else torch.eye(M, dtype=torch.float64)
            if name == "full":
                root = lower_triangular(q.raw_factors)
            else:
                root = basis * (0.5 * q.log_scales).exp().unsqueeze(1)
            distributions.append(MultivariateNormal(q.q_mean, root @ root.mT))
        return kl_divergence(distributions[0], distributions[1]).sum()

    blocks = torch.autograd.functional.hessian(divergence, tuple(before))
    sizes = [value.numel() for value in before]
    fisher = torch.cat(
        [
            torch.cat([h.reshape(n, m) for h, m in zip(row, sizes, strict=True)], 1)
            for row, n in zip(blocks, sizes, strict=True)
        ]
    )
    bound = _quadratic(posterior, a, y, inverse_factor)
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(bound, moved, retain_graph=True)])
    expected = torch.linalg.pinv(fisher) @ gradient
    (-bound).backward()
    step = 1e-6
    posterior.natural_step(step, scale=1.0)
    got = torch.cat([(p.detach() - b).flatten() for p, b in zip(moved, before, strict=True)]) / step
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["full-u", "parsimonious"])
def test_families_without_a_natural_gradient_say_so(name: str):
    posterior = _random(name)
    assert posterior.natural_parameters() == []
    with pytest.raises(TypeError, match="no natural gradient"):
        posterior.natural_step(0.1, scale=1.0)


def test_a_natural_step_away_from_a_convex_data_term_keeps_the_covariance_positive():
    posterior = Full(2, 3)
    # A gradient by the factors that asks for less than no precision.
    posterior.q_mean.grad = torch.zeros(2, 3)
    posterior.raw_factors.grad = -torch.eye(3).repeat(2, 1, 1)
    before = whitened_moments(posterior)[1]
    posterior.natural_step(0.9, 100.0)
    after = whitened_moments(posterior)[1]
    assert np.isfinite(after).all()
    # Precision falls to a tenth at most.
    np.testing.assert_allclose(np.linalg.eigvalsh(after), 10 * np.linalg.eigvalsh(before), rtol=1e-4)
