"""Checks that any part of a model has to pass, one call a part: for parts of your own, before you train with them.

A check takes a part as its constructor makes it, works on copies in double precision with parameters away from their
start, and raises an `AssertionError` that says what does not hold. It takes about a second.
"""

from __future__ import annotations

from typing import Any

from extremegp.engine.inducing import InducingInputs
from extremegp.engine.kernels import Kernel
from extremegp.engine.latents import Latents
from extremegp.engine.likelihoods import Likelihood
from extremegp.engine.mixing import Mixing
from extremegp.engine.part import Part
from extremegp.engine.posteriors import Posterior
from extremegp.testing.inducing import check_inducing
from extremegp.testing.kernels import check_kernel
from extremegp.testing.latents import check_latents
from extremegp.testing.likelihoods import LogProb, check_likelihood
from extremegp.testing.memory import check_memory
from extremegp.testing.mixing import check_mixing
from extremegp.testing.posteriors import check_posterior

__all__ = [
    "CHECKS",
    "LogProb",
    "check_inducing",
    "check_kernel",
    "check_latents",
    "check_likelihood",
    "check_memory",
    "check_mixing",
    "check_part",
    "check_posterior",
]

CHECKS: dict[type[Part], Any] = {
    Kernel: check_kernel,
    InducingInputs: check_inducing,
    Posterior: check_posterior,
    Latents: check_latents,
    Mixing: check_mixing,
    Likelihood: check_likelihood,
}
"""What checks each kind of part."""


def check_part(part: Part, **options: Any) -> None:
    """Check a part by what its kind has to keep to.

    Args:
        part: a kernel, inducing inputs, a posterior, latent functions, a mixing, or a likelihood; it is not changed.
        options: of the check of that kind, such as `check_kernel`.

    Raises:
        AssertionError: says what does not hold.
        TypeError: it is of none of these kinds.
    """
    for kind, check in CHECKS.items():
        if isinstance(part, kind):
            check(part, **options)
            return
    kinds = ", ".join(kind.__name__ for kind in CHECKS)
    raise TypeError(f"{type(part).__name__} is none of {kinds}")
