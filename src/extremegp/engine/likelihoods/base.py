"""What every likelihood provides, and what it knows of itself."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.batch import Batch, weighted_sum
from extremegp.engine.integrals.races import drawn_probabilities, entropy_parts
from extremegp.engine.latents.base import Marginals
from extremegp.engine.links import Link
from extremegp.engine.mixing import IdentityMixing, Prior
from extremegp.engine.part import Part, StepSizes
from extremegp.engine.sparse import SparseRows
from extremegp.engine.utilities import Utilities

_PRIOR_STEPS = 200


class Prediction(NamedTuple):
    """What a likelihood says of B inputs.

    Attributes:
        means: mean utilities, that labels may be ranked by.
        expectations: E[y], the posterior integrated out: of labels that are 0 or 1, and of classes, probabilities.
    """

    means: Float[Tensor, "B K"]
    expectations: Float[Tensor, "B K"]


class Likelihood(Part):
    """p(y | f): from utilities to labels.

    Attributes:
        labels_independent: whether labels are independent given the utilities, so that `of_marginals` tells of each
            by itself, and processes can share the labels out.
        sums_over_labels: whether the expectation is a sum over labels, which a sample of them estimates.
        has_classes: whether a row has exactly one label, its class.
        has_counts: whether y holds counts, not only 0 and 1.
        has_sequences: whether rows are the elements of sequences, whose lengths it needs.
        needs_independent: whether the utilities have to be independent given the inputs: a function for each label.
        has_locals: whether there are parameters for every instance.
        is_concave: whether the expectation is concave in the means, as natural gradients with long steps want it.
        is_smooth: whether what is expected of known utilities varies smoothly with them.
        takes_known_labels: whether labels of a row that are known already can be conditioned on (T 4.37).
        takes_weights: whether the expectation counts rows, or sequences, by `Batch.weights`.
        takes_soft_labels: whether y may hold probabilities in place of labels: the expectation is that over them too.
        has_prior: whether `prior_bias` is known.
        has_label_terms: whether `label_terms` are known.
        link: of the mean function to utilities; None where there is no regression of the labels to add to them.
        step_arrays: how many arrays of B x L numbers a step of training takes.
    """

    labels_independent: ClassVar[bool] = False
    sums_over_labels: ClassVar[bool] = False
    has_classes: ClassVar[bool] = False
    has_counts: ClassVar[bool] = False
    has_sequences: ClassVar[bool] = False
    needs_independent: ClassVar[bool] = False
    has_locals: ClassVar[bool] = False
    is_concave: ClassVar[bool] = True
    is_smooth: ClassVar[bool] = True
    takes_known_labels: ClassVar[bool] = False
    takes_weights: ClassVar[bool] = False
    takes_soft_labels: ClassVar[bool] = False
    has_prior: ClassVar[bool] = False
    has_label_terms: ClassVar[bool] = False
    link: ClassVar[Link | None] = None
    step_arrays: ClassVar[int] = 10

    @abstractmethod
    def expected_log_prob(self, utilities: Utilities, batch: Batch) -> Float[Tensor, ""]:
        """sum_i w_i E_q[log p(y_i | f_i)] over the batch, or a lower bound of it."""

    @abstractmethod
    def predict(self, utilities: Utilities) -> Prediction:
        """Mean utilities, and the expectation of the labels with the posterior integrated out."""

    def estimates(self, utilities: Utilities) -> Float[Tensor, "B K"]:
        """The expectations of `predict`, near enough to compare many settings by where they are dear."""
        return self.predict(utilities).expectations

    def of_marginals(self, mean: Float[Tensor, "*S B L"], variance: Float[Tensor, "*S B L"]) -> Float[Tensor, "*S B L"]:
        """E[y] of labels that are independent, from the marginals of their utilities alone."""
        raise TypeError(f"labels of {type(self).__name__} are not independent")

    def conditional(self, f: Float[Tensor, "*S B K"]) -> Float[Tensor, "*S B K"]:
        """E[y | f] of known utilities."""
        return self.of_marginals(f, torch.zeros_like(f))

    def label_terms(
        self, mean: Float[Tensor, "B L"], variance: Float[Tensor, "B L"], y: Float[Tensor, "B L"]
    ) -> tuple[Float[Tensor, "B L"], Float[Tensor, "B L"], Float[Tensor, "B L"]]:
        """E log p(y_k | f_k) of every label by itself, with its derivatives by mean and variance of f_k."""
        raise TypeError(f"{type(self).__name__} has no terms of single labels")

    @property
    def stores_rows(self) -> bool:
        """Whether numbers are kept for every training row, beside what is learnt by gradients."""
        return False

    def n_utilities(self, n_labels: int) -> int:
        """How many utilities K labels take."""
        return n_labels

    def start_bias(self, frequencies: NDArray[np.float64], n_rows: int) -> NDArray[np.float64]:
        """Where biases start: what makes the expectation of the labels their frequencies; 0 by default."""
        return np.zeros(self.n_utilities(len(frequencies)))

    def entropies(self, utilities: Utilities) -> tuple[Float[Tensor, "B L"], Float[Tensor, "B L"]]:
        """Entropies of labels in nats: of what is predicted, and their expectation under the posterior.

        Of one class per row they are of the row, B x 1.
        """
        raise TypeError(f"{type(self).__name__} has no entropies in closed form")

    def prior_bias(
        self, frequencies: NDArray[np.float64], n_rows: int, variances: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Means of utilities ~ N(b_k, v_k) under which the labels are expected as often as they are: far from all data.

        Args:
            frequencies: of the labels, K.
            n_rows: N, that keeps frequencies of 0 and 1 from infinity.
            variances: v, K.
        """
        raise TypeError(f"{type(self).__name__} has no prior in closed form")

    def prior(self, frequencies: NDArray[np.float64], n_rows: int) -> Prior:
        """What keeps biases as `prior_bias` has them while variances change."""
        raise TypeError(f"{type(self).__name__} has no prior in closed form")

    def curvature(self, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        """About what -E d2 log p(y | f) / d f_k2 of a training row is, K: where the posterior's variances start."""
        return 0.6 * frequencies * (1 - frequencies)

    def select(self, labels: Int[Tensor, " L"]) -> Likelihood:
        """The likelihood of L of the labels; it shares its parameters with this one."""
        return self

    def step_elements(self, sizes: StepSizes) -> int:
        return self.step_arrays * sizes.rows * sizes.labels


class ClassLikelihood(Likelihood):
    """p(y = c | f) for one class c out of K: every row of y has exactly one entry, in the column of its class.

    Of soft labels a row has an entry for every class that it may have, its probability: sum_c y_c E log p(c).
    """

    has_classes = takes_weights = takes_soft_labels = True
    link = "log"

    def conditional(self, f: Float[Tensor, "*S B K"]) -> Float[Tensor, "*S B K"]:
        """p(y = k | f) of known utilities; of the softmax and its bounds, softmax."""
        return f.softmax(-1)

    @abstractmethod
    def probabilities(self, utilities: Utilities) -> Float[Tensor, "B K"]:
        """p(y = k) with the posterior integrated out; rows add up to one."""

    def predict(self, utilities: Utilities) -> Prediction:
        return Prediction(utilities.means(), self.probabilities(utilities))

    def estimates(self, utilities: Utilities) -> Float[Tensor, "B K"]:
        return drawn_probabilities(utilities, self.conditional)

    def entropies(self, utilities: Utilities) -> tuple[Float[Tensor, "B 1"], Float[Tensor, "B 1"]]:
        """By draws of the latent functions, the same ones for every row and call."""
        total, aleatoric = entropy_parts(utilities, self.conditional)
        return total.unsqueeze(1), aleatoric.unsqueeze(1)

    def start_bias(self, frequencies: NDArray[np.float64], n_rows: int) -> NDArray[np.float64]:
        return log_frequencies(frequencies, n_rows)

    @torch.no_grad()
    def prior_bias(
        self, frequencies: NDArray[np.float64], n_rows: int, variances: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        wanted = torch.from_numpy(log_frequencies(frequencies, n_rows))
        wanted -= wanted.logsumexp(0)
        nothing, variance = torch.zeros_like(wanted), torch.from_numpy(variances)
        mixing, bias = IdentityMixing(nothing, nothing), wanted.clone()
        for _ in range(_PRIOR_STEPS):
            found = self.probabilities(Utilities(mixing, Marginals(bias[None], variance[None])))[0]
            missing = wanted - found.clamp(min=1e-30).log()
            bias += missing.clamp(-1.0, 1.0)
            # Utilities have no origin; without it biases would wander.
            bias -= bias.mean()
            if float(missing.abs().max()) < 1e-6:
                break
        return bias.numpy()

    def step_elements(self, sizes: StepSizes) -> int:
        return super().step_elements(sizes) * sizes.classes


class ClassEntries(NamedTuple):
    """The classes of a batch one by one: every row with its class or, of soft labels, with each that it may have.

    Attributes:
        utilities: of the row of each entry.
        classes: one for each.
        rows: of the batch; None where every row has one entry.
        weights: what each counts, the weight of the row times the probability of the class; None for 1 throughout.
    """

    utilities: Utilities
    classes: Int[Tensor, " E"]
    rows: Int[Tensor, " E"] | None
    weights: Float[Tensor, " E"] | None

    @classmethod
    def of(cls, utilities: Utilities, batch: Batch) -> ClassEntries:
        """Those of a batch."""
        y = batch.y
        if _one_each(y):
            return cls(utilities, y.columns, None, batch.weights)
        return cls(utilities.rows(y.rows), y.columns, y.rows, batch.weighted_y.values)

    def sum(self, terms: Float[Tensor, " E"]) -> Float[Tensor, ""]:
        """The sum of a term for each entry."""
        return weighted_sum(terms, self.weights)


def of_classes(f: Float[Tensor, "*S B K"], y: SparseRows) -> Float[Tensor, "*S B"]:
    """sum_c y_ic f_ic of every row: of one class, its own."""
    if _one_each(y):
        return f.gather(-1, y.columns.unsqueeze(1).expand(*f.shape[:-1], 1)).squeeze(-1)
    return f.new_zeros(f.shape[:-1]).index_add(-1, y.rows, f[..., y.rows, y.columns] * y.values)


def _one_each(y: SparseRows) -> bool:
    """Whether every row has one class, which is certain then."""
    return len(y.columns) == y.shape[0]


def log_frequencies(frequencies: NDArray[np.float64], n_rows: int) -> NDArray[np.float64]:
    """Logarithms of frequencies, finite for classes of no row."""
    return np.asarray(np.log(np.maximum(frequencies, 0.5 / n_rows)))


def log_odds(frequencies: NDArray[np.float64], n_rows: int) -> NDArray[np.float64]:
    """Log-odds of frequencies, finite for labels of no row and of all."""
    frequencies = np.clip(frequencies, 0.5 / n_rows, 1 - 0.5 / n_rows)
    return np.asarray(np.log(frequencies / (1 - frequencies)))
