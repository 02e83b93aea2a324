"""What every kind of latent functions provides, and their sum."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extremegp.engine.sparse import Inputs

Module = TypeVar("Module", bound=nn.Module)


class Marginals(NamedTuple):
    """Means and variances of P independent Gaussian function values at each of B inputs.

    Attributes:
        mean: means.
        variance: variances.
        offset: what a mean function adds to the K utilities that the functions are mixed to; None without one.
    """

    mean: Float[Tensor, "B P"]
    variance: Float[Tensor, "B P"]
    offset: Float[Tensor, "B K"] | None = None

    def rows(self, index: Int[Tensor, " R"]) -> Marginals:
        """Those of some of the inputs."""
        return Marginals(*(None if part is None else part[index] for part in self))  # type: ignore[arg-type]

    @classmethod
    def concatenate(cls, blocks: Sequence[Marginals]) -> Marginals:
        """Those of blocks of inputs, one after the other."""
        means, variances, offsets = zip(*blocks, strict=True)
        return cls(torch.cat(means), torch.cat(variances), None if offsets[0] is None else torch.cat(offsets))


class ConditionedLatents(ABC):
    """Latent functions under the current parameters: whatever does not depend on the inputs is already computed.

    Attributes:
        width: about how many numbers `marginals` holds of every input at once.
        alike: whether equal generators give an input equal draws whatever inputs there are with it in a sequence.
    """

    width: int
    alike = False

    @abstractmethod
    def marginals(self, x: Inputs, functions: Int[Tensor, " L"] | None = None) -> Marginals:
        """The posterior of every function, or of some of them, at every input."""

    @abstractmethod
    def draws(
        self, x: Inputs, lengths: Int[Tensor, " S"], n_draws: int, generator: torch.Generator
    ) -> Float[Tensor, "R B P"]:
        """Values of every function at every input, drawn jointly for the inputs of a sequence.

        Args:
            x: the inputs of S sequences, one after the other.
            lengths: how many each has.
            n_draws: R.
            generator: decides the draws.
        """

    @abstractmethod
    def kl(self) -> Float[Tensor, ""]:
        """KL divergence from posterior to prior, summed over the functions."""


class Latents(nn.Module, ABC):
    """P latent functions with a variational posterior."""

    n_functions: int

    @abstractmethod
    def condition(self, seed: int = 0) -> ConditionedLatents:
        """Freeze the current parameters (differentiably): once per step, or once per prediction run.

        Args:
            seed: decides the draw of hidden layers, given which the functions are Gaussian; others have none.
        """

    def project(self) -> None:
        """Restore constraints on the parameters; called after every optimiser step."""


def functions_of(module: Module, functions: Int[Tensor, " L"] | None) -> Module:
    """The module for some of its functions: a copy whose parameters are rows of the module's, differentiably.

    Modules say in `per_function` which of their parameters have a row for each function, and in which dimension.
    """
    if functions is None:
        return module
    part = copy.copy(module)
    dimensions: Mapping[str, int] = getattr(module, "per_function", {})
    part._parameters = {
        name: parameter.index_select(dimensions[name], functions) if name in dimensions else parameter  # type: ignore[misc, union-attr]
        for name, parameter in module._parameters.items()
    }
    part._modules = {
        name: None if child is None else functions_of(child, functions) for name, child in module._modules.items()
    }
    if isinstance(part, Latents):
        part.n_functions = len(functions)
    return part


class _ConditionedSum(ConditionedLatents):
    def __init__(self, terms: Sequence[ConditionedLatents]) -> None:
        self.terms, self.width = terms, max(term.width for term in terms)
        self.alike = all(term.alike for term in terms)

    def marginals(self, x: Inputs, functions: Int[Tensor, " L"] | None = None) -> Marginals:
        parts = [term.marginals(x, functions) for term in self.terms]
        mean, variance, _ = parts[0]
        for part in parts[1:]:
            mean, variance = mean + part.mean, variance + part.variance
        return Marginals(mean, variance)

    def draws(
        self, x: Inputs, lengths: Int[Tensor, " S"], n_draws: int, generator: torch.Generator
    ) -> Float[Tensor, "R B P"]:
        total = self.terms[0].draws(x, lengths, n_draws, generator)
        for term in self.terms[1:]:
            total = total + term.draws(x, lengths, n_draws, generator)
        return total

    def kl(self) -> Float[Tensor, ""]:
        total = self.terms[0].kl()
        for term in self.terms[1:]:
            total = total + term.kl()
        return total


class _ConditionedJoin(ConditionedLatents):
    def __init__(self, parts: Sequence[ConditionedLatents]) -> None:
        self.parts, self.width = parts, max(part.width for part in parts)
        self.alike = all(part.alike for part in parts)

    def marginals(self, x: Inputs, functions: Int[Tensor, " L"] | None = None) -> Marginals:
        found = [part.marginals(x) for part in self.parts]
        both = (torch.cat([of[i] for of in found], dim=-1) for i in (0, 1))  # type: ignore[misc]
        return Marginals(*(part if functions is None else part.index_select(-1, functions) for part in both))

    def draws(
        self, x: Inputs, lengths: Int[Tensor, " S"], n_draws: int, generator: torch.Generator
    ) -> Float[Tensor, "R B P"]:
        return torch.cat([part.draws(x, lengths, n_draws, generator) for part in self.parts], dim=-1)

    def kl(self) -> Float[Tensor, ""]:
        total = self.parts[0].kl()
        for part in self.parts[1:]:
            total = total + part.kl()
        return total


class JoinedLatents(Latents):
    """The functions of several latents, one after the other, independent of each other (SDGP2, D 4.8)."""

    def __init__(self, parts: Sequence[Latents]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.n_functions = sum(part.n_functions for part in parts)

    def condition(self, seed: int = 0) -> ConditionedLatents:
        return _ConditionedJoin([part.condition(seed + i) for i, part in enumerate(self._latents())])

    def project(self) -> None:
        for part in self._latents():
            part.project()

    def _latents(self) -> list[Latents]:
        return [part for part in self.parts if isinstance(part, Latents)]


class SumLatents(Latents):
    """h_p = sum of independent latent functions, each with its own posterior: a sum of kernels with a mean for each."""

    def __init__(self, terms: Sequence[Latents]) -> None:
        super().__init__()
        self.terms = nn.ModuleList(terms)
        self.n_functions = terms[0].n_functions
        if any(term.n_functions != self.n_functions for term in terms):
            raise ValueError("latents that are added need the same number of functions")

    def condition(self, seed: int = 0) -> ConditionedLatents:
        return _ConditionedSum([term.condition(seed) for term in self.terms if isinstance(term, Latents)])

    def project(self) -> None:
        for term in self.terms:
            if isinstance(term, Latents):
                term.project()
