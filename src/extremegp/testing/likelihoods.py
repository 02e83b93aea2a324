"""What every likelihood has to keep to."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from torch import Tensor

from extremegp.engine.batch import Batch
from extremegp.engine.latents import Marginals
from extremegp.engine.likelihoods import Likelihood
from extremegp.engine.mixing import FactorMixing, IdentityMixing, Mixing
from extremegp.engine.sparse import SparseRows
from extremegp.engine.utilities import Utilities
from extremegp.testing import common
from extremegp.testing.common import same
from extremegp.testing.latents import marginals_of

LogProb = Callable[[Float[Tensor, "S B K"], Float[Tensor, "B K"]], Float[Tensor, "S B"]]
"""log p(y_i | f_i) of S draws of the utilities of B rows; of sequences it may be given to any one row of each."""

_ROWS, _LENGTHS = 6, (3, 1, 2)
_DRAWS, _SEEDS = 20_000, 200
_MOST_COUNT = 200


def check_likelihood(
    likelihood: Likelihood,
    *,
    n_labels: int = 4,
    n_features: int = 3,
    log_prob: LogProb | None = None,
    is_bound: bool = False,
    is_tight: bool = True,
    prediction_error: float = 0.0,
    as_argument: bool = True,
) -> None:
    """Check expectations against log p(y | f), sums over labels against samples of them, and predictions against draws.

    Args:
        likelihood: of any parameters; it is not changed.
        n_labels: K.
        n_features: D, for parameters of every instance that follow from its inputs.
        log_prob: log p(y | f) as it is defined. Left out, it follows from `conditional` where that gives the
            probabilities of classes, or of labels that are 0 or 1 and independent of each other.
        is_bound: whether the expectation is a lower bound of that of `log_prob`, not the expectation itself.
        is_tight: whether it is the same where nothing is uncertain, bound or not.
        prediction_error: standard error of predictions that are averages of draws themselves, where utilities are
            correlated.
        as_argument: whether it can be given to estimators as an object, so that its constructor takes plain values.

    Raises:
        AssertionError: says what does not hold.
        ValueError: `log_prob` is needed, and left out.
    """
    checks = _Checks(likelihood, n_labels, n_features, log_prob, is_bound, is_tight)
    mixings = [checks.mixing()] if likelihood.needs_independent else [checks.mixing(), checks.mixing(factors=2)]
    for mixing in mixings:
        checks.expectation(mixing)
        checks.gradients(mixing)
        checks.precision(mixing)
        if likelihood.takes_weights:
            checks.row_weights(mixing)
        if likelihood.takes_soft_labels and not likelihood.stores_rows:
            checks.soft_labels(mixing)
        if not likelihood.has_sequences:
            checks.predictions(mixing, 0.0 if mixing.independent else prediction_error)
            checks.chunks(mixing)
            if not likelihood.sums_over_labels:
                checks.refuses_weights(mixing)
            elif not likelihood.has_locals:  # Optimal ones need all labels.
                checks.samples_of_labels(mixing)
    checks.facts()
    checks.start()
    common.check_hooks(checks.likelihood)
    with torch.no_grad():
        common.check_saving(checks.likelihood, checks.outputs, as_argument=as_argument)


class _Checks:
    def __init__(
        self,
        likelihood: Likelihood,
        n_labels: int,
        n_features: int,
        log_prob: LogProb | None,
        is_bound: bool,
        is_tight: bool,
    ) -> None:
        self.name, self.likelihood = common.name_of(likelihood), common.moved(likelihood)
        self.n_labels, self.n_utilities = n_labels, likelihood.n_utilities(n_labels)
        self.x = common.inputs(_ROWS, n_features)
        self.is_bound, self.is_tight = is_bound, is_tight
        self.log_prob = log_prob or _log_prob_of(self.likelihood)
        self.lengths = torch.tensor(_LENGTHS) if likelihood.has_sequences else None
        self.dense = _targets(likelihood, n_labels)
        self.y = _sparse(self.dense)

    def batch(self, *, seed: int = 0) -> Batch:
        return Batch(self.x, self.y, lengths=self.lengths, seed=seed)

    def mixing(self, *, factors: int | None = None) -> Mixing:
        zeros, k = torch.zeros(self.n_utilities, dtype=torch.float64), self.n_utilities
        if factors is None:
            return IdentityMixing(zeros, common.normal(k, seed=2))
        return FactorMixing(common.normal(k, factors, seed=1), common.normal(k, seed=2))

    def latents(self, mixing: Mixing, *, variance: float = 0.5) -> Marginals:
        n_latent = self.n_utilities if mixing.independent else cast(FactorMixing, mixing).loadings.shape[1]
        return marginals_of(_ROWS, n_latent, variance=variance)

    def utilities(self, mixing: Mixing, latents: Marginals) -> Utilities:
        """Sequences are drawn, here as if the functions were independent at their elements."""

        def draw(lengths: Tensor, n_draws: int, generator: torch.Generator) -> Tensor:
            noise = torch.randn(n_draws, *latents.mean.shape, generator=generator, dtype=latents.mean.dtype)
            return latents.mean + latents.variance.sqrt() * noise

        return Utilities(mixing, latents, draw=draw)

    def bound(self, mixing: Mixing, latents: Marginals, *, seed: int = 0) -> Tensor:
        return self.likelihood.expected_log_prob(self.utilities(mixing, latents), self.batch(seed=seed))

    def outputs(self, likelihood: Likelihood) -> list[Tensor]:
        mixing = self.mixing()
        return [likelihood.expected_log_prob(self.utilities(mixing, self.latents(mixing)), self.batch())]

    @torch.no_grad()
    def expectation(self, mixing: Mixing) -> None:
        """Against log p(y | f): at known utilities, and averaged over draws of them."""
        certain = self.latents(mixing, variance=0.0)
        f = mixing.at(certain.mean).unsqueeze(0)
        exact, got = self._log_prob(f).sum(), self._average(mixing, certain)
        what = f"{self.name}: of utilities that are known, the expected log p(y | f)"
        if self.is_tight:
            common.check_mean(got, exact, f"{what} is not log p(y | f)")
        else:
            assert float(got.mean()) <= float(exact) + 1e-6, f"{what} is {got.mean():.6g}, above {exact:.6g}"
        latents = self.latents(mixing)
        truth = self._log_prob(self._draws(mixing, latents)).sum(-1)
        # Draws come in pairs that mirror each other.
        truth, got = truth.view(2, -1).mean(0), self._average(mixing, latents)
        if not self.is_bound:
            error = truth.std() / math.sqrt(len(truth))
            common.check_mean(
                got, truth.mean(), f"{self.name}: E log p(y | f) differs from its average", standard_error=error
            )
        else:
            error = truth.std() / math.sqrt(len(truth)) + got.std(correction=0) / math.sqrt(len(got))
            excess = float(got.mean() - truth.mean() - common.STANDARD_ERRORS * error)
            assert excess <= 1e-6, (
                f"{self.name}: the bound {got.mean():.6g} is above what it bounds, {truth.mean():.6g}"
            )

    def _log_prob(self, f: Tensor) -> Tensor:
        return self.log_prob(f, self.dense)

    def _average(self, mixing: Mixing, latents: Marginals) -> Tensor:
        """The expectation at seeds; one number twice where it does not depend on them."""
        first = [self.bound(mixing, latents, seed=seed) for seed in range(2)]
        more = [] if bool(first[0] == first[1]) else [self.bound(mixing, latents, seed=2 + s) for s in range(_SEEDS)]
        return torch.stack([*first, *more])

    def _is_random(self, mixing: Mixing) -> bool:
        latents = self.latents(mixing)
        return bool(self.bound(mixing, latents) != self.bound(mixing, latents, seed=1))

    def _draws(self, mixing: Mixing, latents: Marginals) -> Float[Tensor, "S B K"]:
        noise = common.normal(_DRAWS // 2, *latents.mean.shape, seed=11)
        return self.utilities(mixing, latents).sample(torch.cat([noise, -noise]))

    def gradients(self, mixing: Mixing) -> None:
        likelihood, batch = self.likelihood, self.batch()
        latents = Marginals(*(part.clone().requires_grad_() for part in self.latents(mixing)))
        tensors = latents._asdict() | dict(mixing.named_parameters()) | dict(likelihood.named_parameters())
        # Parameters of every instance are learnt where its row is trained on; those that are stored change at a visit.
        if likelihood.has_locals and not likelihood.stores_rows:
            batch = replace(batch, rows=torch.arange(_ROWS))
        # Where they are at their optimum, the gradient is as exact as they are.
        rtol = 5e-3 if likelihood.has_locals else 1e-4

        def value(batch: Batch = batch) -> Tensor:
            return likelihood.expected_log_prob(self.utilities(mixing, latents), batch) - likelihood.kl()

        common.check_gradients(tensors, value, self.name, rtol=rtol)
        if likelihood.takes_weights:
            batch = replace(batch, weights=self._counts())
        if likelihood.takes_soft_labels and not likelihood.stores_rows:
            batch = replace(batch, y=_sparse(self._soft()))
        common.check_gradients(tensors, partial(value, batch), f"{self.name} of weighted rows", rtol=rtol)

    @torch.no_grad()
    def precision(self, mixing: Mixing) -> None:
        """In single precision, which models are trained in by default."""
        single, double = copy.deepcopy(self.likelihood).float(), self.latents(mixing)
        y = replace(self.y, values=self.y.values.float())
        batch = replace(self.batch(), x=self.x.float(), y=y)
        utilities = self.utilities(copy.deepcopy(mixing).float(), Marginals(*(part.float() for part in double)))
        got = single.expected_log_prob(utilities, batch)
        assert got.dtype == torch.float32, f"{self.name}: of utilities in float32 the expectation is {got.dtype}"
        if not self._is_random(mixing):
            what = f"{self.name}: float32 and float64 differ"
            same(got, self.bound(mixing, double), what, rtol=1e-3, atol=1e-3, check_dtype=False)

    @torch.no_grad()
    def predictions(self, mixing: Mixing, error: float) -> None:
        """Expectations are averages of those at known utilities."""
        latents, likelihood = self.latents(mixing), self.likelihood
        utilities, f = self.utilities(mixing, latents), self._draws(mixing, latents)
        predicted = likelihood.predict(utilities)
        same(predicted.means, utilities.means(), f"{self.name}: predicted means are not the mean utilities")
        if likelihood.labels_independent:
            alone, of_draws = likelihood.of_marginals(*utilities.marginals()), likelihood.of_marginals(f, f * 0.0)
            common.check_mean(of_draws, alone, f"{self.name}: of_marginals is not the average of conditional(f)")
            if not likelihood.has_classes:
                same(predicted.expectations, alone, f"{self.name}: predict and of_marginals differ")
        else:
            what = f"{self.name}: predictions are not the average of conditional(f)"
            common.check_mean(likelihood.conditional(f), predicted.expectations, what, standard_error=error)
        if likelihood.has_classes:
            ones = torch.ones(_ROWS, dtype=torch.float64)
            for each in (predicted.expectations, likelihood.conditional(f[0])):
                assert bool((each >= 0).all()), f"{self.name}: a probability is negative"
                same(each.sum(-1), ones, f"{self.name}: probabilities of the classes do not add up", rtol=1e-4)
        if likelihood.has_counts:
            self._means_of_counts(f[:1])

    def _means_of_counts(self, f: Float[Tensor, "1 B K"]) -> None:
        """Of one label at a time, the others held at zero: sum_y y p(y | f) from ratios of p."""
        counts = torch.arange(_MOST_COUNT, dtype=torch.float64)
        logs = []
        for count in counts:
            y = torch.zeros_like(self.dense)
            y[:, 0] = count
            logs.append(self.log_prob(f, y)[0])
        got, mean = self.likelihood.conditional(f)[0, :, 0], torch.stack(logs).softmax(0).T @ counts
        same(got, mean, f"{self.name}: conditional(f) is not the mean of p(y | f)", rtol=1e-5)

    @torch.no_grad()
    def chunks(self, mixing: Mixing) -> None:
        """Rows are independent: a batch is the sum of its parts."""
        if self._is_random(mixing):
            return
        latents, batch, total = self.latents(mixing), self.batch(), torch.zeros((), dtype=torch.float64)
        for rows in (slice(0, 2), slice(2, _ROWS)):
            part = replace(batch, x=self.x[rows], y=self.y.part(rows))
            total += self.likelihood.expected_log_prob(self.utilities(mixing, latents.rows(rows)), part)
        same(total, self.bound(mixing, latents), f"{self.name}: the batch is not the sum of its rows", rtol=1e-6)

    def _counts(self) -> Float[Tensor, " n"]:
        """Different weights of the rows, or sequences, and one that is 0."""
        return torch.arange(_ROWS if self.lengths is None else len(self.lengths), dtype=torch.float64)

    @torch.no_grad()
    def row_weights(self, mixing: Mixing) -> None:
        """A weight that is an integer counts a row, or a sequence, as often."""
        latents, counts = self.latents(mixing), self._counts()

        def value(weights: Tensor) -> Tensor:
            batch = replace(self.batch(), weights=weights)
            return self.likelihood.expected_log_prob(self.utilities(mixing, latents), batch)

        same(value(counts * 0 + 1), self.bound(mixing, latents), f"{self.name}: weights of 1 change the expectation")
        alone = torch.stack([value(unit) for unit in torch.eye(len(counts), dtype=torch.float64)])
        same(value(counts), alone @ counts, f"{self.name}: the expectation is not linear in the weights", rtol=1e-6)
        if self.lengths is None and not self._is_random(mixing):
            index = torch.arange(_ROWS).repeat_interleave(counts.long())
            repeated = replace(self.batch(), x=self.x[index], y=_sparse(self.dense[index]))
            got = self.likelihood.expected_log_prob(self.utilities(mixing, latents.rows(index)), repeated)
            same(value(counts), got, f"{self.name}: weights do not count rows as often as they say", rtol=1e-6)

    def _soft(self) -> Float[Tensor, "B K"]:
        """Every row with its labels or those of another."""
        return 0.3 * self.dense + 0.7 * self.dense.roll(1, 0)

    @torch.no_grad()
    def soft_labels(self, mixing: Mixing) -> None:
        """Of probabilities of labels the expectation is the mean over these."""
        latents, values = self.latents(mixing), []
        for dense in (self._soft(), self.dense, self.dense.roll(1, 0)):
            batch = replace(self.batch(), y=_sparse(dense))
            values.append(self.likelihood.expected_log_prob(self.utilities(mixing, latents), batch))
        what = f"{self.name}: of soft labels the expectation is not that over the labels"
        same(values[0], 0.3 * values[1] + 0.7 * values[2], what, rtol=1e-6)

    @torch.no_grad()
    def samples_of_labels(self, mixing: Mixing) -> None:
        """A sample of the labels that a row has not, with weights, is right on average."""
        likelihood = self.likelihood
        for row in (slice(row, row + 1) for row in range(_ROWS)):
            of_row, y = self.latents(mixing).rows(row), self.y.part(row)
            alone = replace(self.batch(), x=self.x[row], y=y)
            whole = likelihood.expected_log_prob(self.utilities(mixing, of_row), alone)
            others = [label for label in range(self.n_labels) if label not in y.columns]
            estimates = []
            for other in others:
                labels = torch.sort(torch.cat([y.columns, torch.tensor([other])])).values
                weights = torch.where(labels == other, float(len(others)), 1.0).double()
                own = SparseRows(y.offsets, torch.searchsorted(labels, y.columns), y.values, len(labels))
                functions = mixing.functions(labels)
                some = of_row if functions is None else Marginals(*(part[:, functions] for part in of_row))
                sampled = replace(alone, y=own, label_weights=weights)
                utilities = self.utilities(mixing.select(labels), some)
                estimates.append(likelihood.select(labels).expected_log_prob(utilities, sampled))
            if estimates:
                what = f"{self.name}: samples of the labels are off on average (or set sums_over_labels = False)"
                same(torch.stack(estimates).mean(), whole, what, rtol=1e-6)

    def refuses_weights(self, mixing: Mixing) -> None:
        weighted = replace(self.batch(), label_weights=torch.ones(self.n_labels, dtype=torch.float64))
        try:
            self.likelihood.expected_log_prob(self.utilities(mixing, self.latents(mixing)), weighted)
        except ValueError:
            return
        raise AssertionError(f"{self.name} is no sum over labels, and has to refuse weights of them by a ValueError")

    @torch.no_grad()
    def facts(self) -> None:
        likelihood, k = self.likelihood, self.n_labels
        facts = ("labels_independent", "sums_over_labels", "has_classes", "has_counts", "has_sequences")
        of_data = ("takes_known_labels", "takes_weights", "takes_soft_labels")
        for fact in (*facts, "needs_independent", "has_locals", "is_concave", "is_smooth", *of_data):
            assert isinstance(getattr(likelihood, fact), bool), f"{self.name}.{fact} has to be True or False"
        assert likelihood.step_arrays >= 0, f"{self.name}.step_arrays has to be a number of arrays"
        assert float(likelihood.kl()) >= 0, f"{self.name}: kl is negative"
        if likelihood.labels_independent:
            some, f = torch.arange(0, k, 2), common.normal(3, k)
            got = likelihood.select(some).of_marginals(f[:, some], f[:, some].square())
            expected = likelihood.of_marginals(f, f.square())[:, some]
            same(got, expected, f"{self.name}: select(labels) are not those labels of all")

    def start(self) -> None:
        """Biases start where the expectation of the labels is their frequency, or at least in its order."""
        frequencies = np.linspace(0.1, 0.4, self.n_labels)
        frequencies = frequencies / frequencies.sum() if self.likelihood.has_classes else frequencies
        bias = torch.from_numpy(self.likelihood.start_bias(frequencies, 1000))
        what = f"{self.name}.start_bias"
        assert bias.shape == (self.n_utilities,), f"{what} has {tuple(bias.shape)} numbers, not {self.n_utilities}"
        common.finite(torch.from_numpy(self.likelihood.start_bias(frequencies * 0.0, 1000)), f"{what} of unseen labels")
        if self.likelihood.labels_independent and bool((bias != 0).any()):
            got = self.likelihood.of_marginals(bias[None], torch.zeros_like(bias)[None])[0]
            same(got, torch.from_numpy(frequencies), f"{what}: labels do not start at their frequencies", rtol=1e-4)
        order = bias[: self.n_labels].diff()
        assert bool((order >= 0).all()), f"{what} does not grow with the frequencies"


def _log_prob_of(likelihood: Likelihood) -> LogProb:
    """By `conditional`, where that says all of p(y | f)."""
    if likelihood.has_counts or likelihood.has_sequences:
        raise ValueError(f"{common.name_of(likelihood)}: pass log_prob(f, y), of draws S x B x K and labels B x K")

    def log_prob(f: Float[Tensor, "S B K"], y: Float[Tensor, "B K"]) -> Float[Tensor, "S B"]:
        if likelihood.labels_independent:
            chance = likelihood.of_marginals(f, torch.zeros_like(f))
            return torch.where(y > 0, chance, 1.0 - chance).log().sum(-1)
        return (likelihood.conditional(f).log() * y).sum(-1)

    return log_prob


def _sparse(y: Float[Tensor, "B K"]) -> SparseRows:
    return SparseRows.from_scipy(scipy.sparse.csr_matrix(y.numpy()), dtype=torch.float64)


def _targets(likelihood: Likelihood, n_labels: int) -> Float[Tensor, "B K"]:
    y = torch.zeros(_ROWS, n_labels, dtype=torch.float64)
    y[torch.arange(_ROWS), torch.arange(_ROWS) % n_labels] = 1.0
    if likelihood.has_classes:
        return y
    y[0] = 0.0
    y[1] = (torch.arange(n_labels) % 2).double()
    if likelihood.has_counts:
        y = y * (1.0 + torch.arange(_ROWS).unsqueeze(1) % 3)
    return y
