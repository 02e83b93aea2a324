"""The papers' methods by name: each is a choice of settings, never code of its own.

A multi-label name is a kernel, then parts that differ from the default, as in the thesis (section 4.5.2): ``ARD``,
``ARD-S-B``, ``SE-UN-PP``. The papers' plain names are the papers' methods, with a full covariance for each latent
function and Adam; the part ``-SB`` is this library's posterior, whose covariances share a basis, by natural gradients.
What is beyond the papers has that posterior without saying so: ``ARD-GPR``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar


class PaperFigures(NamedTuple):
    """What a paper reports for a method: P@1/3/5 in percent on Bibtex, M = 100, P = 159, 50 epochs, and where."""

    table: str
    precision: tuple[float, float, float]


class ClassFigures(NamedTuple):
    """What a paper reports for a method for classes: errors in percent by data set, and where."""

    table: str
    errors: dict[str, float]


class SequenceFigures(NamedTuple):
    """What a paper reports for a method of sequences, means over five folds: by data set, and where.

    Attributes:
        table: where.
        errors: wrong labels of tokens, percent.
        nll_unstruct: sum over test tokens of -log p(y_t).
        nll_struct: sum over test sequences of -log p(y).
    """

    table: str
    errors: dict[str, float]
    nll_unstruct: dict[str, float]
    nll_struct: dict[str, float]


Figures = TypeVar("Figures", PaperFigures, ClassFigures, SequenceFigures)


@dataclass(frozen=True)
class Preset(Generic[Figures]):
    """A named method.

    Attributes:
        settings: constructor arguments of `MultiLabelGPClassifier`, `MultiClassGPClassifier` or `SequenceGPClassifier`.
        source: the paper's name for it and where it is defined or measured.
        description: one line.
        figures: what the papers report for it, if they do.
    """

    settings: Mapping[str, Any]
    source: str
    description: str
    figures: Figures | None


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
    "": ({"posterior": "full-u", "optimizer": "adam"}, ""),
    "-SB": (
        {"posterior": "shared-basis"},
        ", covariances of one basis and natural gradients (beyond the papers, fast)",
    ),
    "-PP": ({"posterior": "parsimonious", "optimizer": "adam"}, ", parsimonious posterior"),
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


def _preset(kernel: str, inducing: str, posterior: str) -> Preset[PaperFigures]:
    of_kernel, paper_name, what = KERNELS[kernel]
    of_inducing, how = INDUCING[inducing]
    of_posterior, which = POSTERIORS[posterior]
    if kernel not in _OF_THE_PAPERS and not posterior:
        of_posterior, which = POSTERIORS["-SB"]
    of_paper = "" if posterior == "-SB" else posterior
    settings = {"linear_term": False, "mean_function": "zero", "inducing": "free", "learn_inducing": True}
    return Preset(
        MappingProxyType(settings | of_kernel | of_inducing | of_posterior),
        f"{paper_name}{inducing}{of_paper}, thesis section 4.5.2" if kernel in _OF_THE_PAPERS else paper_name,
        what + how + which,
        _FIGURES.get(kernel + inducing + posterior),
    )


PRESETS: MappingProxyType[str, Preset[PaperFigures]] = MappingProxyType(
    {
        kernel + inducing + posterior: _preset(kernel, inducing, posterior)
        for kernel in KERNELS
        for inducing in INDUCING
        for posterior in POSTERIORS
        if kernel in _OF_THE_PAPERS or posterior != "-SB"
    }
)
"""Every preset by its name, such as ``ARD-FX``."""


_GP = {"mean_function": "zero", "linear_term": False, "inducing": "free", "mixing": "identity"}
_OF_THESIS = _GP | {"kernel": "se", "n_inducing": 100, "posterior": "full", "optimizer": "adam"}
# X says nothing of its kernel and its number of inducing inputs: the latter is the thesis'.
_OF_X = _OF_THESIS | {"kernel": "ard"}
_LINEAR = {"latents": "linear-point", "mixing": "identity"}
_PAIRS = {"likelihood": "one-vs-each", "class_sampling": "pair"}
_SAMPLED = {"n_sampled_classes": 0.3, "class_sampling": "uniform"}
_T2, _T5, _X1, _T26 = "T Table 3.2", "T Table 3.5", "X Table 1", "T Table 4.26"


def _x1(mnist: float, fashion: float, bibtex: float, delicious: float) -> ClassFigures:
    """X Table 1 reports accuracies."""
    names = ("mnist", "fashion-mnist", "bibtex", "delicious")
    accuracies = zip(names, (mnist, fashion, bibtex, delicious), strict=True)
    return ClassFigures(_X1, {name: round(100 - accuracy, 2) for name, accuracy in accuracies})


def _augmented(link: str, local: str, where: str, figures: ClassFigures | None) -> Preset[ClassFigures]:
    short = {"softmax": "SOFT", "logit": "LOGIT", "amortised": "AMO", "stored": "IL"}
    how = {"amortised": "by a network", "stored": "stored for every row"}
    return Preset(
        _OF_X | _SAMPLED | {"likelihood": f"ar-{link}", "local": local},
        f"AR{short[link]} ({short[local]}), {where}",
        f"augment-and-reduce {link} over a sample of the classes, local parameters {how[local]}",
        figures,
    )


_CLASSES: dict[str, Preset[ClassFigures]] = {
    "OVSE-P": Preset(
        _OF_THESIS | _PAIRS | {"inducing": "separate", "posterior": "parsimonious"},
        "OVSE-P, thesis section 3.7",
        "one-vs-each by class pairs, inducing inputs for each class, parsimonious posterior",
        ClassFigures(_T2, {"mnist": 3.68}),
    ),
    "OVSE-F": Preset(
        _OF_THESIS | _PAIRS | {"inducing": "separate"},
        "OVSE-F, thesis section 3.7",
        "one-vs-each by class pairs, inducing inputs for each class, full posterior",
        ClassFigures(_T2, {"mnist": 3.28}),
    ),
    "OVSE-P-SH": Preset(
        _OF_THESIS | _PAIRS | {"kernel": "se-p-ell", "posterior": "parsimonious"},
        "OVSE-P-SH, thesis section 3.7",
        "one-vs-each by class pairs, shared inducing inputs, a lengthscale per class, parsimonious posterior",
        ClassFigures(_T2, {"mnist": 6.8}),
    ),
    "OVSE-F-SH": Preset(
        _OF_THESIS | _PAIRS,
        "OVSE-F-SH, thesis section 3.7",
        "one-vs-each by class pairs, shared inducing inputs, full posterior",
        ClassFigures(_T2, {"mnist": 4.04}),
    ),
    "RM-P": Preset(
        _OF_THESIS | {"likelihood": "robust-max", "posterior": "parsimonious"},
        "RM-P, thesis section 3.7",
        "robust-max, shared inducing inputs, parsimonious posterior",
        ClassFigures(_T2, {"mnist": 3.9}),
    ),
    "RM-F": Preset(
        _OF_THESIS | {"likelihood": "robust-max"},
        "RM-F, thesis section 3.7; GP-RM in X section 4.2",
        "robust-max, shared inducing inputs, full posterior",
        ClassFigures(f"{_T2}, {_X1}", {"mnist": 2.6, "fashion-mnist": 15.2, "bibtex": 76.7, "delicious": 84.1}),
    ),
    "OVSE-LIN": Preset(
        _PAIRS | _LINEAR,
        "OVSE-LIN, thesis equations 3.22-3.23",
        "one-vs-each by class pairs, linear functions without uncertainty",
        ClassFigures(_T5, {"mnist": 7.4}),
    ),
    "LINEAR-OVE": Preset(
        _LINEAR | {"likelihood": "one-vs-each"},
        "Linear OVE, X section 4.2",
        "one-vs-each, linear functions without uncertainty",
        _x1(91.9, 84.0, 35.2, 17.7),
    ),
    "LINEAR-ARSOFT": Preset(
        _LINEAR | {"likelihood": "ar-softmax", "local": "stored"},
        "Linear ARSOFT, X section 4.2",
        "augment-and-reduce softmax with stored local parameters, linear functions without uncertainty",
        _x1(92.4, 84.2, 36.1, 18.3),
    ),
    "OVE": Preset(
        _OF_X | {"likelihood": "one-vs-each", "n_sampled_classes": None},
        "OVE, X section 3.1",
        "one-vs-each over all classes",
        _x1(96.8, 87.8, 35.9, 16.4),
    ),
    "OVE-SGD": Preset(
        _OF_X | _SAMPLED | {"likelihood": "one-vs-each"},
        "OVE-SGD, X equation 11",
        "one-vs-each over a sample of the classes",
        _x1(95.9, 86.5, 36.4, 16.0),
    ),
    "ARSOFT-AMO": _augmented("softmax", "amortised", "X equations 16-17", _x1(96.9, 87.4, 39.4, 16.4)),
    "ARSOFT-IL": _augmented("softmax", "stored", "X section 3.3", None),
    "ARLOGIT-AMO": _augmented("logit", "amortised", "X equation 15", _x1(96.1, 86.6, 36.8, 16.2)),
    "ARLOGIT-IL": _augmented("logit", "stored", "X section 3.3", None),
    "GP-HL": Preset(
        _OF_X | {"likelihood": "probit-one-vs-each"},
        "GP-HL, X section 4.2",
        "one-vs-each with the normal distribution function",
        _x1(95.8, 86.3, 34.2, 17.5),
    ),
    "MLGPF": Preset(
        _OF_THESIS | {"likelihood": "independent", "mixing": "factor", "n_latent": 20},
        "MLGPF on classes, thesis section 4.5",
        "a factor model of 20 functions with a Bernoulli label for each class",
        ClassFigures(_T26, {"mnist": 3.0}),
    ),
}

_SHARED_BASIS = {
    f"{name}-SB": replace(
        _CLASSES[name],
        settings={**_CLASSES[name].settings, "posterior": "shared-basis", "optimizer": "auto", "n_inducing": "auto"},
        source="none, beyond the papers",
        description=f"{_CLASSES[name].description}{POSTERIORS['-SB'][1]}",
        figures=None,
    )
    for name in ("OVE", "OVE-SGD", "ARSOFT-AMO", "ARSOFT-IL", "ARLOGIT-AMO", "ARLOGIT-IL", "GP-HL")
}

CLASS_PRESETS: MappingProxyType[str, Preset[ClassFigures]] = MappingProxyType(
    {
        name: replace(preset, settings=MappingProxyType(preset.settings))
        for name, preset in (_CLASSES | _SHARED_BASIS).items()
    }
)
"""Every preset of `MultiClassGPClassifier` by its name, such as ``RM-F``."""


_SETS = ("basenp", "chunking", "segmentation", "japanesene")


def _d(table: str, errors: tuple[float, ...], unstruct: tuple[float, ...], *struct: float) -> SequenceFigures:
    parts = (errors, unstruct, struct)
    return SequenceFigures(f"D Table {table}", *(dict(zip(_SETS, part, strict=False)) for part in parts))


_STRUCTURED = {
    "latents": "random-features",
    "n_random_features": 1000,
    "ard": True,
    "n_hidden": 1,
    "weight_covariance": "factorised",
    "kl_weight": 1.0,
}
_FREEZE = {"frequencies_from": 0.1, "hyperparameters_from": 0.3}
_OMEGA = {"": "var-fixed", "-PF": "prior-fixed", "-VR": "var-resampled"}
_FEATURES = {"": ("arccos1", "arc-cosine kernel"), "-RBF": ("se", "squared exponential kernel")}
_LAYERS = (1, 2, 3, 5, 10)
_ARCHITECTURES = {
    "SDGP1": ({"transitions": "gaussian"}, "D section 4.1.1", "Gaussian transitions"),
    "SDGP2": ({"transitions": "indexed"}, "D section 4.1.2", "transitions from functions of the token too"),
    "DGP": ({"transitions": "none"}, "D Table 5.8", "independent tokens"),
}
_OBJECTIVES = {"": ("exact", ""), "-PL": ("pseudo-likelihood", ", piecewise pseudo-likelihood")}
_OF_DEEP = {
    "SDGP1": _d("5.9", (4.96, 9.30, 16.98, 5.06), (566, 386, 331, 318), 555, 491, 399, 388),
    "SDGP1-5": _d("A.1", (7.14, 12.02, 16.55, 6.78), (1693, 518, 263, 530), 1456, 721, 314, 560),
    "SDGP1-10": _d("5.10", (6.67, 13.16, 17.72, 6.78), (804, 560, 271, 631), 918, 759, 333, 657),
    "SDGP2": _d("5.11", (7.17, 9.88, 22.08, 5.89), (1865, 713, 1923, 1314), 2672, 1045, 3228, 940),
    "DGP": _d("5.8", (5.58, 9.89, 16.28, 5.98), (646, 431, 249, 370)),
}


_OTHERS: dict[str, Preset[SequenceFigures]] = {
    "GP-VAR": Preset(
        {"latents": "gp", "kernel": "linear", "posterior": "full", "transitions": "gaussian", "kl_weight": 1.0},
        "GP-Var of Galliani et al. (2016), in D section 5.3.1",
        "sparse Gaussian process with the linear kernel, Gaussian transitions",
        SequenceFigures("D Table 5.6", {"segmentation": 14.5}, {"basenp": 603, "chunking": 407, "japanesene": 339}, {}),
    ),
    "GP-ARCCOS": Preset(
        {"latents": "gp", "kernel": "arccos0", "weighting": "idf", "n_inducing": 1500, "transitions": "gaussian"},
        "none, beyond the papers",
        "sparse Gaussian process with the arc-cosine kernel of order 0 on weighted features, a cold posterior",
        None,
    ),
    "CRF": Preset(
        {"latents": "linear-point", "transitions": "point"},
        "conditional random field, in D section 5.3.1",
        "linear functions and transitions without uncertainty",
        SequenceFigures("D Table 5.6", {"chunking": 8.5, "japanesene": 5.2}, {"segmentation": 253}, {}),
    ),
    "CRF-GAUSSIAN": Preset(
        {"latents": "linear-point", "transitions": "gaussian", "prior_variance": 10.0},
        "none, beyond the papers",
        "linear functions without uncertainty, Gaussian transitions",
        None,
    ),
    "LOGREG": Preset(
        {"latents": "linear-point", "transitions": "none"},
        "multinomial logistic regression, D Table 5.7",
        "linear functions without uncertainty, independent tokens",
        _d("5.7", (5.08, 8.67, 14.99, 5.34), (624, 454, 254, 645)),
    ),
}


def _deep(
    architecture: str, n_layers: int, of_kernel: str, of_omega: str, of_objective: str
) -> Preset[SequenceFigures]:
    settings, where, tail = _ARCHITECTURES[architecture]
    kernel, called = _FEATURES[of_kernel]
    objective, bound = _OBJECTIVES[of_objective]
    chosen = {"kernel": kernel, "frequencies": _OMEGA[of_omega], "objective": objective}
    depth = "" if n_layers == 1 else f" of {n_layers} layers"
    return Preset(
        MappingProxyType({**_STRUCTURED, **_FREEZE, **settings, "n_layers": n_layers, **chosen}),
        f"{architecture}{depth or ', flat'}, {where}",
        f"Gaussian process{depth} by random features, {tail}, {called}, {_OMEGA[of_omega]}{bound}",
        None if of_kernel or of_omega or of_objective else _OF_DEEP.get(_deep_name(architecture, n_layers)),
    )


def _deep_name(architecture: str, n_layers: int) -> str:
    return architecture if n_layers == 1 else f"{architecture}-{n_layers}"


def _sequence_presets() -> dict[str, Preset[SequenceFigures]]:
    deep = {
        _deep_name(name, layers) + kernel + omega + objective: _deep(name, layers, kernel, omega, objective)
        for name in _ARCHITECTURES
        for layers in _LAYERS
        for kernel in _FEATURES
        for omega in _OMEGA
        for objective in (_OBJECTIVES if name != "DGP" else [""])
    }
    return deep | {
        name: replace(preset, settings=MappingProxyType(preset.settings)) for name, preset in _OTHERS.items()
    }


SEQUENCE_PARTS: tuple[dict[str, str], ...] = (
    {suffix: called for suffix, (_, called) in _FEATURES.items()},
    _OMEGA,
    {suffix: bound.removeprefix(", ") for suffix, (_, bound) in _OBJECTIVES.items()},
)
"""Parts of the names of random features, in their order, and what they stand for."""

SEQUENCE_PRESETS: MappingProxyType[str, Preset[SequenceFigures]] = MappingProxyType(_sequence_presets())
"""Every preset of `SequenceGPClassifier` by its name, such as ``SDGP1-5``, ``DGP-RBF-PF`` or ``SDGP2-3-PL``."""
