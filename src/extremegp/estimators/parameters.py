"""Parameters that several estimators have in common, each declared and documented once.

Estimators are keyword-only dataclasses that inherit these groups: scikit-learn reads the parameters from the signature
of the constructor that `dataclass` writes, which has those of the last base first. Learnt attributes are
`field(init=False)`, and so no parameters.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from extremegp.data import Features, chosen_features, make_features
from extremegp.engine.kernels import Kernel
from extremegp.errors import DataError

_ARGS = re.compile(r"^Args:\n((?: {4}.*\n?|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+): .*(?:\n {5,}\S.*)*", re.MULTILINE)


@dataclass(kw_only=True, repr=False, eq=False)
class RunParameters:
    """How long training may take, and what it leaves behind.

    Args:
        time_budget: seconds of training to plan for, without those of its start (k-means and regression); None for no
            limit. One that is enough for less than a quarter of the steps warns (`BudgetWarning`); of sequences whose
            latent functions were left as by default, linear functions then take the place of random features.
        checkpoint: file to save progress to. If it exists, training resumes from it. Remove it once the model is saved.
        checkpoint_seconds: seconds between two savings of progress.
        random_state: seed; equal seeds give equal models on the same machine.
        verbose: show a progress bar on standard error once training takes longer than two seconds.
    """

    time_budget: float | None = None
    checkpoint: str | Path | None = None
    checkpoint_seconds: float = 20.0
    random_state: int | np.random.RandomState | None = None
    verbose: bool = True


@dataclass(kw_only=True, repr=False, eq=False)
class TrainingParameters(RunParameters):
    """How a variational model is trained by minibatches.

    Args:
        epochs: passes over the data; "auto" depends on the number of rows.
        batch_size: rows per step; "auto" depends on the number of rows.
        optimizer: "natural" moves the posterior along natural gradients where its family has them, and all else by
            Adam; "adam" moves everything by Adam; "auto" is "adam" for the mean-field posterior, for pairs of classes
            and for robust-max, else "natural".
        natural_step: peak of the schedule of `learning_rate` for natural steps, in (0, 1]; "auto" is 0.05, or longer
            where a batch is most of the rows.
        validation_fraction: share of the rows, or sequences, held out to choose the best epoch by P@1 or accuracy; 0
            holds out none.
        patience: with validation, stop after so many epochs without a better score; None runs all epochs.
        max_memory: bytes that the process may take, or a text such as "8G" or "500M"; None is what the machine has
            free. Where training would take more, parameters that are "auto" are lowered: batch_size, n_sampled_labels,
            optimizer_state, n_latent, n_inducing, n_random_features, in this order, and a line on standard error says
            so. Of classes, n_sampled_classes stays as it is, and n_latent where every class has a function.
        dtype: "float32" or "float64"; covariances are factorised in float64 always.
        device: where to compute, as PyTorch names it.
    """

    epochs: int | Literal["auto"] = "auto"
    batch_size: int | Literal["auto"] = "auto"
    optimizer: Literal["auto", "natural", "adam"] = "auto"
    natural_step: float | Literal["auto"] = "auto"
    validation_fraction: float = 0.0
    patience: int | None = None
    max_memory: int | str | None = None
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "cpu"


@dataclass(kw_only=True, repr=False, eq=False)
class TextParameters:
    """What the words of texts are, where these are the features.

    Args:
        analyzer: what counts as a word of texts: "word" is two or more letters or digits beside each other; "auto" is
            that too, but of scripts without spaces between words, such as Chinese, Japanese and Thai, sequences of one
            to four characters, and words of Indic scripts with their vowel signs. "char" is sequences of characters,
            "char_wb" those within words, for sub-words.
        ngram_range: the shortest and the longest sequence of such words, or of characters with "char" and "char_wb",
            that is a feature; "auto" is (1, 1) of words and (2, 4) of characters.
        lowercase: whether letters of texts are made small first.
        min_df: in how many training texts a word must occur to be a feature.
        max_features: how many words of texts to keep, the most frequent; None for all.
    """

    analyzer: Literal["auto", "word", "char", "char_wb"] = "auto"
    ngram_range: tuple[int, int] | Literal["auto"] = "auto"
    lowercase: bool = True
    min_df: int = 2
    max_features: int | None = None

    def new_features(self, kind: Any, X: Any = None) -> Features:
        """An unfitted features step of this kind; "auto" is what suits X.

        Raises:
            SettingsError: another kind, or a parameter outside its domain.
            DataError: X cannot be used.
        """
        if X is not None or kind == "auto":
            kind = chosen_features(kind, X)
            if isinstance(X, Mapping) and not isinstance(kind, Mapping):
                raise DataError(
                    f"X is a mapping of blocks, so features must be 'auto' or a kind for each of them, not {kind!r}"
                )
        return make_features(kind, **{name: getattr(self, name) for name in TextParameters.__dataclass_fields__})


@dataclass(kw_only=True, repr=False, eq=False)
class RowTrainingParameters(TrainingParameters):
    """How a model of rows, with labels or classes, is trained within memory.

    Args:
        kl_weight: weight of the KL term; 1 is the evidence lower bound, less fits more closely (a cold posterior).
        learning_rate: peak of the one-cycle schedule.
        optimizer_state: where labels or classes are sampled, what Adam keeps of every loading, two moments in the
            precision of the model ("full") or in bfloat16 ("half"); "auto" is "half" where there are over 5e7 loadings.
    """

    kl_weight: float = 1.0
    learning_rate: float = 0.02
    optimizer_state: Literal["auto", "full", "half"] = "auto"


@dataclass(kw_only=True, repr=False, eq=False)
class SparseGPParameters:
    """The latent functions: sparse Gaussian processes.

    Args:
        latents: "landmarks" are Gaussian processes with rows of the training data as inducing inputs, a function for
            each label or class, whose kernel is learnt in closed form beforehand: exact where all rows are taken, and
            quick. "gp" are sparse Gaussian processes with all the choices below. "auto" is "landmarks" where none of
            these is asked for and rows times labels are moderate.
        kernel: of "gp": "linear", "se", "se+linear", "matern12", "matern32", "matern52", "arccos0" or "arccos1" with
            one weight for all features; "linear-ell", "ard", "ard+linear", "matern12-ard" and so on with one for each;
            "se-p-ell" with one for each latent function. "+white" after any of them adds white noise. Or a `Kernel` of
            your own. "auto" is "ard"; of other latents, and of a mean function that is a regression, it is the family
            that predicts training rows left out best, with a weight for each feature: see `hyperparameters_`.
        linear_term: add an exact linear Gaussian process on the D features to every latent function; "auto" does so
            where D is at least 2 M and the mean function is zero.
        posterior: family of q(u): "shared-basis", "mean-field", "full" (whitened), "full-u" or "parsimonious".
        n_latent: P; "auto" is K, at most 300 where labels or classes mix the functions.
        n_inducing: M, at most the number of rows; "auto" is 400, and 2000 landmarks, or 4000 of at most 20 classes.
        inducing: where the inducing inputs live: "free" is anywhere, "subspace" the span of `n_subspace` basis vectors,
            "subspace-basis" such a span that is learnt too, "sparse" on `support_size` features each; "auto" is "free"
            up to 4096 features and "sparse" beyond. Where every class has a function, "separate" gives each M inducing
            inputs of its own (T 3.24).
        n_subspace: R; "auto" is 500, or all dimensions if there are fewer.
        support_size: S; "auto" is 64, or D if that is less.
        lengthscales_in: with a subspace, whether the weights of kernels are those of the D features ("input", T 2.5) or
            of the coordinates in the subspace ("subspace", cheaper).
        inducing_start: inducing inputs start at centres of the inputs ("kmeans", of each class's rows if separate) or
            at random ones ("rows").
        learn_inducing: learn the inducing inputs, or leave them where they start.
        normalise_inducing: keep inducing inputs at unit norm; "auto" does so where the features step makes unit rows.
        mean_function: "zero", or "regression": the utilities' mean is the logit, of classes the logarithm, of an exact
            Gaussian process regression of the labels on the training rows (on a subset of many rows), which the latent
            functions then correct. More accurate where there are few rows, and the model keeps the rows; with
            latents="gp" the variance of the regression is part of the utilities'. "auto" does so where it is cheap.
        relative_jitter: added to the covariance of the inducing inputs, as a fraction of its mean diagonal.
    """

    latents: Literal["auto", "gp", "landmarks", "regression"] = "auto"
    kernel: str | Kernel = "auto"
    linear_term: bool | Literal["auto"] = "auto"
    posterior: str = "shared-basis"
    n_latent: int | Literal["auto"] = "auto"
    n_inducing: int | Literal["auto"] = "auto"
    inducing: str = "auto"
    n_subspace: int | Literal["auto"] = "auto"
    support_size: int | Literal["auto"] = "auto"
    lengthscales_in: Literal["input", "subspace"] = "input"
    inducing_start: Literal["kmeans", "rows"] = "kmeans"
    learn_inducing: bool = True
    normalise_inducing: bool | Literal["auto"] = "auto"
    mean_function: Literal["auto", "zero", "regression"] = "auto"
    relative_jitter: float = 1e-6


def parameter_entries(docstring: str) -> dict[str, str]:
    """What "Args:" of a docstring, without its indentation, says of each parameter: the lines, by name."""
    section = _ARGS.search(docstring)
    return {} if section is None else {entry[1]: entry[0] for entry in _ENTRY.finditer(section[1])}


def with_inherited_parameters(docstring: str, of_bases: Iterable[str]) -> str:
    """A class's docstring whose "Args:" also has what those of its bases, nearest first, say of other parameters.

    Their order is that of the constructor.
    """
    section = _ARGS.search(docstring)
    if section is None:
        return docstring
    entries: dict[str, str] = {}
    for of_class in reversed([docstring, *of_bases]):
        entries |= parameter_entries(of_class)
    return docstring[: section.start(1)] + "\n".join(entries.values()) + "\n\n" + docstring[section.end(1) :]


def complete_docstring(cls: type) -> None:
    """Let a class's own docstring, if it lists parameters, list those that it inherits too."""
    own, *of_bases = (inspect.cleandoc(vars(base).get("__doc__") or "") for base in cls.__mro__)
    if own:
        cls.__doc__ = with_inherited_parameters(own, of_bases)
