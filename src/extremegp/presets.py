"""The papers' multi-label methods by name: each is a choice of settings, never code of its own.

A name is a kernel, then parts that differ from the default, as in the thesis (section 4.5.2): ``ARD``, ``ARD-S-B``,
``SE-UN-PP``. The papers' plain names stand for the full posterior, which here is the part ``-FP``: without it the
cheaper shared-basis posterior is used.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, NamedTuple


class PaperFigures(NamedTuple):
    """What a paper reports for a method: P@1/3/5 in percent on Bibtex, M = 100, P = 159, 50 epochs, and where."""

    table: str
    precision: tuple[float, float, float]


class Preset(NamedTuple):
    """A named method.

    Attributes:
        settings: constructor arguments of `MultiLabelGPClassifier`.
        source: the paper's name for it and where it is defined or measured.
        description: one line.
        figures: what the thesis reports for it, if it does.
    """

    settings: MappingProxyType[str, Any]
    source: str
    description: str
    figures: PaperFigures | None


KERNELS: dict[str, tuple[dict[str, Any], str, str]] = {
    "LINEAR": ({"kernel": "linear"}, "LINEAR", "linear kernel without hyper-parameters"),
    "LINEAR-L": ({"kernel": "linear-ell"}, "LINEAR-ℓ", "linear kernel with a weight per feature"),
    "SE": ({"kernel": "se"}, "SE", "squared exponential with one lengthscale"),
    "SE-P-L": ({"kernel": "se-p-ell"}, "SE-p-ℓ", "squared exponential with a lengthscale per latent function (slow)"),
    "ARD": ({"kernel": "ard"}, "ARD", "squared exponential with a lengthscale per feature"),
    "ARD/LINEAR": ({"kernel": "ard+linear"}, "ARD/LINEAR", "ARD and linear kernel added, weights shared"),
    "ARD/LINEAR-EXACT": (
        {"kernel": "ard", "linear_term": True},
        "ARD/LINEAR",
        "ARD by inducing inputs plus a linear kernel that is exact in feature space",
    ),
    "ARD-GPR": (
        {"kernel": "ard", "mean_function": "regression"},
        "none, beyond the papers",
        "ARD that corrects an exact Gaussian process regression of the labels",
    ),
    "ARD-GPR-PS": (
        {"kernel": "ard", "mean_function": "regression", "propensity": (1.0, 1.5)},
        "none, beyond the papers",
        "the same, and labels that are rare for missing more often: ranks the tail higher",
    ),
}
INDUCING: dict[str, tuple[dict[str, Any], str]] = {
    "": ({}, ""),
    "-S": ({"inducing": "subspace"}, ", inducing inputs in a fixed subspace"),
    "-S-B": ({"inducing": "subspace-basis"}, ", inducing inputs in a subspace that is learnt too"),
    "-FX": ({"learn_inducing": False}, ", inducing inputs fixed at their start"),
    "-S-FX": (
        {"inducing": "subspace", "learn_inducing": False},
        ", inducing inputs fixed at their start in a fixed subspace",
    ),
    "-UN": ({"normalise_inducing": False}, ", inducing inputs of any norm"),
    "-S-UN": ({"inducing": "subspace", "normalise_inducing": False}, ", inducing inputs of any norm in a subspace"),
}
POSTERIORS: dict[str, tuple[dict[str, Any], str]] = {
    "": ({"posterior": "shared-basis"}, ""),
    "-FP": ({"posterior": "full-u"}, ", a full covariance per latent function as in the papers (slow)"),
    "-PP": ({"posterior": "parsimonious"}, ", parsimonious posterior (slow)"),
}
_OF_THE_PAPERS = KERNELS.keys() - {"ARD-GPR", "ARD-GPR-PS"}
_FIGURES = {
    "LINEAR": PaperFigures("T Table 4.5", (57.85, 34.90, 25.83)),
    "LINEAR-L": PaperFigures("T Table 4.5", (61.27, 37.51, 27.49)),
    "SE": PaperFigures("T Table 4.5", (59.88, 36.34, 26.97)),
    "SE-P-L": PaperFigures("T Table 4.5", (58.41, 34.84, 26.08)),
    "ARD": PaperFigures("T Table 4.5", (62.98, 38.36, 28.22)),
    "ARD/LINEAR": PaperFigures("T Table 4.5", (62.70, 38.46, 28.35)),
    "ARD-S": PaperFigures("T Table 4.6", (62.07, 38.09, 27.98)),
    "ARD-S-B": PaperFigures("T Table 4.6", (62.35, 37.68, 27.79)),
    "ARD-PP": PaperFigures("T Table 4.7", (41.39, 23.21, 18.02)),
}


def _preset(kernel: str, inducing: str, posterior: str) -> Preset:
    of_kernel, paper_name, what = KERNELS[kernel]
    of_inducing, how = INDUCING[inducing]
    of_posterior, which = POSTERIORS[posterior]
    settings = {"linear_term": False, "mean_function": "zero", "inducing": "free", "learn_inducing": True}
    paper_suffix = "" if posterior == "-FP" else posterior
    return Preset(
        MappingProxyType(settings | of_kernel | of_inducing | of_posterior),
        f"{paper_name}{inducing}{paper_suffix}, thesis section 4.5.2" if kernel in _OF_THE_PAPERS else paper_name,
        what + how + which,
        _FIGURES.get(kernel + inducing + paper_suffix),
    )


PRESETS: MappingProxyType[str, Preset] = MappingProxyType(
    {
        kernel + inducing + posterior: _preset(kernel, inducing, posterior)
        for kernel in KERNELS
        for inducing in INDUCING
        for posterior in POSTERIORS
    }
)
"""Every preset by its name, such as ``ARD-FX``."""
