r"""Augment and reduce (Ruiz et al. 2018): bounds that an auxiliary variable of every instance makes sums over classes,
with local variational parameters (X section 3.2). What is bounded is the probability that f_c + e_c is the highest of
all f_k + e_k: for Gumbel e_k the softmax, for logistic e_k a likelihood that meets it as the number of classes grows.

*Softmax* (X 16-17): 1 - log alpha - (1 + sum_l E e^{f_l - f_c}) / alpha for any alpha >= 1, best at
alpha = 1 + sum_l E e^{f_l - f_c}. With alpha = 1 + e^a all of it stays in log space.

*Logit* (X 15): E_q(eps)[log sigma(eps) sigma(-eps) - log q(eps) + sum_l log sigma(eps + f_c - f_l)] for any q(eps).
The logistic q of location mu and scale beta is taken as a scale mixture of normals, sum_j p_j N(mu, beta^2 c_j), which
under N(m, v) makes every term a sum of E softplus with variances v + beta^2 c_j. The mixture is q itself, entropy
included: no sampling, and a bound whatever it is. It is jointly concave in mu and beta.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from extremegp.engine.batch import Batch
from extremegp.engine.integrals.logistic import LOGISTIC_MIXTURE, softplus_moments
from extremegp.engine.integrals.races import softmax_probabilities
from extremegp.engine.likelihoods.base import ClassEntries, ClassLikelihood
from extremegp.engine.likelihoods.local import HIDDEN_UNITS, AmortisedLocals, StoredLocals
from extremegp.engine.likelihoods.one_vs_each import sum_over_others
from extremegp.engine.utilities import Utilities

Local = Literal["optimal", "amortised", "stored"]
LOCALS: tuple[str, ...] = get_args(Local)

_MOST_EXCESS, _MOST_EXCESS_OF_NETWORK = math.log(1e3), math.log(3.0)
_MIXTURE_ENTROPY = 2.000000175144746
"""Of the mixture at beta = 1, by dense integration; the logistic distribution has 2."""
_VISIT_STEPS = 5
_MOST_STEPS = 60
_TOLERANCE = 1e-3
"""Of the size of a step: the bound is then within its square of the optimum, relative to itself."""


class Differences(NamedTuple):
    """The Gaussian differences f_c - f_l of a batch, and what each counts.

    Attributes:
        mean: their means.
        variance: their variances.
        classes: c, whose own column counts nothing.
        label_weights: w_l; None for 1 throughout.
    """

    mean: Float[Tensor, "B K"]
    variance: Float[Tensor, "B K"]
    classes: Int[Tensor, " B"]
    label_weights: Float[Tensor, " K"] | None = None

    def detach(self) -> Differences:
        return self._replace(mean=self.mean.detach(), variance=self.variance.detach())

    def rows(self, index: Int[Tensor, " R"]) -> Differences:
        """Those of some of the rows."""
        return self._replace(mean=self.mean[index], variance=self.variance[index], classes=self.classes[index])

    def sum(self, terms: Float[Tensor, "B K"]) -> Float[Tensor, " B"]:
        """sum_{l != c} w_l t_l of every row."""
        return sum_over_others(terms, self.classes, self.label_weights)


class _AugmentReduce(ClassLikelihood):
    """A bound with local parameters that are at their optimum, the output of a network, or stored.

    Args:
        local: "optimal": at their optimum for the batch, which needs all classes; a sample of them would be biased.
            "amortised": a network of the inputs, trained with everything else. "stored": kept for every instance; a
            visit moves them towards their optimum without gradient, all the way if all classes are there, else by
            `StoredLocals.steps`, and then the bound is taken.
        n_classes: K, which decides where they start; not needed if optimal.
        n_features: D, for the network.
        n_rows: N, for storage.
        hidden: units of both hidden layers of the network.
    """

    sums_over_labels = has_locals = True

    def __init__(
        self,
        local: Local = "optimal",
        *,
        n_classes: int = 2,
        n_features: int = 0,
        n_rows: int = 0,
        hidden: int = HIDDEN_UNITS,
    ) -> None:
        super().__init__()
        self.local = local
        self.locals: AmortisedLocals | StoredLocals | None = None
        if local == "amortised":
            self.locals = AmortisedLocals(n_features, self._start(n_classes), hidden=hidden)
        elif local == "stored":
            self.locals = StoredLocals(n_rows, self._start(n_classes))

    @property
    def stores_rows(self) -> bool:
        return self.local == "stored"

    def expected_log_prob(self, utilities: Utilities, batch: Batch) -> Float[Tensor, ""]:
        """The bound, summed over the batch; of rows that are not trained on, local parameters are optimal.

        Raises:
            ValueError: if locals should be optimal, but there are weights of labels; if they are stored, and labels
                soft.
        """
        entries = ClassEntries.of(utilities, batch)
        mean, variance = entries.utilities.differences(entries.classes)
        differences = Differences(mean, variance, entries.classes, batch.label_weights)
        return entries.sum(self.row_bounds(differences, self._locals(differences, batch, entries.rows)))

    def _locals(self, differences: Differences, batch: Batch, rows: Int[Tensor, " B"] | None) -> Float[Tensor, "B n"]:
        """Of every difference's row: `rows` are their numbers in the batch, where labels are soft."""
        if self.locals is None or batch.rows is None:
            if differences.label_weights is not None:
                raise ValueError(
                    "local parameters that are optimal for a sample of the classes bias the bound: use all classes, or "
                    "local='amortised' or 'stored'"
                )
            return self.optimum(differences)
        if isinstance(self.locals, AmortisedLocals):
            locals_ = self.locals(batch.x)
            return self._guarded(locals_ if rows is None else locals_.index_select(0, rows), differences)
        if rows is not None:
            raise ValueError(
                "parameters that are stored for every row are of its one class, and soft labels have several: use "
                "local='optimal' or 'amortised'"
            )
        stored = self.locals(batch.rows).to(differences.mean.dtype)
        target = self.optimum(differences, stored, n_steps=_VISIT_STEPS)
        if differences.label_weights is not None:
            target = self._between(stored, target, self.locals.steps(batch.rows).to(target.dtype))
        self.locals.store(batch.rows, target)
        return target

    def probabilities(self, utilities: Utilities) -> Float[Tensor, "B K"]:
        """E softmax(f)."""
        return softmax_probabilities(utilities)

    def _guarded(self, locals_: Float[Tensor, "B n"], differences: Differences) -> Float[Tensor, "B n"]:
        """Outputs of the network, kept from where their errors would throw the posterior off its way."""
        return locals_

    @abstractmethod
    def row_bounds(self, differences: Differences, locals_: Float[Tensor, "B n"]) -> Float[Tensor, " B"]:
        """The bound of every row at given local parameters."""

    @abstractmethod
    def optimum(
        self, differences: Differences, start: Float[Tensor, "B n"] | None = None, *, n_steps: int = _MOST_STEPS
    ) -> Float[Tensor, "B n"]:
        """The local parameters that maximise the bound of every row, without gradient: at the optimum none is missing.

        Args:
            differences: of the batch.
            start: where an iteration starts; decided here by default.
            n_steps: how many steps it has. No step lowers the bound of any row.
        """

    @staticmethod
    @abstractmethod
    def _start(n_classes: int) -> tuple[float, ...]:
        """Local parameters before anything is known."""

    @staticmethod
    @abstractmethod
    def _between(
        old: Float[Tensor, "B n"], new: Float[Tensor, "B n"], step: Float[Tensor, "B 1"]
    ) -> Float[Tensor, "B n"]:
        """(1 - step) old + step new, in the parameters in which the bound is to be averaged."""


