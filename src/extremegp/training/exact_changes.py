"""Rows that come to a trained model and go from it: its regression in closed form, as if it had been fitted to them.

Hyper-parameters stay: kernel, noise, link, which rows are landmarks. What gradients have found stays too, but for what
a landmark that goes takes with it. Biases follow the frequencies of the labels, as at the start of training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.exact_updates import GramUpdates
from extremegp.engine.feature_regression import FeatureRegression, limited
from extremegp.engine.latents import FeatureGP, Marginals
from extremegp.engine.latents.regression import LeftOut, RegressionGP
from extremegp.engine.lengthscales import noises
from extremegp.engine.matrices import column_sums
from extremegp.engine.mixing import FactorMixing, IdentityMixing
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import expect_tensors
from extremegp.engine.sparse import Matrix, fill, row_block
from extremegp.settings.model import ModelSettings
from extremegp.training.feature_changes import FeatureChanges
from extremegp.training.known_rows import KnownRows, targets_of
from extremegp.training.regression import far_bias

_PIECE = 1024
_MANY = 0.1  # of the rows: to work out all anew is quicker where more come at once
_FEW = 64
_NO_FUNCTION = -10.0  # the logarithm of a standard deviation of utilities


class RowChanges(ABC):
    """What is kept of the rows of a model so that rows can come and go.

    Args:
        model: a model whose regression is fitted to the rows.
        rows: them.
    """

    def __init__(self, model: VariationalModel, rows: KnownRows) -> None:
        self.model, self.n_rows, self._published = model, rows.x.shape[0], False
        self.sums = column_sums(rows.y, rows.weights)
        squares = rows.y.copy()
        squares.data = squares.data**2
        self.squares = column_sums(squares, rows.weights)
        self.total, self.total_squares = float(rows.weights.sum()), float(np.square(rows.weights).sum())

    @staticmethod
    def of(model: VariationalModel, rows: KnownRows) -> RowChanges:
        """Those of a model with landmarks, or of a regression alone.

        Args:
            model: likewise.
            rows: that it has.
        """
        if model.latents.is_closed:
            return RegressionChanges(model, rows)
        return LandmarkChanges(model, rows)

    @staticmethod
    def are_many(n_new: int, n_rows: int) -> bool:
        """Whether so many rows are better taken in by working out all anew."""
        return n_new > max(_FEW, _MANY * n_rows)

    def add(self, rows: KnownRows) -> None:
        """Take in rows, after those that there are."""
        for row in range(rows.x.shape[0]):
            one = rows.some(slice(row, row + 1))
            self._count(one, 1)
            self._add(one, targets_of(one.y)[0])

    def remove(self, place: int, row: KnownRows, landmark: int | None) -> bool:
        """Let go of a row; False where all has to be worked out anew.

        Args:
            place: of the row among those that there are.
            row: it alone.
            landmark: which of the landmarks it is; None for none.
        """
        self._count(row, -1)
        return self._remove(place, row, targets_of(row.y)[0], landmark)

    @torch.no_grad()
    def publish(self) -> None:
        """Let the model have what there is now."""
        if not self._published:
            self._publish()
            self._published = True

    @abstractmethod
    def _publish(self) -> None: ...

    @abstractmethod
    def relabel(self, model: VariationalModel, places: NDArray[np.int64]) -> None:
        """Go on with a model of more labels, among which those of today have these places."""

    @abstractmethod
    def begin_anew(self, labels: NDArray[np.int64]) -> None:
        """Leave nothing of what training found for some labels by themselves."""

    @abstractmethod
    def settle(self) -> None:
        """Bring the model into the form in which it is saved."""

    @abstractmethod
    def left_out(self, places: NDArray[np.int64], rows: KnownRows) -> Tensor | LeftOut:
        """What the regression says of some rows, each without itself."""

    def regressed_left_out(self, rows: KnownRows) -> Float[Tensor, "n K"]:
        """t_k of some rows, each without itself, in float64: of a model with landmarks, whose rows have no places."""
        raise TypeError(f"{type(self).__name__} leaves rows out by their places")

    @abstractmethod
    def votes(self, x: Matrix, rows: KnownRows) -> NDArray[np.float64]:
        """w_i of t_k(x) = mu_k + sum_i w_i (y_ik - mu_k) at an input, N.

        Args:
            x: the input, 1 x D.
            rows: all that there are.
        """

    @abstractmethod
    def utility(self, x: Matrix) -> NDArray[np.float64]:
        """What the regression adds to the mean utilities of an input, K; of a regression alone they are all of it."""

    @abstractmethod
    def _add(self, row: KnownRows, targets: Float[Tensor, " T"]) -> None: ...

    @abstractmethod
    def _remove(self, place: int, row: KnownRows, targets: Float[Tensor, " T"], landmark: int | None) -> bool: ...

    @property
    def n_counted(self) -> int:
        """How many rows those that there are count as."""
        return max(1, round(self.total))

    @property
    def frequencies(self) -> NDArray[np.float64]:
        """Of the labels as recorded, K, those of no row and of all a little away from zero and one."""
        return limited(self.sums / self.total, self._counted_for_limits())

    @property
    def applies(self) -> NDArray[np.float64]:
        """How often labels apply, K."""
        propensities = getattr(self.model.likelihood, "propensities", None)
        frequencies = self.sums / self.total
        return frequencies if propensities is None else frequencies / propensities.double().cpu().numpy()

    def _counted_for_limits(self) -> float:
        return self.total

    def _count(self, row: KnownRows, sign: int) -> None:
        weight = float(row.weights[0])
        self._published = False
        self.n_rows += sign
        self.total += sign * weight
        self.total_squares += sign * weight**2
        np.add.at(self.sums, row.y.indices, sign * weight * row.y.data)
        np.add.at(self.squares, row.y.indices, sign * weight * row.y.data.astype(np.float64) ** 2)

    def _place_counts(self, places: NDArray[np.int64], n_labels: int) -> Tensor:
        self._published = False
        for name in ("sums", "squares"):
            counts = np.zeros(n_labels)
            counts[places] = getattr(self, name)
            setattr(self, name, counts)
        return torch.from_numpy(np.append(places, n_labels))


class LandmarkChanges(RowChanges):
    """Those of a model whose functions and regression are of features by way of landmarks.

    Labels that training did not know have no functions: the regression alone tells of them.
    """

    def __init__(self, model: VariationalModel, rows: KnownRows) -> None:
        super().__init__(model, rows)
        assert model.features is not None
        self.mean = cast(FeatureRegression, model.mean_function)
        self.features = FeatureChanges(model.features, float(self.mean.noise), rows)
        # Of the model as it is: what ones regress to, and frequencies.
        self._of_ones, self._frequencies = torch.zeros(0), torch.zeros(0)

    def _publish(self) -> None:
        mean, frequencies = self.mean, torch.from_numpy(self.frequencies)
        like, (ridge, changes) = mean.coefficients, (self.features.ridge, self.features.taken())
        if changes is None or not ridge.n_pending:
            solution = ridge.solution()
            self._of_ones, changed = solution[:, -1].clone(), solution[:, :-1]
            like.copy_(changed - torch.outer(self._of_ones, frequencies))
        else:
            left = [*(change.direction for change in changes), self._of_ones]
            right = [*(change.amounts[:-1] for change in changes), self._frequencies]
            self._of_ones = self._of_ones + sum(change.direction * change.amounts[-1] for change in changes)
            directions, amounts = torch.stack([*left, self._of_ones], 1), torch.stack([*right, -frequencies])
            like.addmm_(directions.to(like), amounts.to(like))
        self._frequencies = frequencies
        mean.frequencies.copy_(frequencies)
        mixing = self.model.mixing
        variances = mixing.prior_variances().detach().double().cpu().numpy()
        fill(mixing.bias.data, self.model.likelihood.prior_bias(self.applies, self.n_counted, variances))

    def relabel(self, model: VariationalModel, places: NDArray[np.int64]) -> None:
        n_labels = model.mixing.n_utilities
        self.features.place_targets(self._place_counts(places, n_labels), n_labels)
        self.model, self.mean = model, cast(FeatureRegression, model.mean_function)
        self.begin_anew(np.setdiff1d(np.arange(n_labels), places))

    def begin_anew(self, labels: NDArray[np.int64]) -> None:
        mixing, mean = self.model.mixing, self.mean
        self._published = False
        if not self.model.likelihood.has_classes:
            if mean.taught is None:
                mean.taught = torch.ones_like(mean.frequencies)
            mean.taught[labels] = 0
        if mixing.independent:
            cast(IdentityMixing, mixing).log_scales.data[labels] = _NO_FUNCTION
            cast(FeatureGP, self.model.latents).posterior.q_mean.data[labels] = 0
        else:
            cast(FactorMixing, mixing).loadings.data[labels] = 0

    def settle(self) -> None:
        self.publish()

    def left_out(self, places: NDArray[np.int64], rows: KnownRows) -> Tensor:
        return self.mean.linked(self.regressed_left_out(rows).to(self.mean.coefficients))

    def regressed_left_out(self, rows: KnownRows) -> Float[Tensor, "n K"]:
        return self.features.left_out(self.features.of_rows(rows), torch.from_numpy(self.frequencies))

    def votes(self, x: Matrix, rows: KnownRows) -> NDArray[np.float64]:
        landmarks = self.features.landmarks
        along = landmarks.unwhitened(self.features.ridge.inverse() @ landmarks.exactly(x)[0])
        found = [block @ along for block in landmarks.kept.covariances(rows.x, torch.float64)]
        return np.asarray(rows.weights * torch.cat(found).numpy())

    @torch.no_grad()
    def utility(self, x: Matrix) -> NDArray[np.float64]:
        a = self.features.landmarks.exactly(x).to(self.mean.coefficients)
        return np.asarray(self.mean(a)[0].double().cpu().numpy())

    def _add(self, row: KnownRows, targets: Float[Tensor, " T"]) -> None:
        self.features.add(row, targets)

    def _remove(self, place: int, row: KnownRows, targets: Float[Tensor, " T"], landmark: int | None) -> bool:
        direction = self.features.remove(row, targets, landmark)
        if isinstance(direction, Tensor):
            # Nothing that features can tell: the weight that the landmark had.
            mean = cast(FeatureGP, self.model.latents).posterior.q_mean
            along = direction.to(mean)
            mean.data -= torch.outer(mean.data @ along, along)
        return direction is not False


class RegressionChanges(RowChanges):
    """Those of a model that is the regression alone, on all rows; its variance goes through landmarks."""

    def __init__(self, model: VariationalModel, rows: KnownRows) -> None:
        super().__init__(model, rows)
        self.latents = cast(RegressionGP, model.latents)
        self.noise = float(self.latents.mean.noise)
        self.slots = _Slots(self.n_rows)
        covariance = self.latents.mean.gram(torch.float64).cpu()
        covariance.diagonal().add_(noises(self.noise, torch.from_numpy(rows.weights)))
        self.gram = GramUpdates(covariance, targets_of(rows.y))
        self.features = FeatureChanges(self.latents.landmarks, self.noise, rows)

    def _publish(self) -> None:
        latents, mean, frequencies = self.latents, self.latents.mean, torch.from_numpy(self.frequencies)
        solution = self.gram.solution()[torch.from_numpy(self.slots.of)]
        like = mean.coefficients
        mean.coefficients = (solution[:, :-1] - torch.outer(solution[:, -1], frequencies)).to(like)
        mean.frequencies.copy_(frequencies)
        residuals = torch.from_numpy(self.squares) + frequencies * (
            frequencies * self.total - 2 * torch.from_numpy(self.sums)
        )
        counted = max(self.total, self.total**2 / self.total_squares)
        explained = self.features.explained(frequencies)
        latents.amplitudes.copy_(((residuals - explained) / (self.noise * counted)).clamp(min=0.0))
        latents.covariance = (self.noise * self.features.ridge.inverse()).to(like)
        fill(self.model.mixing.bias.data, far_bias(latents, self.model.likelihood, self.applies, self.n_counted))

    def relabel(self, model: VariationalModel, places: NDArray[np.int64]) -> None:
        n_labels = model.mixing.n_utilities
        targets = self._place_counts(places, n_labels)
        self.gram.place_targets(targets, n_labels + 1)
        self.features.place_targets(targets, n_labels)
        self.model, self.latents = model, cast(RegressionGP, model.latents)

    def begin_anew(self, labels: NDArray[np.int64]) -> None:
        # All that there is of a label follows from the rows.
        self._published = False

    def settle(self) -> None:
        self.publish()
        latents = self.latents
        if latents.covariance is None:
            return
        rotation, values = self.features.rotate()
        landmarks = latents.landmarks
        landmarks.unrounded = landmarks.in_double() @ rotation
        landmarks.basis.copy_(landmarks.unrounded)
        latents.shrinkage.copy_((self.noise * values).clamp(max=1.0))
        latents.covariance = None

    def left_out(self, places: NDArray[np.int64], rows: KnownRows) -> LeftOut:
        slots, frequencies = torch.from_numpy(self.slots.of[places]), torch.from_numpy(self.frequencies)
        solution = self.gram.solution()[slots]
        coefficients = solution[:, :-1] - torch.outer(solution[:, -1], frequencies)
        t = targets_of(rows.y)[:, :-1] - coefficients / self.gram.inverse().diagonal()[slots].unsqueeze(1)
        like = self.latents.mean.coefficients
        return LeftOut(t.to(like), self.features.variance_left_out(self.features.of_rows(rows)).to(like))

    def votes(self, x: Matrix, rows: KnownRows) -> NDArray[np.float64]:
        covariances = torch.cat([*self.latents.mean.covariances(x, torch.float64)])[0].cpu()
        by_slots, slots = torch.empty_like(covariances), torch.from_numpy(self.slots.of)
        by_slots[slots] = covariances
        return np.asarray((self.gram.inverse() @ by_slots)[slots].numpy())

    @torch.no_grad()
    def utility(self, x: Matrix) -> NDArray[np.float64]:
        mean, _ = self.latents.condition().marginals(row_block(x, slice(None)))
        return np.asarray(self.model.mixing.means(Marginals(mean, mean))[0].double().cpu().numpy())

    def _counted_for_limits(self) -> float:
        return self.n_counted

    def _add(self, row: KnownRows, targets: Float[Tensor, " T"]) -> None:
        mean = self.latents.mean
        covariances = torch.cat([*mean.covariances(row.x, torch.float64)])[0].cpu()
        by_slots = torch.empty_like(covariances)
        by_slots[torch.from_numpy(self.slots.of)] = covariances
        own = 1.0 + float(noises(self.noise, torch.from_numpy(row.weights))[0])
        self.gram.add(by_slots, own, targets)
        self.slots.add()
        mean.append(row.x)
        self.features.add(row, targets)

    def _remove(self, place: int, row: KnownRows, targets: Float[Tensor, " T"], landmark: int | None) -> bool:
        self.gram.remove(self.slots.remove(place))
        self.latents.mean.remove(place)
        return self.features.remove(row, targets, landmark) is not False


class _Slots:
    """Where things of rows are held: the last takes the slot of one that goes.

    Attributes:
        of: the slot of each row.
    """

    def __init__(self, n_rows: int) -> None:
        self.of = np.arange(n_rows)

    def __len__(self) -> int:
        return len(self.of)

    def add(self) -> int:
        """The slot of a row that comes after all others."""
        slot = len(self.of)
        self.of = np.append(self.of, slot)
        return slot

    def remove(self, place: int) -> int:
        """The slot of a row that goes, which that of the last slot takes."""
        slot, last = int(self.of[place]), len(self.of) - 1
        self.of[self.of == last] = slot
        self.of = np.delete(self.of, place)
        return slot


@torch.no_grad()
def relabelled(model: VariationalModel, settings: ModelSettings, places: NDArray[np.int64]) -> VariationalModel:
    """A model of more labels, among which those of today have these places.

    What is not known of the others is in the middle of what is, or nothing.

    Args:
        model: with landmarks, or a regression alone.
        settings: those of the model with more labels.
        places: ascending or not, as many as there are labels today.
    """
    other = settings.build().to(model.mixing.bias.device, model.mixing.bias.dtype)
    expect_tensors(other, model.state_dict().keys())
    # Parameters are those that training chooses by all labels: others lie in the middle, or have none.
    middle: dict[str, Callable[[Tensor], Tensor]] = {
        "mixing.log_scales": lambda known: known.median(),
        "likelihood.propensities": lambda known: known.min(),
    }
    state = model.state_dict()
    for name, new in other.state_dict().items():
        old = state[name]
        if old.shape == new.shape:
            # Of classes that only have other places, a regression has all anew: see `RowChanges.publish`.
            new.copy_(old)
            continue
        (axis,) = (axis for axis, sizes in enumerate(zip(old.shape, new.shape, strict=True)) if sizes[0] != sizes[1])
        new[...] = middle[name](old) if name in middle else 0
        new.index_copy_(axis, torch.from_numpy(places).to(new.device), old)
    # What knows nothing of labels is the same, with what it knows beside its tensors.
    other.features = model.features
    if model.latents.is_closed:
        cast(RegressionGP, other.latents).landmarks = cast(RegressionGP, model.latents).landmarks
    return other.requires_grad_(False)
