"""Why a label is predicted: shares of training documents and of features in the regression of the label."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from extremegp.data import Features, FloatMatrix
from extremegp.errors import DataError
from extremegp.estimators.base import GPEstimator
from extremegp.estimators.row_ids import RowIds
from extremegp.settings.domains import number


class Share(NamedTuple):
    """What a document or a feature adds to the regression of a label.

    Attributes:
        name: of the document, as its id, or of the feature: the word, or the number of the column.
        share: that is added; less than 0 if it is taken away.
    """

    name: str
    share: float


class Explanation(NamedTuple):
    """Why a label has its probability.

    The regression of the label says t(x) = mu + sum_i w_i(x) (y_i - mu): every training document adds its share to the
    frequency mu. The share of a document is split over the features by which the document is like the input, in
    proportion to what each adds to their inner product under the kernel's weights.

    Attributes:
        label: its name.
        probability: that it applies.
        frequency: mu.
        regression: t.
        documents: the largest shares, by size, and "others"; they add up to t - mu.
        features: likewise, and "others", which is also what documents add that have no feature with the input.
        parts: what adds up to the mean of the label's utility: the "prior", the "regression" and "functions" trained by
            steps; empty for label trees, whose last stage is no sum.
    """

    label: Any
    probability: float
    frequency: float
    regression: float
    documents: list[Share]
    features: list[Share]
    parts: dict[str, float]


class VotingRows(NamedTuple):
    """Training rows with what each counts in the regression at an input.

    Attributes:
        places: of the rows, n.
        weights: w, n.
    """

    places: NDArray[np.int64]
    weights: NDArray[np.float64]


Told = tuple[VotingRows, NDArray[np.int64], NDArray[Any], list[dict[str, float]]]
"""Of an input the rows that vote, labels, their probabilities, and parts of their utilities."""


class ExplainsLabels(GPEstimator):
    """An estimator that says which of the rows that it keeps, and which features, a label rests on."""

    features_: Features
    ids_: RowIds

    def explain(
        self, X: Any, labels: Sequence[Any] | None = None, *, k: int = 3, n: int = 5
    ) -> list[list[Explanation]]:
        """Why labels have their probabilities: which training documents and features say so in the regression.

        Args:
            X: inputs, as in `fit`; each takes as long as hundreds of predictions.
            labels: names of those to explain, the same for every row; by default the best of each row.
            k: how many labels of each row, where these are not given.
            n: how many documents, and features, are named of each.

        Returns:
            Explanations for every row, the likeliest label first, or in the order of `labels`.

        Raises:
            DataError: X cannot be used, or a label is not known.
            SettingsError: the model keeps no rows (see `can_learn`), or an argument is outside its domain.
        """
        self._check_learns()
        k, n = (number(name, value, low=1, integer=True) for name, value in (("k", k), ("n", n)))
        x, space = self._transform(X), self.classes_.tolist()
        wanted: NDArray[np.int64] | None = None
        if labels is not None:
            if unknown := [label for label in labels if label not in space]:
                raise DataError(f"the model has no label {unknown[0]!r}")
            wanted = np.array([space.index(label) for label in labels], np.int64)
        inputs, scales, names = self._inputs(), self._feature_weights(), self._feature_names()
        found: list[list[Explanation]] = []
        for row, (voting, best, p, parts) in enumerate(self._told(x, wanted, k)):
            of_row = []
            rows = inputs[voting.places]
            for place, label in enumerate(best.tolist()):
                frequency, labelled = self._frequency(label), self._having(voting.places, label)
                shares, documents = document_shares(voting, labelled, frequency, self.ids_.names, n)
                features = feature_shares(shares, x[row : row + 1], rows, scales, names, n)
                of_row.append(
                    Explanation(
                        space[label],
                        float(p[place]),
                        frequency,
                        frequency + float(shares.sum()),
                        documents,
                        features,
                        parts[place] if parts else {},
                    )
                )
            found.append(of_row)
        return found

    @abstractmethod
    def _told(self, x: FloatMatrix, wanted: NDArray[np.int64] | None, k: int) -> Iterator[Told]:
        """For every input the rows that vote, labels, their probabilities, and parts of their utilities."""

    @abstractmethod
    def _frequency(self, label: int) -> float:
        """Of a label, as its regression has it."""

    @abstractmethod
    def _having(self, places: NDArray[np.int64], label: int) -> NDArray[np.float64]:
        """The label in some rows."""

    @abstractmethod
    def _feature_weights(self) -> NDArray[np.float64]:
        """By which inner products of rows weigh features, D."""

    def _feature_names(self) -> list[str] | None:
        known = getattr(self, "feature_names_in_", None)
        return self.features_.names() if known is None else [str(name) for name in known]

    @abstractmethod
    def _check_learns(self) -> None:
        """Refuse a model that does not keep its rows."""

    @abstractmethod
    def _inputs(self) -> FloatMatrix:
        """The features of all rows."""


def document_shares(
    voting: VotingRows, labelled: NDArray[np.float64], frequency: float, names: Sequence[str], n: int
) -> tuple[NDArray[np.float64], list[Share]]:
    """The share of each voting row, and the largest of them by name.

    Args:
        voting: the rows.
        labelled: y of the label in each, n.
        frequency: mu.
        names: of all training rows.
        n: how many are named.
    """
    shares = voting.weights * (labelled - frequency)
    return shares, _largest(shares, [names[place] for place in voting.places.tolist()], n, 0.0)


def feature_shares(
    shares: NDArray[np.float64],
    x: FloatMatrix,
    rows: FloatMatrix,
    weights: NDArray[np.float64],
    names: Sequence[str] | None,
    n: int,
) -> list[Share]:
    """What features add, by way of the rows.

    Args:
        shares: of the rows, R.
        x: the input, 1 x D.
        rows: these rows, R x D.
        weights: of the features in inner products, D.
        names: of the features; None for their numbers.
        n: how many are named.
    """
    own = scipy.sparse.csr_matrix(x)
    weighed = scipy.sparse.diags_array(own.data * weights[own.indices])
    products = scipy.sparse.csr_matrix(scipy.sparse.csc_matrix(rows)[:, own.indices] @ weighed)
    totals = np.asarray(products.sum(axis=1)).ravel()
    # What cancels nearly is no sum that could be shared.
    sizes = np.asarray(abs(products).sum(axis=1)).ravel()
    shared = np.abs(totals) > 1e-3 * np.maximum(sizes, 1e-30)
    factors = np.where(shared, shares / np.where(shared, totals, 1), 0)
    found = products.T @ factors
    columns = own.indices.tolist()
    return _largest(
        found, [str(each) if names is None else names[each] for each in columns], n, shares.sum() - found.sum()
    )


def _largest(shares: NDArray[np.float64], names: list[str], n: int, rest: float) -> list[Share]:
    order = np.argsort(-np.abs(shares), kind="stable")[:n]
    order = order[shares[order] != 0]
    named = [Share(names[place], float(shares[place])) for place in order.tolist()]
    return [*named, Share("others", float(rest + shares.sum() - shares[order].sum()))]