class AugmentReduceSoftmax(_AugmentReduce):
    """The softmax bound of augment and reduce (X 16-17). Its local parameter is a = log(alpha - 1).

    An alpha that the batch shows to be more than 10^3 times too small for a row is raised to that: any alpha gives a
    bound, and with this one neither the bound nor its gradient overflows. One by a network is raised where it is three
    times too small. Where classes are sampled the rows that this happens to, few once the network has learnt, have a
    bias.
    """

    step_arrays = 6

    def row_bounds(self, differences: Differences, locals_: Float[Tensor, "B 1"]) -> Float[Tensor, " B"]:
        total = self._log_total(differences)
        a = self._raised(locals_.squeeze(1), total - _MOST_EXCESS)
        log_alpha = torch.logaddexp(a, torch.zeros_like(a))
        return 1.0 - log_alpha - (-log_alpha).exp() - (total - log_alpha).exp()

    def _guarded(self, locals_: Float[Tensor, "B 1"], differences: Differences) -> Float[Tensor, "B 1"]:
        return self._raised(locals_, self._log_total(differences).unsqueeze(1) - _MOST_EXCESS_OF_NETWORK)

    @staticmethod
    def _raised(a: Tensor, least: Tensor) -> Tensor:
        # Moved as a constant: the gradient of a is that at the place it is moved to.
        return a + (least - a).detach().clamp(min=0.0)

    @torch.no_grad()
    def optimum(
        self, differences: Differences, start: Float[Tensor, "B 1"] | None = None, *, n_steps: int = _MOST_STEPS
    ) -> Float[Tensor, "B 1"]:
        return self._log_total(differences).unsqueeze(1)

    @staticmethod
    def _log_total(differences: Differences) -> Float[Tensor, " B"]:
        """log sum_{l != c} w_l E e^{f_l - f_c}."""
        terms = 0.5 * differences.variance - differences.mean
        if differences.label_weights is not None:
            terms = terms + differences.label_weights.log()
        # Finite, so that a row with no other class still has a gradient, of zero.
        lowest = torch.finfo(terms.dtype).min / 4
        return torch.logsumexp(terms.scatter(1, differences.classes.unsqueeze(1), lowest), 1)

    @staticmethod
    def _start(n_classes: int) -> tuple[float, ...]:
        return (math.log(max(n_classes - 1, 1)),)

    @staticmethod
    def _between(old: Tensor, new: Tensor, step: Tensor) -> Tensor:
        # alpha, the natural parameter, whose targets are without bias (Ruiz et al. 2018, section 3).
        return torch.logaddexp(old + torch.log1p(-step), new + step.log())


