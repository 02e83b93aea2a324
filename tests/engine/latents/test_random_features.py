from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from tests.models import as_array, random_inputs, randomise, sparse_rows
from tests.moments import assert_mean
from tests.reference import svgp
from tests.reference.random_features import Layer, last_features
from tests.watching import WideTensors
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from extremegp.engine.latents import DeepRandomFeatures
from extremegp.engine.latents.random_features import FEATURE_KERNELS, FREQUENCIES, RandomFeatures
from extremegp.engine.sparse import Inputs, SparseRows

D, P, R, N = 4, 3, 5, 6
X = random_inputs(N, D)

KERNELS = pytest.mark.parametrize("kernel", FEATURE_KERNELS)
STRATEGIES = pytest.mark.parametrize("frequencies", FREQUENCIES)
FEED_FORWARD = pytest.mark.parametrize("feed_forward", [False, True], ids=["chain", "feed-forward"])


def _layer(kernel: str = "se", frequencies: str = "prior-fixed", *, n_random: int = R, ard: bool = True) -> Any:
    return RandomFeatures(
        D,
        n_random,
        kernel=kernel,  # type: ignore[arg-type]
        frequencies=frequencies,  # type: ignore[arg-type]
        ard=ard,
    ).double()


def _network(n_layers: int = 1, **changes: Any) -> DeepRandomFeatures:
    """Started at X, and every parameter moved."""
    settings: dict[str, Any] = {"n_hidden": 2, "n_random": R, **changes}
    network = DeepRandomFeatures(D, P, n_layers=n_layers, **settings).double()
    network.start_at(torch.from_numpy(X), torch.Generator().manual_seed(0))
    randomise(network)
    return network


def _marginals(network: DeepRandomFeatures, x: Inputs, seed: int = 0) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        mean, variance = network.condition(seed).marginals(x)
    return mean, variance


# One layer


def _covariance(layer: RandomFeatures, kernel: str) -> svgp.Covariance:
    """s2 k, by a loop."""
    weights = np.broadcast_to(np.exp(as_array(layer.log_weights)), D)
    variance = float((2 * layer.log_amplitude.detach()).exp())
    if kernel == "se":
        return svgp.squared_exponential(weights, variance)
    arc_cosine = svgp.arc_cosine(weights, 1)
    return lambda x, z: variance * arc_cosine(x, z)


@pytest.mark.parametrize("ard", [False, True], ids=["one weight", "ard"])
@STRATEGIES
@KERNELS
def test_features_converge_to_the_kernel_without_bias_at_the_monte_carlo_rate(kernel: str, frequencies: str, ard: bool):
    sizes, repeats = [64, 256, 1024, 4096], 60
    generator, x, errors = torch.Generator().manual_seed(0), torch.from_numpy(X), []
    for n_random in sizes:
        layer = _layer(kernel, frequencies, n_random=n_random, ard=ard)
        with torch.no_grad():
            layer.log_weights.add_(torch.linspace(-0.7, 1.0, len(layer.log_weights)))
            layer.log_amplitude.fill_(0.3)
        exact = svgp.gram(_covariance(layer, kernel), X, X)
        estimates = []
        for _ in range(repeats):
            if layer.fixed:
                layer.draw_once(generator)
            with torch.no_grad():
                phi = layer.features(x @ layer.omega(generator)).numpy()
            estimates.append(phi @ phi.T)
        assert_mean(np.array(estimates), exact)
        errors.append(np.sqrt(np.mean((np.array(estimates) - exact) ** 2)))
    slope, _ = np.polyfit(np.log(sizes), np.log(errors), 1)
    assert slope == pytest.approx(-0.5, abs=0.06)


@STRATEGIES
def test_the_kl_of_frequencies_is_that_of_explicit_gaussians(frequencies: str):
    layer = _layer("se", frequencies)
    if frequencies == "prior-fixed":
        assert float(layer.kl_of_frequencies()) == 0.0
        return
    assert float(layer.kl_of_frequencies().detach()) == 0.0  # It starts as the prior.
    randomise(layer)
    deviations = (0.5 * layer.log_weights.detach()).exp().unsqueeze(-1)
    q = Normal(layer.q_mean.detach() * deviations, (0.5 * layer.log_ratio.detach()).exp() * deviations)
    torch.testing.assert_close(layer.kl_of_frequencies().detach(), kl_divergence(q, Normal(0.0, deviations)).sum())


