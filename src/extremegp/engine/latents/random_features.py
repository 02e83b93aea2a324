"""Deep Gaussian processes by random features: Bayesian networks whose layers are expanded kernels (D 2.2.1, 4.3)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extremegp.engine.draws import sequence_noise
from extremegp.engine.latents.base import ConditionedLatents, ConditionedWeights, Marginals, WeightedLatents
from extremegp.engine.normals import SEED_LIMIT, STREAM, seeded_normals, seeded_rows
from extremegp.engine.part import Part, StepSizes, TrainingData
from extremegp.engine.sparse import Inputs, SparseRows, matmul, row_sparse_matmul, weighted_square_norms

FeatureKernel = Literal["se", "arccos1"]
Frequencies = Literal["prior-fixed", "var-fixed", "var-resampled"]
FEATURE_KERNELS: tuple[str, ...] = get_args(FeatureKernel)
FREQUENCIES: tuple[str, ...] = get_args(Frequencies)


class RandomFeatures(Part):
    """phi(x) with E[phi(x)'phi(z)] = s2 k(x, z): a cosine and a sine for SE, a rectified line for arc-cosine (D 4.14).

    The columns of Omega, D x R, are N(0, diag(w)), w the inverse squared lengthscales. k is exp(-|x - z|_w^2 / 2), or
    the arc-cosine kernel of order 1, whose variance is |x|_w^2.

    Args:
        n_inputs: D.
        n_random: R; SE has 2 R features.
        kernel: k.
        frequencies: "prior-fixed" draws Omega from its prior once (moving with w), "var-fixed" learns a factorised
            Gaussian q(Omega) with noise that is drawn once, "var-resampled" draws that noise anew at every step.
        ard: one w for every input, or one for all.

    What is drawn once, `noise`, is what `noise_seed` gives back, and only that is saved.
    """

    _n_made: int = 0
    noise: Float[Tensor, "D R"] | None
    noise_seed: Int[Tensor, ""]
    noise_stream: Int[Tensor, ""]

    def __init__(
        self, n_inputs: int, n_random: int, *, kernel: FeatureKernel, frequencies: Frequencies, ard: bool
    ) -> None:
        super().__init__()
        self.kernel, self.frequencies, self.n_inputs, self.n_random = kernel, frequencies, n_inputs, n_random
        self.n_features = 2 * n_random if kernel == "se" else n_random
        self.log_weights = nn.Parameter(torch.zeros(n_inputs if ard else 1))
        self.log_amplitude = nn.Parameter(torch.zeros(()))
        self.fixed = frequencies != "var-resampled"
        if self.fixed:
            self.register_buffer("noise", None, persistent=False)
            self.register_buffer("noise_seed", torch.zeros((), dtype=torch.int64))
            self.register_buffer("noise_stream", torch.tensor(STREAM))
            self.index_limits = {"noise_seed": SEED_LIMIT, "noise_stream": STREAM + 1}
        self.q_mean: nn.Parameter | None = None
        if frequencies != "prior-fixed":
            # In units of the prior's deviations: q starts as the prior, whatever the weights are.
            self.q_mean = nn.Parameter(torch.zeros(n_inputs, n_random))
            self.log_ratio = nn.Parameter(torch.zeros(n_inputs, n_random))

    def draw_once(self, generator: torch.Generator) -> None:
        """Take other noise."""
        self.noise_seed.fill_(int(torch.randint(SEED_LIMIT, (), generator=generator)))
        self.noise = None

    def drawn(self) -> Float[Tensor, "D R"]:
        """What was drawn once; made when it is first needed, by when inputs as wide have been seen."""
        if self.noise is None:
            self.noise = seeded_normals(int(self.noise_seed), (self.n_inputs, self.n_random)).to(self.log_weights)
        return self.noise

    def expect(self, names: Collection[str]) -> None:
        if self.fixed and "noise" in names:
            # As format version 1 has it, which had no seeds.
            del self.noise_seed, self.noise_stream
            self.register_buffer("noise", self.log_weights.new_zeros(self.n_inputs, self.n_random))

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        if self.fixed and prefix + "noise" not in state_dict:
            self.noise = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what the seed gives back."""
        state: dict[str, Any] = {**self.__dict__}
        if "noise_seed" in self._buffers:
            state["_buffers"] = {**self._buffers, "noise": None}
        return state

    def omega(self, generator: torch.Generator) -> Float[Tensor, "D R"]:
        """A draw of the spectral frequencies."""
        if self.fixed:
            return self._omega_of(self.drawn())
        assert self.q_mean is not None
        return self._omega_of(torch.empty_like(self.q_mean).normal_(generator=generator))

    def projected(self, x: Inputs, generator: torch.Generator) -> Float[Tensor, "B R"]:
        """x'Omega at a draw of Omega; of few sparse inputs only the rows of Omega that they need are worked out."""
        few = self.fixed and not torch.is_grad_enabled()
        if not few or not isinstance(x, SparseRows) or len(x.columns) >= self.n_inputs:
            return matmul(x, self.omega(generator))
        used, positions = torch.unique(x.columns, return_inverse=True)
        return matmul(replace(x, columns=positions, n_columns=len(used)), self._omega_of(self._drawn_rows(used), used))

    def _drawn_rows(self, rows: Int[Tensor, " n"]) -> Float[Tensor, "n R"]:
        """Some rows of what was drawn once; made by themselves where so few were asked for that all take longer."""
        if self.noise is None and self._n_made + len(rows) <= self.n_inputs // 8:
            self._n_made += len(rows)
            return seeded_rows(int(self.noise_seed), rows.tolist(), self.n_random).to(self.log_weights)
        return self.drawn().index_select(0, rows)

    def _omega_of(self, noise: Float[Tensor, "n R"], rows: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n R"]:
        """Omega for this noise, or some of its rows for theirs."""

        def taken(values: Tensor) -> Tensor:
            return values if rows is None or len(values) == 1 else values.index_select(0, rows)

        deviations = (0.5 * taken(self.log_weights)).exp().unsqueeze(-1)
        if self.q_mean is None:
            return noise * deviations
        return torch.addcmul(taken(self.q_mean), (0.5 * taken(self.log_ratio)).exp(), noise) * deviations

    def features(self, projected: Float[Tensor, "B R"]) -> Float[Tensor, "B F"]:
        """phi of x'Omega."""
        scale = self.log_amplitude.exp() / math.sqrt(self.n_random)
        if self.kernel == "se":
            return scale * torch.cat([projected.cos(), projected.sin()], dim=-1)
        return math.sqrt(2) * scale * projected.relu()

    def unseen_variance(self, squares: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The prior variance of a function at an input, given its value there without features of these squared norms.

        They have the mean weight; of the arc-cosine kernel it is that of small ones.
        """
        scaled = self.log_weights.exp().mean() * squares
        return (2 * self.log_amplitude).exp() * (-torch.expm1(-scaled) if self.kernel == "se" else scaled)

    def late(self) -> dict[nn.Parameter, Literal["frequencies", "hyperparameters"]]:
        late: dict[nn.Parameter, Literal["frequencies", "hyperparameters"]] = {}
        late |= dict.fromkeys((self.log_weights, self.log_amplitude), "hyperparameters")
        if self.q_mean is not None:
            late |= dict.fromkeys((self.q_mean, self.log_ratio), "frequencies")
        return late

    def kl_of_frequencies(self) -> Float[Tensor, ""]:
        """KL[q(Omega) || p(Omega)]; none where Omega is drawn from its prior."""
        if self.q_mean is None:
            return self.log_weights.new_zeros(())
        return 0.5 * (self.log_ratio.exp() - 1 - self.log_ratio + self.q_mean.square()).sum()


class _Weights(nn.Module):
    """q(W), factorised, F x P; p(W) = N(0, I)."""

    def __init__(self, n_features: int, n_functions: int, variance: float) -> None:
        super().__init__()
        self.q_mean = nn.Parameter(torch.zeros(n_features, n_functions))
        self.log_variance: nn.Parameter | None = nn.Parameter(torch.full((n_features, n_functions), math.log(variance)))

    def deviations(self) -> Float[Tensor, "F P"]:
        assert self.log_variance is not None
        return (0.5 * self.log_variance).exp()

    def draw(self, generator: torch.Generator) -> Float[Tensor, "F P"]:
        noise = torch.empty_like(self.q_mean).normal_(generator=generator)
        return torch.addcmul(self.q_mean, self.deviations(), noise)

    def kl(self) -> Float[Tensor, ""]:
        assert self.log_variance is not None
        return _kl_of_weights(self.q_mean, self.log_variance)


def _kl_of_weights(mean: Float[Tensor, "F P"], log_variance: Float[Tensor, "F P"]) -> Float[Tensor, ""]:
    return 0.5 * (log_variance.exp() - 1 - log_variance + mean.square()).sum()


class DeepRandomFeatures(WeightedLatents):
    """P functions of a deep GP with L layers, each phi(F) W for random features phi of the layer before (D 4.3).

    The posterior is factorised over the weights W, and over the frequencies Omega where they are learnt. Given the
    hidden layers the functions are Gaussian: only hidden layers are ever drawn, unless `draws` asks for more. Where
    there are none, and frequencies stay, functions may share a covariance of W once they are trained, see
    `WeightCovariance`.

    Args:
        n_features: D.
        n_functions: P.
        n_layers: L, 1 for a GP.
        n_hidden: functions of every hidden layer.
        n_random: frequencies of every layer.
        kernel: of every layer.
        frequencies: how Omega is learnt, see `RandomFeatures`.
        ard: a lengthscale for every input of a layer.
        n_reduced: dimensions that a learnt matrix takes the inputs to first (D 4.5.1); None leaves them as they are.
        feed_forward: give the inputs to every layer, not to the first alone.
    """

    def __init__(
        self,
        n_features: int,
        n_functions: int,
        *,
        n_layers: int = 1,
        n_hidden: int = 1,
        n_random: int = 1000,
        kernel: FeatureKernel = "arccos1",
        frequencies: Frequencies = "var-fixed",
        ard: bool = True,
        n_reduced: int | None = None,
        feed_forward: bool = True,
    ) -> None:
        super().__init__()
        self.n_functions, self.n_hidden, self.feed_forward = n_functions, n_hidden, feed_forward
        self.reducer = None if n_reduced is None else nn.Parameter(torch.zeros(n_features, n_reduced))
        n_inputs = n_reduced or n_features
        widths = [n_inputs, *[n_hidden + n_inputs * feed_forward] * (n_layers - 1)]
        self.layers = nn.ModuleList(
            RandomFeatures(width, n_random, kernel=kernel, frequencies=frequencies, ard=ard) for width in widths
        )
        self.hidden = nn.ModuleList(_Weights(layer.n_features, n_hidden, 0.01) for layer in self._expansions()[:-1])
        self.output = _Weights(self._expansions()[-1].n_features, n_functions, 0.9)

    def _expansions(self) -> list[RandomFeatures]:
        return [layer for layer in self.layers if isinstance(layer, RandomFeatures)]

    def _hidden_weights(self) -> list[_Weights]:
        return [weights for weights in self.hidden if isinstance(weights, _Weights)]

    def start(self, data: TrainingData) -> None:
        x = data.sample
        self.start_at(x, torch.Generator().manual_seed(int(data.rng.integers(2**31))))

    @torch.no_grad()
    def start_at(self, x: Inputs, generator: torch.Generator, *, amplitude: float = 0.5) -> None:
        """Draw what is drawn once, and bring the lengthscales to the size of inputs like x.

        Args:
            x: some of the inputs.
            generator: decides the draws.
            amplitude: s of the last layer.
        """
        if self.reducer is not None:
            self.reducer.normal_(generator=generator).mul_(self.reducer.shape[1] ** -0.5)
        size = float(weighted_square_norms(x, torch.ones(1, dtype=x.dtype, device=x.device)).mean()) or 1.0
        for layer, hidden in zip(self._expansions(), [None, *self._hidden_weights()], strict=True):
            # Hidden functions come before the inputs, and start at the size of one.
            n_hidden = 0 if hidden is None else self.n_hidden
            inputs_size = size if hidden is None or self.feed_forward else 0.0
            layer.log_weights.fill_(-math.log(n_hidden + inputs_size))
            if n_hidden and inputs_size and len(layer.log_weights) > 1:
                layer.log_weights[:n_hidden] = -math.log(n_hidden)
                layer.log_weights[n_hidden:] = -math.log(inputs_size)
            if layer.fixed:
                layer.draw_once(generator)
            if hidden is not None:
                hidden.q_mean.normal_(generator=generator)
        self._expansions()[-1].log_amplitude.fill_(math.log(amplitude))

    def with_weights(self) -> Iterator[tuple[int, WeightedLatents]]:
        if self.is_flat:
            yield 0, self

    @property
    def n_weights(self) -> int:
        return self._expansions()[-1].n_features

    @property
    def prior_scale(self) -> Float[Tensor, ""]:
        return self.output.q_mean.new_ones(())

    def weight_features(self, x: Inputs) -> Inputs:
        # Nothing is drawn.
        return self.features(x, torch.Generator(x.device))

    def unseen_prior(self, squares: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        return self._expansions()[0].unseen_variance(squares)

    def forget_own(self) -> None:
        self.output.log_variance = None

    def condition(self, seed: int = 0, functions: Int[Tensor, " L"] | None = None) -> ConditionedLatents:
        if self.covariance is None:
            return _ConditionedFeatures(self, seed, functions)
        mean = self.output.q_mean if functions is None else self.output.q_mean.index_select(1, functions)
        return ConditionedWeights(self, mean, lambda: 0.5 * mean.square().sum() + self.inner_kl())

    def features(self, x: Inputs, generator: torch.Generator) -> Float[Tensor, "B F"]:
        """phi of the last layer, at a draw of the hidden layers."""
        if self.reducer is not None:
            x = row_sparse_matmul(x, self.reducer)
        layers = self._expansions()
        phi = layers[0].features(layers[0].projected(x, generator))
        for weights, layer in zip(self._hidden_weights(), layers[1:], strict=True):
            f, omega = phi @ weights.draw(generator), layer.omega(generator)
            projected = f @ omega[: self.n_hidden]
            if self.feed_forward:
                projected = projected + matmul(x, omega[self.n_hidden :])
            phi = layer.features(projected)
        return phi

    def inner_kl(self) -> Float[Tensor, ""] | float:
        """Summed over all weights and frequencies but those of the functions themselves."""
        total: Float[Tensor, ""] | float = 0.0
        for layer in self._expansions():
            total = total + layer.kl_of_frequencies()
        for weights in self._hidden_weights():
            total = total + weights.kl()
        return total

    def row_sparse(self) -> list[nn.Parameter]:
        return [] if self.reducer is None else [self.reducer]

    @property
    def is_flat(self) -> bool:
        """Whether the features are the same for all draws."""
        return len(self.hidden) == 0 and all(layer.fixed for layer in self._expansions())

    def step_elements(self, sizes: StepSizes) -> int:
        expansions = self._expansions()
        features = expansions[-1].n_features
        passes = 1 if self.is_flat else sizes.draws
        # What is drawn once has neither gradient nor moments; its product with the deviations has a gradient.
        drawn = sum(2 * layer.n_inputs * layer.n_random for layer in expansions if layer.fixed)
        drawn += sum(4 * passes * layer.q_mean.numel() for layer in expansions if layer.q_mean is not None)
        weights = 3 * sizes.sequences * features * sizes.draws * self.n_functions
        return 4 * sizes.rows * features * len(expansions) * passes + weights + drawn


class _ConditionedFeatures(ConditionedLatents):
    alike = True

    def __init__(self, latents: DeepRandomFeatures, seed: int, functions: Int[Tensor, " L"] | None = None) -> None:
        output = latents.output
        assert output.log_variance is not None
        self.latents, self.seed, self.width = latents, seed, output.q_mean.shape[0]
        self.mean: Tensor = output.q_mean
        self.log_variance: Tensor = output.log_variance
        if functions is not None:
            self._take(functions)
        of_functions = self.mean, self.log_variance
        self._kl: Callable[[], Tensor] = lambda: _kl_of_weights(*of_functions) + latents.inner_kl()

    def _take(self, functions: Int[Tensor, " L"]) -> None:
        self.mean, self.log_variance = (part.index_select(1, functions) for part in (self.mean, self.log_variance))

    def marginals(self, x: Inputs) -> Marginals:
        """At the draw of the hidden layers that the seed decides, the same for all inputs."""
        generator = torch.Generator(x.device).manual_seed(self.seed)
        phi = self.latents.features(x, generator)
        return Marginals(phi @ self.mean, phi.square() @ self.log_variance.exp())

    def draws(
        self, x: Inputs, lengths: Int[Tensor, " S"], n_draws: int, generator: torch.Generator
    ) -> Float[Tensor, "R B P"]:
        per_pass = n_draws if self.latents.is_flat else 1
        deviations = (0.5 * self.log_variance).exp()
        drawn = []
        for _ in range(n_draws // per_pass):
            phi = self.latents.features(x, generator)
            shape = (per_pass, self.mean.shape[1])
            drawn.append(phi @ self.mean + sequence_noise(phi, deviations, lengths, shape, generator))
        return torch.cat(drawn)

    def kl(self) -> Float[Tensor, ""]:
        return self._kl()

    def select(self, functions: Int[Tensor, " L"]) -> ConditionedLatents:
        part = copy.copy(self)
        part._take(functions)
        return part
