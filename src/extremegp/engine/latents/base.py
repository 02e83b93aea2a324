"""What every kind of latent functions provides, their sum, and several kinds side by side."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import ClassVar, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extremegp.engine.part import Part
from extremegp.engine.sparse import Inputs, matmul
from extremegp.engine.weight_covariance import WeightCovariance


class Marginals(NamedTuple):
    """Means and variances of P independent Gaussian function values at each of B inputs."""

    mean: Float[Tensor, "B P"]
    variance: Float[Tensor, "B P"]

    def rows(self, index: Int[Tensor, " R"] | slice) -> Marginals:
        """Those of some of the inputs."""
        return Marginals(self.mean[index], self.variance[index])

    @classmethod
    def concatenate(cls, blocks: Sequence[Marginals]) -> Marginals:
        """Those of blocks of inputs, one after the other."""
        means, variances = zip(*blocks, strict=True)
        return cls(torch.cat(means), torch.cat(variances))


class ConditionedLatents(ABC):
    """Latent functions under the current parameters: whatever does not depend on the inputs is already computed.

    Attributes:
        width: about how many numbers `marginals` holds of every input at once.
        alike: whether equal generators give an input equal draws whatever inputs there are with it in a sequence.
    """

    width: int
    alike = False

    @abstractmethod
    def marginals(self, x: Inputs) -> Marginals:
        """The posterior of every function at every input."""

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

    @abstractmethod
    def select(self, functions: Int[Tensor, " L"]) -> ConditionedLatents:
        """L of the functions, numbers ascending, with the KL divergence of all that were conditioned."""

    def unseen_variance(self, squares: Float[Tensor, " B"]) -> Float[Tensor, "B P"] | None:
        """What features that no training input has add to the variances; None for nothing.

        Args:
            squares: of every input, the sum of the squares of these features.
        """
        return None


class Latents(Part):
    """P latent functions with a variational posterior.

    Attributes:
        n_functions: P.
        of_features: whether their inputs are features of landmarks, see `Landmarks`.
        is_closed: whether their posterior is had in closed form, so that no steps train it.
        kl_weight: how often their KL divergence counts, where they stand for more functions than they are.
    """

    n_functions: int
    of_features: ClassVar[bool] = False
    is_closed: ClassVar[bool] = False
    kl_weight: float = 1.0

    @abstractmethod
    def condition(self, seed: int = 0, functions: Int[Tensor, " L"] | None = None) -> ConditionedLatents:
        """Freeze the current parameters (differentiably): once per step, or once per prediction run.

        Args:
            seed: decides the draw of hidden layers, given which the functions are Gaussian; others have none.
            functions: condition these alone, numbers ascending, and leave out what the others take; all by default.
        """

    def at_mode(self) -> ConditionedLatents:
        """As `condition`, and where the posterior has a mode that was found before its covariance, that alone."""
        return self.condition()

    def mode_of_covariances(self, unwhitened: Callable[[Tensor], Tensor]) -> ConditionedLatents | None:
        """That mode of functions of features of landmarks, as functions of covariances with these; None for others.

        Args:
            unwhitened: from coefficients of features, M x P, to those of covariances.
        """
        return None

    def with_weights(self) -> Iterator[tuple[int, WeightedLatents]]:
        """What in it is linear in features that stay, with the number of its first function."""
        return iter(())


class WeightedLatents(Latents):
    """Functions v_p'phi(x), v_p ~ N(0, t I), whose weights may share one posterior covariance."""

    @property
    @abstractmethod
    def n_weights(self) -> int:
        """How many features phi has."""

    @property
    def covariance(self) -> WeightCovariance | None:
        """S / t of the weights of every function; None where each has its own."""
        return cast("WeightCovariance | None", self._modules.get("shared_covariance"))

    @property
    @abstractmethod
    def prior_scale(self) -> Float[Tensor, ""]:
        """t."""

    @abstractmethod
    def weight_features(self, x: Inputs) -> Inputs:
        """phi(x)."""

    @abstractmethod
    def unseen_prior(self, squares: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The variance of a function given what is known of its inputs, see `ConditionedLatents.unseen_variance`."""

    @abstractmethod
    def forget_own(self) -> None:
        """Give up the covariances of the functions themselves."""

    def share(self, covariance: WeightCovariance) -> None:
        """Let a covariance take the place of those that functions have themselves."""
        self.forget_own()
        self.add_module("shared_covariance", covariance)


class ConditionedWeights(ConditionedLatents):
    """Functions whose weights share one posterior covariance.

    Args:
        latents: what has it.
        mean: of the weights.
        kl: divergence from the prior beside that of the covariance.
    """

    def __init__(
        self, latents: WeightedLatents, mean: Float[Tensor, "F P"], kl: Callable[[], Float[Tensor, ""]]
    ) -> None:
        assert latents.covariance is not None
        self.latents, self.covariance, self.mean, self._own_kl = latents, latents.covariance, mean, kl
        self.width, self._n_conditioned = max(mean.shape[1], self.covariance.width), mean.shape[1]

    def marginals(self, x: Inputs) -> Marginals:
        phi = self.latents.weight_features(x)
        mean = matmul(phi, self.mean)
        variance = self.latents.prior_scale * self.covariance.variance(phi)
        return Marginals(mean, variance.unsqueeze(-1).expand_as(mean))

    def draws(
        self, x: Inputs, lengths: Int[Tensor, " S"], n_draws: int, generator: torch.Generator
    ) -> Float[Tensor, "R B P"]:
        phi = self.latents.weight_features(x)
        noise = self.covariance.noise(phi, lengths, (n_draws, self.mean.shape[1]), generator)
        return matmul(phi, self.mean) + self.latents.prior_scale.sqrt() * noise

    def kl(self) -> Float[Tensor, ""]:
        return self._n_conditioned * self.covariance.divergence + self._own_kl()

    def select(self, functions: Int[Tensor, " L"]) -> ConditionedWeights:
        part = copy(self)
        part.mean = self.mean.index_select(1, functions)
        return part

    def unseen_variance(self, squares: Float[Tensor, " B"]) -> Float[Tensor, "B P"]:
        return self.latents.unseen_prior(squares).unsqueeze(-1).expand(-1, self.mean.shape[1])


class _Together(ConditionedLatents):
    """Several conditioned latents that are independent of each other."""

    def __init__(self, parts: Sequence[ConditionedLatents]) -> None:
        self.parts, self.width = parts, max(part.width for part in parts)
        self.alike = all(part.alike for part in parts)

    def _unseen(self, squares: Float[Tensor, " B"]) -> list[Float[Tensor, "B _"] | None]:
        return [part.unseen_variance(squares) for part in self.parts]

    def kl(self) -> Float[Tensor, ""]:
        total = self.parts[0].kl()
        for part in self.parts[1:]:
            total = total + part.kl()
        return total


class _ConditionedSum(_Together):
    def marginals(self, x: Inputs) -> Marginals:
        mean, variance = self.parts[0].marginals(x)
        for part in self.parts[1:]:
            other = part.marginals(x)
            mean, variance = mean + other.mean, variance + other.variance
        return Marginals(mean, variance)

    def draws(
        self, x: Inputs, lengths: Int[Tensor, " S"], n_draws: int, generator: torch.Generator
    ) -> Float[Tensor, "R B P"]:
        total = self.parts[0].draws(x, lengths, n_draws, generator)
        for part in self.parts[1:]:
            total = total + part.draws(x, lengths, n_draws, generator)
        return total

    def select(self, functions: Int[Tensor, " L"]) -> ConditionedLatents:
        return _ConditionedSum([part.select(functions) for part in self.parts])

    def unseen_variance(self, squares: Float[Tensor, " B"]) -> Float[Tensor, "B P"] | None:
        found = [part for part in self._unseen(squares) if part is not None]
        return torch.stack(found).sum(0) if found else None


class _ConditionedJoin(_Together):
    def __init__(self, parts: Sequence[ConditionedLatents], ends: Sequence[int]) -> None:
        super().__init__(parts)
        self.ends = ends

    def marginals(self, x: Inputs) -> Marginals:
        means, variances = zip(*(part.marginals(x) for part in self.parts), strict=True)
        return Marginals(torch.cat(means, dim=-1), torch.cat(variances, dim=-1))

    def draws(
        self, x: Inputs, lengths: Int[Tensor, " S"], n_draws: int, generator: torch.Generator
    ) -> Float[Tensor, "R B P"]:
        return torch.cat([part.draws(x, lengths, n_draws, generator) for part in self.parts], dim=-1)

    def unseen_variance(self, squares: Float[Tensor, " B"]) -> Float[Tensor, "B P"] | None:
        found = [part for part in self._unseen(squares) if part is not None]
        # All members are of one kind.
        return torch.cat(found, dim=-1) if found else None

    def select(self, functions: Int[Tensor, " L"]) -> ConditionedLatents:
        own = [*_shares(functions, self.ends)]
        return _ConditionedJoin(
            [part.select(share) for part, share in zip(self.parts, own, strict=True)],
            torch.tensor([len(share) for share in own]).cumsum(0).tolist(),
        )


def _shares(functions: Int[Tensor, " L"], ends: Sequence[int]) -> Iterator[Int[Tensor, " n"]]:
    """Which functions of each of several latents these are, counted from its own first."""
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        yield functions[(functions >= start) & (functions < end)] - start


class _Several(Latents):
    def __init__(self, parts: Sequence[Latents]) -> None:
        super().__init__()
        self.register_module(self._list_name, nn.ModuleList(parts))

    _list_name = "parts"

    @property
    def members(self) -> list[Latents]:
        """The latents that these are made of."""
        return [*self.get_submodule(self._list_name).children()]  # type: ignore[list-item]


class JoinedLatents(_Several):
    """The functions of several latents, one after the other, independent of each other (SDGP2, D 4.8)."""

    def __init__(self, parts: Sequence[Latents]) -> None:
        super().__init__(parts)
        self.n_functions = sum(part.n_functions for part in parts)

    def with_weights(self) -> Iterator[tuple[int, WeightedLatents]]:
        first = 0
        for part in self.members:
            yield from ((first + own, weighted) for own, weighted in part.with_weights())
            first += part.n_functions

    def condition(self, seed: int = 0, functions: Int[Tensor, " L"] | None = None) -> ConditionedLatents:
        members = self.members
        ends = torch.tensor([part.n_functions for part in members]).cumsum(0).tolist()
        if functions is None:
            return _ConditionedJoin([part.condition(seed + i) for i, part in enumerate(members)], ends)
        own = [*_shares(functions, ends)]
        return _ConditionedJoin(
            [part.condition(seed + i, share) for i, (part, share) in enumerate(zip(members, own, strict=True))],
            torch.tensor([len(share) for share in own]).cumsum(0).tolist(),
        )


class SumLatents(_Several):
    """h_p = sum of independent latent functions, each with its own posterior: a sum of kernels with a mean for each."""

    _list_name = "terms"

    def __init__(self, terms: Sequence[Latents]) -> None:
        super().__init__(terms)
        self.n_functions = terms[0].n_functions
        if any(term.n_functions != self.n_functions for term in terms):
            raise ValueError("latents that are added need the same number of functions")

    def with_weights(self) -> Iterator[tuple[int, WeightedLatents]]:
        for term in self.members:
            yield from term.with_weights()

    def condition(self, seed: int = 0, functions: Int[Tensor, " L"] | None = None) -> ConditionedLatents:
        return _ConditionedSum([term.condition(seed, functions) for term in self.members])
