"""What every kind of latent functions has to keep to."""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float
from torch import Tensor

from extremegp.engine.latents import Latents, Marginals
from extremegp.engine.part import parts_of, start_parts
from extremegp.testing import common
from extremegp.testing.common import same

_LENGTHS = (2, 1, 3)
_DRAWS, _SEEDS = 3000, 400


def check_latents(latents: Latents, *, n_features: int) -> None:
    """Check that latent functions start, that their marginals and draws agree, and that some are those of all.

    Args:
        latents: P functions; they are not changed.
        n_features: D of the inputs that they take.

    Raises:
        AssertionError: says what does not hold.
    """
    name, started = common.name_of(latents), copy.deepcopy(latents)
    data = common.training_data(n_features, max(2, latents.n_functions))
    start_parts(started, data)
    for parameter in started.parameters():
        common.finite(parameter, f"{name}: a parameter at the start")
    h = common.moved(started)
    x = common.inputs(sum(_LENGTHS), n_features)
    with torch.no_grad():
        _check_marginals(name, h, x)
        _check_functions(name, h, x)
        _check_draws(name, h, x)
    weights = common.normal(2, len(x), h.n_functions)
    of_rows = x if common.needs_dense(h) else common.sparse(x)

    def value() -> Tensor:
        conditioned = h.condition(1)
        mean, variance = conditioned.marginals(of_rows)
        return (weights[0] * mean + weights[1] * variance).sum() + conditioned.kl()

    common.check_gradients(dict(h.named_parameters()), value, name)
    for part in parts_of(h):
        common.check_hooks(part)
    common.check_saving(h, lambda latents: [*latents.condition(1).marginals(x)])


def _check_marginals(name: str, h: Latents, x: Float[Tensor, "B D"]) -> None:
    conditioned = h.condition(1)
    whole = conditioned.marginals(x)
    for part, what in zip(whole, ("mean", "variance"), strict=True):
        assert part.shape == (len(x), h.n_functions), f"{name}: the {what} is {tuple(part.shape)}, not B x P"
        common.finite(part, f"{name}: the {what}")
    assert bool((whole.variance >= 0).all()), f"{name}: a variance is negative"
    same(h.condition(1).marginals(x), whole, f"{name}: the same seed gives other marginals")
    same(conditioned.marginals(x[2:5]), whole.rows(slice(2, 5)), f"{name}: rows alone and among others differ")
    if not common.needs_dense(h):
        same(conditioned.marginals(common.sparse(x)), whole, f"{name}: sparse and dense inputs differ")
    kl = conditioned.kl()
    assert kl.shape == (), f"{name}: kl is {tuple(kl.shape)}, not one number"
    assert float(kl) >= 0, f"{name}: kl is negative"


def _check_functions(name: str, h: Latents, x: Float[Tensor, "B D"]) -> None:
    some = torch.arange(0, h.n_functions, 2)
    whole = h.condition(1)
    expected = [part[:, some] for part in whole.marginals(x)]
    for conditioned, how in ((h.condition(1, some), "condition(seed, functions)"), (whole.select(some), "select")):
        same([*conditioned.marginals(x)], expected, f"{name}: some of the functions, {how}, are not those of all")
        drawn = conditioned.draws(x, torch.tensor(_LENGTHS), 2, common.generator())
        assert drawn.shape == (2, len(x), len(some)), (
            f"{name}: draws of some functions, {how}, are {tuple(drawn.shape)}"
        )
    same(whole.select(some).kl(), whole.kl(), f"{name}: select has to keep the divergence of all that were conditioned")


def _check_draws(name: str, h: Latents, x: Float[Tensor, "B D"]) -> None:
    conditioned, lengths = h.condition(), torch.tensor(_LENGTHS)
    drawn = conditioned.draws(x, lengths, _DRAWS, common.generator())
    # Where hidden layers are drawn, marginals are given them, and draws are not.
    at_seeds = [h.condition(seed).marginals(x) for seed in range(_SEEDS)]
    mean, second = (
        torch.stack(parts) for parts in zip(*((m.mean, m.variance + m.mean.square()) for m in at_seeds), strict=True)
    )
    for draws, given, what in ((drawn, mean, "means"), (drawn.square(), second, "second moments")):
        error = given.std(dim=0) / _SEEDS**0.5
        common.check_mean(draws, given.mean(0), f"{name}: draws have other {what} than marginals", standard_error=error)
    if conditioned.alike:
        alone = conditioned.draws(x[:1], torch.tensor([1]), 3, common.generator())
        among = conditioned.draws(x[:3], torch.tensor([3]), 3, common.generator())[:, :1]
        same(alone, among, f"{name}: draws depend on what is drawn with them, though they are said to be alike")


def marginals_of(n_rows: int, n_latent: int, *, seed: int = 0, variance: float = 1.0) -> Marginals:
    """Some, in float64."""
    spread = 0.1 + torch.rand(n_rows, n_latent, generator=common.generator(seed), dtype=torch.float64)
    return Marginals(common.normal(n_rows, n_latent, seed=seed), variance * spread)
