"""The papers' multi-label methods by name: each is a choice of settings, never code of its own.

A name is a kernel, then parts that differ from the default, as in the thesis (section 4.5.2): ``ARD``, ``ARD-FX``,
``SE-UN-FP``. The papers' plain names stand for the full posterior, which here is the part ``-FP``: without it the
cheaper shared-basis posterior is used.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, NamedTuple


class Preset(NamedTuple):
    """A named method.

    Attributes:
        settings: constructor arguments of `MultiLabelGPClassifier`.
        source: the paper's name for it and where it is defined or measured.
        description: one line.
    """

    settings: MappingProxyType[str, Any]
    source: str
    description: str


_KERNELS = {
    "LINEAR": ("linear", "LINEAR", "linear kernel without hyper-parameters"),
    "LINEAR-L": ("linear-ell", "LINEAR-ℓ", "linear kernel with a weight per feature"),
    "SE": ("se", "SE", "squared exponential with one lengthscale"),
    "ARD": ("ard", "ARD", "squared exponential with a lengthscale per feature"),
    "ARD/LINEAR": ("ard+linear", "ARD/LINEAR", "ARD and linear kernel added, weights shared"),
}
_INDUCING: dict[str, tuple[dict[str, Any], str]] = {
    "": ({}, ""),
    "-FX": ({"learn_inducing": False}, ", inducing inputs fixed at their start"),
    "-UN": ({"normalise_inducing": False}, ", inducing inputs of any norm"),
}
_POSTERIORS = {
    "": ("shared-basis", ""),
    "-FP": ("full-u", ", a full covariance per latent function as in the papers (slow: time grows with n_latent)"),
}

PRESETS: MappingProxyType[str, Preset] = MappingProxyType(
    {
        name + inducing + posterior: Preset(
            MappingProxyType(
                {"kernel": kernel, "linear_term": False, "posterior": family, "learn_inducing": True} | changes
            ),
            f"{paper_name}{inducing}, thesis section 4.5.2 and Tables 4.5, 4.10",
            what + how + which,
        )
        for name, (kernel, paper_name, what) in _KERNELS.items()
        for inducing, (changes, how) in _INDUCING.items()
        for posterior, (family, which) in _POSTERIORS.items()
    }
)
"""Every preset by its name, such as ``ARD-FX``."""
