"""What a model does to its input before the kernel sees it: fitted in training, stored with it, repeated at predict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse
from sklearn.preprocessing import normalize

from extremegp.data.analysis import Analyser, Analyzer
from extremegp.data.block_features import BlockFeatures, are_texts, has_blocks, input_blocks
from extremegp.data.features_base import FeatureKind, Features, stored_column, stored_idf, tfidf
from extremegp.data.rows import with_values
from extremegp.data.text_features import TextFeatures
from extremegp.data.validation import check_inputs
from extremegp.engine.matrices import FloatCSR, FloatMatrix, column_counts, is_mapped, row_blocks
from extremegp.errors import DataError, SettingsError


class RawFeatures(Features):
    """The input unchanged, as float32."""

    kind: ClassVar[str] = "raw"

    def fit(self, X: Any) -> Self:
        self.n_features_in = check_inputs(X).shape[1]
        return self

    def transform(self, X: Any) -> FloatMatrix:
        return check_inputs(X, self.n_features_in)


class UnitFeatures(RawFeatures):
    """Rows scaled to unit Euclidean norm; rows of zeros stay zero."""

    kind: ClassVar[str] = "unit"

    def transform(self, X: Any) -> FloatMatrix:
        checked = super().transform(X)
        if is_mapped(checked):
            return with_values(csr_matrix(checked), _unit_rows)
        if issparse(checked):
            return _unit_rows(checked)
        # Not by scikit-learn here: for arrays it takes rows below 1e-6 for zero.
        peaks = np.maximum(checked.max(axis=1), -checked.min(axis=1))[:, None]
        scaled: NDArray[Any] = checked / np.where(peaks > 0, peaks, np.float32(1))
        # Squares in float32 and their sums in float64, as `normalize` has them for CSR.
        norms = np.sqrt(np.square(scaled).sum(axis=1, dtype=np.float64, keepdims=True))
        np.divide(scaled, np.where(norms > 0, norms, 1.0), out=scaled, casting="unsafe")
        return scaled


class ScaleFeatures(RawFeatures):
    """All features divided by one number, so that rows of the training data are at a mean squared distance of 2.

    For features in the same units, such as the pixels of images: kernels that start with weight 1 then see the data at
    their own scale. Means are taken away, but not from sparse X, which keeps its zeros.
    """

    kind: ClassVar[str] = "scale"

    def fit(self, X: Any) -> Self:
        checked = check_inputs(X)
        self.n_features_in = checked.shape[1]
        mean, variance = _column_moments(checked)
        self._set(mean * (not issparse(checked)), np.full(self.n_features_in, np.sqrt(variance.sum()) or 1.0))
        return self

    def transform(self, X: Any) -> FloatMatrix:
        checked = super().transform(X)
        if issparse(checked):
            if self._centre.any():
                raise DataError(f"features={self.kind!r} was fitted on an array, and X is sparse: pass X.toarray()")
            return csr_matrix(checked.multiply(self._factor), dtype=np.float32)
        scaled: NDArray[np.float32] = (checked - self._centre) * self._factor
        return scaled

    def to_state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        config, _ = super().to_state()
        return config, {"centre": self._centre, "factor": self._factor}

    def _restore(self, config: dict[str, Any], arrays: dict[str, Any]) -> None:
        super()._restore(config, arrays)
        self._centre, self._factor = (stored_column(arrays, name, self.n_features_in) for name in ("centre", "factor"))

    def _set(self, centre: NDArray[np.float64], spread: NDArray[np.float64]) -> None:
        # Of features as small as float32's smallest numbers the factor would overflow.
        factor = np.minimum(1 / spread, np.finfo(np.float32).max)
        self._centre, self._factor = centre.astype(np.float32), factor.astype(np.float32)


class RootFeatures(ScaleFeatures):
    """Square roots of features that are not negative, then scaled as `ScaleFeatures` does.

    Roots even out the spread of counts and intensities: Euclidean distance becomes that of Hellinger. Of new rows that
    go below zero the values there become minus the roots of their size, so that what is a little out of the range of
    training can be predicted.
    """

    kind: ClassVar[str] = "root"

    def fit(self, X: Any) -> Self:
        checked = check_inputs(X)
        if (smallest := checked.min()) < 0:
            raise DataError(
                f"features='root' takes square roots, but X holds {smallest:g}; choose 'scale' or 'standard'"
            )
        return super().fit(_roots(checked))

    def transform(self, X: Any) -> FloatMatrix:
        return super().transform(_roots(check_inputs(X, self.n_features_in)))


class StandardFeatures(ScaleFeatures):
    """Features less their means, divided by their standard deviations and then scaled as `ScaleFeatures` does.

    Constant features become zero.
    """

    kind: ClassVar[str] = "standard"

    def fit(self, X: Any) -> Self:
        checked = check_inputs(X)
        self.n_features_in = checked.shape[1]
        mean, variance = _column_moments(checked)
        # Below this, variance is the rounding of float32.
        varies = variance > 1e-12 * (mean**2 + variance)
        spread = np.sqrt(np.where(varies, variance, np.inf) * max(1, varies.sum()))
        self._set(mean * (not issparse(checked)), spread)
        return self


class TfidfFeatures(Features):
    """Counts weighted as (1 + ln count) (1 + ln((1 + N) / (1 + df))), then rows scaled to unit norm.

    N counts training rows and df those in which the feature occurs: `sklearn.feature_extraction.text.TfidfTransformer`
    with sublinear tf and smooth idf. Counts are at least 1, or 0.
    """

    kind: ClassVar[str] = "tfidf"

    def fit(self, X: Any) -> Self:
        checked = check_inputs(X)
        counts: FloatCSR = csr_matrix(checked)
        for rows in row_blocks(counts.indptr):
            _check_counts(counts.data[int(counts.indptr[rows.start]) : int(counts.indptr[rows.stop])])
        # As scikit-learn weighs them, to the bit; it would copy the columns.
        idf = np.full(counts.shape[1], counts.shape[0] + 1, dtype=np.float32)
        idf /= column_counts(counts).astype(np.float32) + 1
        self._set(np.log(idf) + 1)
        return self

    def transform(self, X: Any) -> FloatMatrix:
        checked = check_inputs(X, self.n_features_in)
        if is_mapped(checked):
            return with_values(csr_matrix(checked), self._weighted)
        weighted = self._weighted(_counts(checked))
        return weighted if issparse(checked) else weighted.toarray()

    def to_state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        config, _ = super().to_state()
        return config, {"idf": self._idf}

    def _restore(self, config: dict[str, Any], arrays: dict[str, Any]) -> None:
        super()._restore(config, arrays)
        self._set(stored_idf(arrays, self.n_features_in))

    def _set(self, idf: NDArray[np.float32]) -> None:
        self._idf = idf
        self.n_features_in = len(idf)

    def _weighted(self, counts: FloatCSR) -> FloatCSR:
        _check_counts(counts.data)
        return tfidf(counts, self._idf)


_STEPS: dict[str, type[Features]] = {
    step.kind: step
    for step in (RawFeatures, UnitFeatures, TfidfFeatures, ScaleFeatures, RootFeatures, StandardFeatures)
}


def make_features(
    kind: FeatureKind | Mapping[str, FeatureKind],
    *,
    min_df: int = 2,
    max_features: int | None = None,
    analyzer: Analyzer = "auto",
    ngram_range: tuple[int, int] | Literal["auto"] = "auto",
    lowercase: bool = True,
) -> Features:
    """An unfitted features step.

    Args:
        kind: "raw" (unchanged), "unit" (rows to unit norm), "tfidf" (counts to tf-idf, unit norm), "text" (texts to
            tf-idf, unit norm), "scale" (all features divided by one number), "root" (the same for their square roots)
            or "standard" (each to mean 0 and the same variance). Or such a kind for every block of the input by its
            name, see `BlockFeatures`.
        min_df: for "text": in how many texts a word must occur.
        max_features: for "text": how many words to keep; None for all.
        analyzer: for "text": what words are, see `Analyser`.
        ngram_range: for "text": the shortest and the longest sequence of them, see `Analyser`.
        lowercase: for "text": whether letters are made small.

    Raises:
        SettingsError: another kind, or an option outside its domain.
    """
    if isinstance(kind, Mapping):
        if not kind or not all(isinstance(name, str) for name in kind):
            raise SettingsError(f"features of blocks are a mapping from their names to kinds, not {kind!r}")
        options: Any = {"min_df": min_df, "max_features": max_features, "analyzer": analyzer}
        options |= {"ngram_range": ngram_range, "lowercase": lowercase}
        kinds: Mapping[str, Any] = kind
        if nested := [name for name, of_block in kinds.items() if not isinstance(of_block, str)]:
            raise SettingsError(f"features of the block {nested[0]!r} must be one kind, not {kinds[nested[0]]!r}")
        return BlockFeatures({name: make_features(of_block, **options) for name, of_block in kind.items()})
    if kind == "text":
        return TextFeatures(min_df, max_features, Analyser(analyzer, ngram_range, lowercase))
    if kind not in tuple(_STEPS):
        raise SettingsError(f"features must be one of {', '.join(get_args(FeatureKind))}, not {kind!r}")
    return _STEPS[kind]()


def chosen_features(kind: Any, X: Any) -> Any:
    """A kind of features, or kinds of blocks, with those that suit X in place of "auto"."""
    if kind == "auto":
        if not has_blocks(X):
            return "text" if are_texts(X) else suited_features(X)
        kind = dict.fromkeys(input_blocks(X), "auto")
    if isinstance(kind, Mapping) and "auto" in kind.values():
        inputs = input_blocks(X)
        return {
            name: of if of != "auto" or name not in inputs else _suited(name, inputs[name]) for name, of in kind.items()
        }
    return kind


def _suited(name: str, block: Any) -> FeatureKind:
    if are_texts(block):
        return "text"
    try:
        return suited_features(block)
    except DataError as error:
        raise DataError(f"block {name!r}: {error}") from error


def suited_features(X: Any) -> FeatureKind:
    """The step that suits a matrix: "unit" for sparse X, "root" for features in the same units, else "standard".

    Features count as being in the same units where none is negative and at least half of them range from less than a
    tenth to more than half of the largest value, as pixels do.
    """
    if issparse(X) or issparse(checked := check_inputs(X)):
        return "unit"
    lowest, highest = checked.min(axis=0), checked.max(axis=0)
    alike = (lowest <= 0.1 * highest.max()) & (highest >= 0.5 * highest.max())
    return "root" if lowest.min() >= 0 < highest.max() and alike.mean() >= 0.5 else "standard"


def _unit_rows(X: FloatCSR) -> FloatCSR:
    # Scaling by the largest entry first keeps the squares of very large and very small float32 in range.
    return csr_matrix(normalize(normalize(X, norm="max"), norm="l2", copy=False))


def _column_moments(X: FloatMatrix) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and variance of every column, in float64 without a float64 copy of X."""
    if issparse(X):
        mean = np.asarray(X.mean(axis=0, dtype=np.float64)).ravel()
        square = np.asarray(X.multiply(X).sum(axis=0, dtype=np.float64)).ravel() / X.shape[0]
        return mean, np.maximum(square - mean**2, 0.0)
    return X.mean(axis=0, dtype=np.float64), X.var(axis=0, dtype=np.float64)


def _roots(X: FloatMatrix) -> FloatMatrix:
    values = X.data if issparse(X) else X
    roots: NDArray[np.float32] = np.copysign(np.sqrt(np.abs(values)), values)
    return csr_matrix((roots, X.indices, X.indptr), shape=X.shape) if issparse(X) else roots


def _counts(X: FloatMatrix) -> FloatCSR:
    counts: FloatCSR = csr_matrix(X, copy=True)
    # A stored zero would become ln 0.
    counts.eliminate_zeros()
    return counts


def _check_counts(values: NDArray[np.float32]) -> None:
    smallest = values.min(initial=1, where=values != 0)
    if smallest < 1:
        raise DataError(
            f"tf-idf weighs counts, which are 0 or at least 1, but X holds {smallest:g}; "
            "for values that are negative, fractional or weighted already choose features='unit' or 'raw'"
        )
