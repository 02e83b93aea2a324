"""What every family of q(u) has to keep to."""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from extremegp.engine.posteriors import ConditionedPosterior, Posterior
from extremegp.testing import common
from extremegp.testing.common import same

_LENGTHS = (3, 1, 2)
_DRAWS = 20_000


def check_posterior(posterior: Posterior) -> None:
    """Check that marginals, draws and KL divergence are those of one Gaussian, and that natural steps go up.

    Args:
        posterior: of P functions and M inducing inputs, as its means tell; it is not changed.

    Raises:
        AssertionError: says what does not hold.
    """
    name, q = common.name_of(posterior), common.moved(posterior)
    n_functions, n_inducing = q.q_mean.shape
    for factor in (_factor(n_inducing), torch.stack([_factor(n_inducing, p) for p in range(n_functions)])):
        own = factor.ndim == 3
        a = common.normal(*factor.shape[:-2], sum(_LENGTHS), n_inducing, seed=1)
        with torch.no_grad():
            conditioned, kl = q.condition(factor)
            mean, covariance = _moments(conditioned, n_inducing, n_functions if own else None)
            _check_marginals(name, conditioned, a, mean, covariance)
            prior = MultivariateNormal(torch.zeros_like(mean), torch.eye(n_inducing, dtype=torch.float64))
            expected = kl_divergence(MultivariateNormal(mean, covariance), prior).sum()
            same(kl(), expected, f"{name}: kl is not that of the Gaussian that the marginals are of")
            _check_functions(name, q, factor, a)
            _check_draws(name, conditioned, a, covariance)
        factor = factor.requires_grad_()

        def value(factor: Tensor = factor, a: Tensor = a) -> Tensor:
            conditioned, kl = q.condition(factor)
            mean, variance = conditioned.marginals(a)
            return mean.square().sum() + variance.log().sum() + kl()

        common.check_gradients(dict(q.named_parameters()), value, name)
    _check_precision(name, q)
    _check_natural_steps(name, posterior)
    common.check_hooks(q)
    factor = _factor(n_inducing)
    common.check_saving(q, lambda q: [*q.condition(factor)[0].marginals(common.normal(4, n_inducing))])


def _factor(n_inducing: int, seed: int = 0) -> Float[Tensor, "M M"]:
    """L^-1 of a K_Z."""
    root = common.normal(n_inducing, n_inducing, seed=10 + seed)
    gram = root @ root.T + torch.eye(n_inducing, dtype=torch.float64)
    inverse: Tensor = torch.linalg.inv(torch.linalg.cholesky(gram))
    return inverse


def _moments(
    conditioned: ConditionedPosterior, n_inducing: int, n_functions: int | None
) -> tuple[Float[Tensor, "P M"], Float[Tensor, "P M M"]]:
    """Of v, from the variances of its entries and of their sums."""
    unit = torch.eye(n_inducing, dtype=torch.float64)
    sums = (unit[:, None] + unit).reshape(-1, n_inducing)
    both = torch.cat([unit, sums])
    mean, variance = conditioned.marginals(both if n_functions is None else both.expand(n_functions, -1, -1))
    own, of_sums = variance[:n_inducing].T, variance[n_inducing:].T.reshape(-1, n_inducing, n_inducing)
    return mean[:n_inducing].T, (of_sums - own.unsqueeze(-1) - own.unsqueeze(-2)) / 2


def _check_marginals(
    name: str, conditioned: ConditionedPosterior, a: Tensor, mean: Float[Tensor, "P M"], covariance: Tensor
) -> None:
    a = a if a.ndim == 3 else a.expand(len(mean), -1, -1)
    expected = (a @ mean.unsqueeze(-1)).squeeze(-1).T, ((a @ covariance) * a).sum(-1).T
    same(conditioned.marginals(a), expected, f"{name}: the marginals are not linear and quadratic in a")
    lowest = float(torch.linalg.eigvalsh(covariance).min())
    assert lowest > 0, f"{name}: a covariance is not positive definite: an eigenvalue is {lowest:.3g}"