@pytest.mark.parametrize("frequencies", ["var-fixed", "var-resampled"])
def test_frequencies_have_the_moments_of_their_posterior(frequencies: str):
    layer, generator = _layer("se", frequencies), torch.Generator().manual_seed(0)
    randomise(layer)
    drawn = []
    for _ in range(10_000):
        if layer.fixed:
            layer.draw_once(generator)
        drawn.append(as_array(layer.omega(generator)).flatten())
    deviations = np.exp(0.5 * as_array(layer.log_weights))[:, None]
    mean = (as_array(layer.q_mean) * deviations).flatten()
    variance = (np.exp(as_array(layer.log_ratio)) * deviations**2).flatten()
    assert_mean(np.array(drawn), mean)
    assert_mean((np.array(drawn) - mean) ** 2, variance)


@STRATEGIES
def test_frequencies_move_with_the_weights_and_only_resampled_ones_with_the_generator(frequencies: str):
    layer = _layer("se", frequencies)
    if layer.fixed:
        layer.draw_once(torch.Generator().manual_seed(0))
    randomise(layer)

    def omega(seed: int = 0) -> Tensor:
        return layer.omega(torch.Generator().manual_seed(seed))

    before = omega().detach()
    assert torch.equal(before, omega(1)) == layer.fixed
    assert torch.equal(before, omega(0))
    by = torch.linspace(-1, 1, D, dtype=torch.float64)
    with torch.no_grad():
        layer.log_weights.add_(by)
    torch.testing.assert_close(omega().detach(), before * (0.5 * by).exp().unsqueeze(-1))
    (gradient,) = torch.autograd.grad(omega().square().sum(), layer.log_weights)
    torch.testing.assert_close(gradient, omega().detach().square().sum(1))


# Networks