class AugmentReduceLogit(_AugmentReduce):
    """The logit bound of augment and reduce (X 15). Its local parameters are mu and log beta.

    It bounds P(f_c + e_c is the highest of all f_k + e_k) for standard logistic e_k. Probabilities are those of the
    softmax, which are within 0.09 of that for two classes and meet it as the number of classes grows.

    With q(eps) a point mass at 0 it would be one-vs-each minus 2 log 2: as beta -> 0 at mu = 0, the bound without the
    entropy of q tends to that.
    """

    step_arrays = 20

    def row_bounds(self, differences: Differences, locals_: Float[Tensor, "B 2"]) -> Float[Tensor, " B"]:
        mu, log_beta = locals_.unbind(1)
        square = (2.0 * log_beta).exp()
        own: Tensor = _SmoothedSoftplus.apply(mu.unsqueeze(1), torch.zeros_like(mu).unsqueeze(1), square.unsqueeze(1))
        pairs = _SmoothedSoftplus.apply(
            -(differences.mean + mu.unsqueeze(1)), differences.variance, square.unsqueeze(1)
        )
        return mu - 2.0 * own.squeeze(1) + log_beta + _MIXTURE_ENTROPY - differences.sum(pairs)

    @torch.no_grad()
    def optimum(
        self, differences: Differences, start: Float[Tensor, "B 2"] | None = None, *, n_steps: int = _MOST_STEPS
    ) -> Float[Tensor, "B 2"]:
        """By Newton's method in mu and a fixed point in beta, with shorter steps in rows where one lowers the bound."""
        differences = differences.detach()
        if start is None:
            # At variance zero the posterior of eps has its mode near log(1 + sum_l e^{f_l - f_c}).
            exponents = -differences.mean
            if differences.label_weights is not None:
                exponents = exponents + differences.label_weights.log()
            mu = torch.logsumexp(exponents, 1)
            start = torch.stack([mu, torch.zeros_like(mu)], 1)
        best, (value, step, sizes) = start.clone(), self._ascent(differences, start)
        for _ in range(n_steps):
            rows = (sizes > _TOLERANCE).any(1).nonzero().squeeze(1)
            if len(rows) == 0:
                break
            proposed = best[rows] + step[rows]
            new = self._ascent(differences.rows(rows), proposed)
            better = new[0] >= value[rows]
            step[rows] *= 0.5
            sizes[rows] *= 0.5
            for old, part in zip((best, value, step, sizes), (proposed, *new), strict=True):
                old[rows[better]] = part[better]
        return best

    @staticmethod
    def _ascent(
        differences: Differences, locals_: Float[Tensor, "B 2"]
    ) -> tuple[Float[Tensor, " B"], Float[Tensor, "B 2"], Float[Tensor, "B 2"]]:
        """The bound up to a constant, a step up, and its size: the square is about what it gains, of 1 + |bound|."""
        mu, log_beta = locals_.unbind(1)
        square = (2.0 * log_beta).exp()
        prior, by_mu, half_curvature, by_square = _smoothed_moments(mu, torch.zeros_like(mu), square)
        pairs = _smoothed_moments(-(differences.mean + mu.unsqueeze(1)), differences.variance, square.unsqueeze(1))
        pair_value, pair_by_mean, pair_half_curvature, pair_by_square = (differences.sum(moment) for moment in pairs)
        value = mu - 2.0 * prior + log_beta - pair_value
        slope = 1.0 - 2.0 * by_mu + pair_by_mean
        curvature = (2.0 * (2.0 * half_curvature + pair_half_curvature)).clamp(min=torch.finfo(mu.dtype).tiny)
        # Where the curvature has vanished Newton's step is too long; this is far in any of the scales there are.
        furthest = 4.0 * (square + differences.variance.amax(1)).sqrt()
        mu_step = (slope / curvature).clamp(-furthest, furthest)
        # d/d beta^2 vanishes where 1 / (2 beta^2) is this sum, which falls more slowly than 1 / beta^2.
        beta_step = (-0.5 * torch.log(2.0 * square * (2.0 * by_square + pair_by_square))).clamp(-1.0, 1.0)
        sizes = torch.stack([mu_step * curvature.sqrt(), beta_step], 1).abs() / (1.0 + value.abs()).sqrt().unsqueeze(1)
        return value, torch.stack([mu_step, beta_step], 1), sizes

    @staticmethod
    def _start(n_classes: int) -> tuple[float, ...]:
        return (math.log(n_classes), 0.0)

    @staticmethod
    def _between(old: Tensor, new: Tensor, step: Tensor) -> Tensor:
        # The bound is concave in mu and beta: on the way to where it is higher it never falls.
        mu = torch.lerp(old[:, :1], new[:, :1], step)
        return torch.cat([mu, torch.lerp(old[:, 1:].exp(), new[:, 1:].exp(), step).log()], 1)


class _SmoothedSoftplus(torch.autograd.Function):
    """E softplus(f + eps - mu) for f ~ N(mean, variance) and eps of scale beta, elementwise, of a column of beta^2."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, square: Tensor) -> Tensor:
        value, *gradients = _smoothed_moments(mean, variance, square)
        ctx.save_for_backward(*gradients)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        by_mean, by_variance, by_square = ctx.saved_tensors
        return grad * by_mean, grad * by_variance, (grad * by_square).sum(1, keepdim=True)


@torch.no_grad()
def _smoothed_moments(mean: Tensor, variance: Tensor, square: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """sum_j p_j E softplus(f), f ~ N(mean, variance + c_j square), and its derivatives by all three."""
    total = [torch.zeros_like(mean) for _ in range(4)]
    for weight, scale in LOGISTIC_MIXTURE:
        value, by_mean, by_variance = softplus_moments(mean, variance + scale * square)
        for sum_, term in zip(total, (value, by_mean, by_variance), strict=False):
            sum_.add_(term, alpha=weight)
        total[3].add_(by_variance, alpha=weight * scale)
    return total[0], total[1], total[2], total[3]