def _check_functions(name: str, q: Posterior, factor: Tensor, a: Tensor) -> None:
    some = torch.tensor([0, len(q.q_mean) - 1])
    own, own_a = (part[some] if factor.ndim == 3 else part for part in (factor, a))
    whole = q.condition(factor)[0]
    expected = [part[:, some] for part in whole.marginals(a)]
    conditioned, kl = q.condition(own, some)
    same([*conditioned.marginals(own_a)], expected, f"{name}: some of the functions, condition(.., functions), differ")
    same([*whole.select(some).marginals(own_a)], expected, f"{name}: some of the functions, select(functions), differ")
    each = [torch.tensor([p]) for p in range(len(q.q_mean))]
    total = sum(q.condition(factor[p] if factor.ndim == 3 else factor, p)[1]() for p in each)
    same(q.condition(factor)[1](), total, f"{name}: kl is not the sum of those of its functions")
    assert float(kl()) >= 0, f"{name}: kl is negative"


def _check_draws(name: str, conditioned: ConditionedPosterior, a: Tensor, covariance: Float[Tensor, "P M M"]) -> None:
    noise = conditioned.noise(a, torch.tensor(_LENGTHS), _DRAWS, common.generator())
    own = a if a.ndim == 3 else a.expand(len(covariance), -1, -1)
    common.check_mean(noise, torch.zeros(()), f"{name}: noise has a mean of its own")
    expected = (own @ covariance @ own.mT).permute(1, 2, 0)
    sequence = torch.repeat_interleave(torch.arange(len(_LENGTHS)), torch.tensor(_LENGTHS))
    together = (sequence[:, None] == sequence).unsqueeze(-1)
    products = noise.unsqueeze(2) * noise.unsqueeze(1)
    common.check_mean(products, expected * together, f"{name}: noise has another covariance within a sequence")


def _check_precision(name: str, q: Posterior) -> None:
    """In single precision, which models are trained in by default."""
    n_inducing = q.q_mean.shape[1]
    factor, a, single = _factor(n_inducing), common.normal(5, n_inducing), copy.deepcopy(q).float()
    with torch.no_grad():
        conditioned, kl = single.condition(factor if q.needs_float64 else factor.float())
        got, (expected, of_double) = [*conditioned.marginals(a.float()), kl()], q.condition(factor)
        for part in got:
            assert part.dtype == torch.float32, f"{name}: in single precision there are numbers in {part.dtype}"
        numbers = [*expected.marginals(a), of_double()]
    same(got, numbers, f"{name}: float32 and float64 differ", rtol=1e-3, atol=1e-3, check_dtype=False)


def _check_natural_steps(name: str, posterior: Posterior) -> None:
    """Of a data term that is quadratic in the functions, as that of Gaussian observations."""
    q = copy.deepcopy(posterior).double()
    n_functions, n_inducing = q.q_mean.shape
    if not q.natural_parameters():
        try:
            q.natural_step(0.1, 1.0)
        except TypeError:
            return
        raise AssertionError(f"{name}: natural_step() does nothing, as there are no natural_parameters()")
    factor, a, target = _factor(n_inducing), common.normal(9, n_inducing), common.normal(9, n_functions, seed=1)

    def bound() -> Tensor:
        conditioned, kl = q.condition(factor)
        mean, variance = conditioned.marginals(a)
        return -0.5 * ((mean - target).square() + variance).sum() - kl()

    natural = {id(each) for each in q.natural_parameters()}
    scale, value = 4.0, bound()
    for _ in range(5):
        q.zero_grad()
        (-value / scale).backward()  # type: ignore[no-untyped-call]
        others = [(part, part.detach().clone()) for part in q.parameters() if id(part) not in natural]
        q.natural_step(0.2, scale)
        before, value = float(value.detach()), bound()
        now = float(value.detach())
        assert now > before, f"{name}: a natural step takes the bound from {before:.6g} to {now:.6g}"
        moved = [part for part, kept in others if not torch.equal(part, kept)]
        assert not moved, f"{name}: a natural step moves a parameter that is not among natural_parameters()"
