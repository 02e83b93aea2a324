"""What every mixing has to keep to."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from extremegp.engine.latents import Marginals
from extremegp.engine.mixing import Mixing
from extremegp.engine.utilities import Utilities
from extremegp.testing import common
from extremegp.testing.common import same
from extremegp.testing.latents import marginals_of


def check_mixing(mixing: Mixing, *, n_latent: int) -> None:
    """Check that all that a mixing says of utilities follows from the affine map that `at` is.

    Args:
        mixing: from P latent functions to K utilities; it is not changed.
        n_latent: P.

    Raises:
        AssertionError: says what does not hold.
    """
    name, started = common.name_of(mixing), copy.deepcopy(mixing)
    started.start_loadings(common.training_data(5, mixing.n_utilities))
    for parameter in started.parameters():
        common.finite(parameter, f"{name}: a parameter at the start")
    m = common.moved(started)
    n_rows, k = 6, m.n_utilities
    latents = marginals_of(n_rows, n_latent)
    with torch.no_grad():
        bias = m.at(torch.zeros(1, n_latent, dtype=torch.float64))
        same(bias, m.bias.expand(1, -1), f"{name}: utilities of functions that are zero are not the bias")
        loadings = (m.at(torch.eye(n_latent, dtype=torch.float64)) - bias).T
        mean = latents.mean @ loadings.T + bias
        covariance = (latents.variance.unsqueeze(1) * loadings) @ loadings.T
        _check_marginals(m, latents, mean, covariance)
        _check_differences(m, latents, mean, covariance)
        noise = common.normal(3, n_rows, n_latent, seed=5)
        drawn = m.at(latents.mean + latents.variance.sqrt() * noise)
        same(m.sample(latents, noise), drawn, f"{name}: sample is not at() of draws of the functions")
        _check_selection(m, latents)
    _check_sums(m, latents)
    common.check_gradients(dict(m.named_parameters()), lambda: _scalar(m, latents), name)
    common.check_hooks(m)
    common.check_saving(m, lambda mixing: [*mixing.marginals(latents)])
    assert bias.shape == (1, k)


def _scalar(m: Mixing, latents: Marginals) -> Tensor:
    mean, variance = m.marginals(latents)
    return mean.square().sum() + variance.square().sum() + m.kl()


def _check_marginals(m: Mixing, latents: Marginals, mean: Tensor, covariance: Tensor) -> None:
    name, variance = common.name_of(m), covariance.diagonal(dim1=-2, dim2=-1)
    same([*m.marginals(latents)], [mean, variance], f"{name}: the marginals are not those of at()")
    same(m.means(latents), mean, f"{name}: means differ from the marginals'")
    some = slice(1, 3)
    same([*m.marginals(latents, some)], [mean[:, some], variance[:, some]], f"{name}: a range of labels differs")
    labels = torch.arange(len(mean)).unsqueeze(1).add(torch.tensor([0, 2])) % m.n_utilities
    expected = [mean.gather(1, labels), variance.gather(1, labels)]
    same([*m.of_labels(latents, labels)], expected, f"{name}: of_labels differs from the marginals")


def _check_differences(m: Mixing, latents: Marginals, mean: Tensor, covariance: Tensor) -> None:
    name, classes = common.name_of(m), torch.arange(len(mean)) % m.n_utilities
    off = covariance - torch.diag_embed(covariance.diagonal(dim1=-2, dim2=-1))
    independent = float(off.abs().max()) == 0
    assert m.independent <= independent, f"{name} is said to be independent, but utilities of a row are correlated"
    own, variance = classes.unsqueeze(1), covariance.diagonal(dim1=-2, dim2=-1)
    with_own = covariance[torch.arange(len(mean)), classes]
    got = m.covariances(latents, classes)
    if got is None:
        assert independent, f"{name}: covariances are None, but utilities of a row are correlated"
    else:
        same(got, with_own, f"{name}: covariances are not those of at()")
    expected = [mean.gather(1, own) - mean, variance.gather(1, own) + variance - 2 * with_own]
    got_differences = [*Utilities(m, latents).differences(classes)]
    same(got_differences, expected, f"{name}: differences of utilities have other moments", atol=1e-8)


def _check_selection(m: Mixing, latents: Marginals) -> None:
    name, labels = common.name_of(m), torch.arange(0, m.n_utilities, 2)
    whole, before = m.marginals(latents), m.bias.clone()
    selected, functions = m.select(labels), m.functions(labels)
    own = latents if functions is None else Marginals(latents.mean[:, functions], latents.variance[:, functions])
    expected = [part[:, labels] for part in whole]
    same([*selected.marginals(own)], expected, f"{name}: select(labels) are not those labels of all")
    selected.bias.add_(1.0)
    same(m.bias, before, f"{name}: select(labels) has to have parameters of its own")


def _check_sums(m: Mixing, latents: Marginals) -> None:
    """Of sums over labels, E exp(f) stands for the expectation of a function."""
    name, shape = common.name_of(m), (len(latents.mean), m.n_utilities)
    offset = common.normal(*shape, seed=6).requires_grad_()
    weights = common.normal(m.n_utilities, seed=7).square()
    parts = Marginals(*(part.clone().requires_grad_() for part in latents))
    utilities = Utilities(m, parts, offset)
    y = common.sparse((common.normal(*shape, seed=8) > 0).double() * 2.0)

    def moments(mean: Tensor, variance: Tensor, labels: slice) -> tuple[Tensor, Tensor, Tensor]:
        value = mean.add_(variance, alpha=0.5).exp_()  # It may overwrite the means.
        return value, value.clone(), 0.5 * value

    mean, variance = utilities.marginals()
    dense = torch.zeros(shape, dtype=torch.float64).index_put((y.rows, y.columns), y.values)
    cases = (
        ("weighted_mean_sum", utilities.weighted_mean_sum(y), (dense * mean).sum()),
        (
            "expectation_sum",
            utilities.expectation_sum(moments, weights),
            (weights * (mean + 0.5 * variance).exp()).sum(),
        ),
    )
    learnt = [*parts, offset, *(parameter for parameter in m.parameters() if parameter.requires_grad)]
    for what, got, expected in cases:
        same(got, expected, f"{name}: {what} is not the sum over the marginals")
        by_it, by_marginals = (
            torch.autograd.grad(total, learnt, retain_graph=True, allow_unused=True, materialize_grads=True)
            for total in (got, expected)
        )
        same(by_it, by_marginals, f"{name}: {what} has other gradients than the sum over the marginals")