def _at_draws(network: DeepRandomFeatures, kernel: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance by the naive forward pass, at the draws that the seed decides, in the order of the layers."""
    generator = torch.Generator().manual_seed(seed)

    def normal(shape: torch.Size) -> np.ndarray:
        return as_array(torch.empty(shape, dtype=torch.float64).normal_(generator=generator))

    layers, hidden = [], []
    for index, layer in enumerate(network.layers):
        if index > 0:
            weights = network.hidden[index - 1]
            noise = normal(weights.q_mean.shape)
            hidden.append(as_array(weights.q_mean) + np.sqrt(np.exp(as_array(weights.log_variance))) * noise)
        omega = as_array(layer.drawn()) if layer.fixed else normal(layer.q_mean.shape)
        if layer.q_mean is not None:
            omega = as_array(layer.q_mean) + np.sqrt(np.exp(as_array(layer.log_ratio))) * omega
        omega = np.sqrt(np.exp(as_array(layer.log_weights)))[:, None] * omega
        layers.append(Layer(omega, float(layer.log_amplitude.detach().exp())))
    reducer = None if network.reducer is None else as_array(network.reducer)
    phi = last_features(X, layers, hidden, kernel, feed_forward=network.feed_forward, reducer=reducer)
    return phi @ as_array(network.output.q_mean), phi**2 @ np.exp(as_array(network.output.log_variance))


@pytest.mark.parametrize("n_reduced", [None, 2], ids=["all inputs", "reduced"])
@pytest.mark.parametrize("n_layers", [1, 2, 3])
@FEED_FORWARD
@STRATEGIES
@KERNELS
def test_marginals_are_those_of_the_naive_forward_pass(
    kernel: str, frequencies: str, feed_forward: bool, n_layers: int, n_reduced: int | None
):
    network = _network(n_layers, kernel=kernel, frequencies=frequencies, feed_forward=feed_forward, n_reduced=n_reduced)
    for seed in (0, 7):
        mean, variance = _at_draws(network, kernel, seed)
        for x in (torch.from_numpy(X), sparse_rows(X)):
            got_mean, got_variance = _marginals(network, x, seed)
            np.testing.assert_allclose(got_mean, mean, rtol=1e-11, atol=1e-11)
            np.testing.assert_allclose(got_variance, variance, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("n_layers", [1, 3])
@STRATEGIES
def test_the_kl_is_that_of_explicit_gaussians_for_weights_and_frequencies(frequencies: str, n_layers: int):
    network = _network(n_layers, frequencies=frequencies, n_reduced=2)
    expected = torch.zeros((), dtype=torch.float64)
    for weights in (*network.hidden, network.output):
        q = Normal(weights.q_mean.detach(), weights.log_variance.detach().exp().sqrt())
        expected = expected + kl_divergence(q, Normal(0.0, torch.ones((), dtype=torch.float64))).sum()
    for layer in network.layers:
        expected = expected + layer.kl_of_frequencies().detach()
    torch.testing.assert_close(network.condition().kl().detach(), expected)


@pytest.mark.parametrize("n_layers", [1, 2])
@STRATEGIES
def test_a_seed_decides_the_marginals_unless_nothing_is_drawn(frequencies: str, n_layers: int):
    network, x = _network(n_layers, frequencies=frequencies), torch.from_numpy(X)
    one = _marginals(network, x, 3)
    assert all(torch.equal(a, b) for a, b in zip(one, _marginals(network, x, 3), strict=True))
    nothing_drawn = n_layers == 1 and frequencies != "var-resampled"
    assert torch.equal(one[0], _marginals(network, x, 4)[0]) == nothing_drawn


def test_an_input_has_the_same_marginals_whatever_others_there_are():
    network = _network(2, frequencies="var-resampled")
    whole, part = _marginals(network, torch.from_numpy(X)), _marginals(network, torch.from_numpy(X[2:4]))
    for one, other in zip(whole, part, strict=True):
        torch.testing.assert_close(one[2:4], other, rtol=1e-12, atol=1e-12)


@FEED_FORWARD
@STRATEGIES
def test_gradients_are_those_of_finite_differences(frequencies: str, feed_forward: bool):
    network = _network(2, frequencies=frequencies, feed_forward=feed_forward, n_reduced=2, kernel="se", n_random=3)
    x = torch.from_numpy(X)

    def value(*_: Tensor) -> Tensor:
        conditioned = network.condition(5)
        draws = conditioned.draws(x, torch.tensor([2, 4]), 2, torch.Generator().manual_seed(1))
        return draws.square().sum() + draws.sum() + conditioned.kl()

    assert torch.autograd.gradcheck(value, tuple(network.parameters()))


# The start


@pytest.mark.parametrize("scale", [0.1, 30.0])
@pytest.mark.parametrize("n_reduced", [None, 40], ids=["all inputs", "reduced"])
@pytest.mark.parametrize("ard", [False, True], ids=["one weight", "ard"])
@FEED_FORWARD
@KERNELS
def test_the_start_brings_functions_to_the_size_of_the_last_amplitude_whatever_the_inputs(
    kernel: str, feed_forward: bool, ard: bool, n_reduced: int | None, scale: float
):
    amplitude, generator = 0.7, torch.Generator().manual_seed(0)
    x = scale * torch.rand(50, 8, generator=generator, dtype=torch.float64)
    for n_layers in (1, 2, 3):
        network = DeepRandomFeatures(
            8,
            P,
            n_layers=n_layers,
            n_hidden=50,
            n_random=200,
            kernel=kernel,  # type: ignore[arg-type]
            ard=ard,
            n_reduced=n_reduced,
            feed_forward=feed_forward,
        ).double()
        means = []
        for _ in range(10):
            network.start_at(x, generator, amplitude=amplitude)
            with torch.no_grad():
                means.append(float(network.features(x, generator).square().sum(1).mean()) / amplitude**2)
        # Each arc-cosine layer with lengthscales for both adds the size of the inputs to that of what it is given.
        sizes = n_layers if kernel == "arccos1" and feed_forward and ard else 1
        assert np.mean(means) == pytest.approx(sizes, rel=0.2), n_layers


@FEED_FORWARD
@pytest.mark.parametrize("ard", [False, True], ids=["one weight", "ard"])
def test_hidden_functions_start_away_from_zero_and_from_each_other(ard: bool, feed_forward: bool):
    network = DeepRandomFeatures(D, P, n_layers=3, n_hidden=1, n_random=50, ard=ard, feed_forward=feed_forward)
    network.start_at(torch.from_numpy(X).float(), torch.Generator().manual_seed(0))
    first, second = (weights.q_mean for weights in network.hidden)
    assert float(first.detach().std()) == pytest.approx(1.0, abs=0.4)
    assert float(second.detach().std()) == pytest.approx(1.0, abs=0.4)
    assert not torch.equal(first, second)


def test_equal_generators_give_equal_starts_from_sparse_and_dense_inputs():
    states = []
    for x in (torch.from_numpy(X), sparse_rows(X)):
        network = DeepRandomFeatures(D, P, n_layers=2, n_random=R, n_reduced=2).double()
        network.start_at(x, torch.Generator().manual_seed(0))
        states.append(network.state_dict())
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=1e-12, atol=1e-12)


def test_inputs_of_zeros_start_finite():
    network = DeepRandomFeatures(D, P, n_layers=2, n_random=R)
    network.start_at(torch.zeros(3, D), torch.Generator().manual_seed(0))
    assert all(torch.isfinite(tensor).all() for tensor in network.state_dict().values())


# Wide sparse inputs


def test_wide_sparse_inputs_never_become_dense_and_the_reducer_gets_the_rows_that_count():
    n_features = 1_000_000
    used = np.array([3, 17, 500_000, 999_999])
    indices = used[[3, 0, 1, 2, 0]]
    x = SparseRows.from_scipy(
        scipy.sparse.csr_matrix((np.ones(5), indices, np.array([0, 2, 4, 5])), shape=(3, n_features))
    )
    network = DeepRandomFeatures(n_features, P, n_layers=2, n_random=R, n_reduced=2)
    network.start_at(x, torch.Generator().manual_seed(0))
    with WideTensors(n_features, [*network.parameters(), *network.buffers()]) as watched:
        conditioned = network.condition()
        draws = conditioned.draws(x, torch.tensor([2, 1]), 2, torch.Generator().manual_seed(0))
        (draws.square().sum() + conditioned.kl()).backward()
    assert watched.made == []
    gradient = network.reducer.grad
    assert gradient.is_sparse
    gradient = gradient.coalesce()
    assert gradient.indices()[0].tolist() == used.tolist()
    narrow = DeepRandomFeatures(len(used), P, n_layers=2, n_random=R, n_reduced=2)
    state = {name: tensor[used] if name == "reducer" else tensor for name, tensor in network.state_dict().items()}
    narrow.load_state_dict(state)
    dense = torch.zeros(3, len(used))
    for row, column in ((0, 3), (0, 0), (1, 1), (1, 2), (2, 0)):
        dense[row, column] = 1.0
    expected = narrow.condition().draws(dense, torch.tensor([2, 1]), 2, torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws, expected)
    expected.square().sum().backward()
    torch.testing.assert_close(gradient.values(), narrow.reducer.grad)


@STRATEGIES
@pytest.mark.parametrize("ard", [False, True])
def test_few_sparse_inputs_are_projected_as_by_the_whole_of_omega_to_the_bit(frequencies: str, ard: bool):
    layer = _layer(frequencies=frequencies, ard=ard).float()
    if layer.fixed:
        layer.draw_once(torch.Generator().manual_seed(1))
    randomise(layer)
    inputs = np.zeros((2, D))
    inputs[0, 2], inputs[1, 0] = 0.7, -1.3
    x = sparse_rows(inputs.astype(np.float32))
    x = SparseRows(x.offsets, x.columns, x.values.float(), x.n_columns)
    omega = layer.omega(torch.Generator().manual_seed(3))
    whole = layer.projected(x, torch.Generator().manual_seed(3))
    with torch.no_grad():
        few = layer.projected(x, torch.Generator().manual_seed(3))
    assert torch.equal(whole.detach(), few)
    np.testing.assert_allclose(as_array(few), inputs @ as_array(omega), rtol=1e-5, atol=1e-6)
    if layer.fixed:
        # As many inputs as make it worth while to have rows made by themselves.
        wide = RandomFeatures(40, R, kernel="se", frequencies=frequencies, ard=ard)  # type: ignore[arg-type]
        wide.draw_once(torch.Generator().manual_seed(1))
        one = SparseRows(torch.tensor([0, 2]), torch.tensor([39, 3]), torch.tensor([1.5, -2.0]), 40)
        with torch.no_grad():
            alone = [wide.projected(one, torch.Generator()) for _ in range(4)]
        assert wide.noise is not None
        assert all(torch.equal(wide.projected(one, torch.Generator()), each) for each in alone)
    empty = sparse_rows(np.zeros((2, D)))
    with torch.no_grad():
        assert not layer.double().projected(empty, torch.Generator()).any()
