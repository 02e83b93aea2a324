"""Labels that the current model wrongly ranks high for the rows of a batch, found without looking at all of them.

Labels are clustered by k-means of loadings and bias: |phi_k - phi_l|^2 + (b_k - b_l)^2 is the mean square of the
difference of two utilities under the prior h ~ N(0, I). A step scores the centres as if they were labels, takes the
best clusters, and scores their members. Which labels it finds depends on the batch and the parameters alone and not on
the draw of the others, so that with weight 1 for them sums over labels stay unbiased given the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from extremegp.engine.mixing import FactorMixing
from extremegp.errors import ModelFormatError
from extremegp.training.distributed import World

_SAMPLE = 4  # third word of the seeds, see label_sampling
# Labels for every centre that k-means sees, its iterations, and how many candidates are scored for each label kept.
_SAMPLED, _ITERATIONS, _CANDIDATES = 32, 5, 8
_BLOCK = 1 << 22  # elements of a block of products
_REFRESH = 20


class HardLabels:
    """Finds the labels that add most probability to the rows of a batch, among those that no row has.

    There are about sqrt(K) clusters, made anew at every K / B steps (at least 20 apart), so that they cost no more per
    step than scoring the centres: O(B P sqrt(K)) both. The members scored are bounded whatever K. Of several processes,
    each has the clusters of all labels but the members of its own alone, and all together find what one would.

    Args:
        n_labels: K.
        n_hard: how many labels to find.
        batch_size: B.
        seed: decides where k-means starts.
        world: the processes.
        labels: which labels this process has.
    """

    def __init__(
        self, n_labels: int, n_hard: int, *, batch_size: int, seed: int, world: World, labels: slice = slice(None)
    ) -> None:
        self.n_labels, self.n_hard, self.every = n_labels, n_hard, max(_REFRESH, n_labels // batch_size)
        self._seed, self._world, self._first = seed, world, labels.start or 0
        self._made_at: int | None = None
        self._clusters: Int[Tensor, " K"] | None = None
        self._centres: Float[Tensor, "C P1"] | None = None

    def prepare(self, step: int, mixing: FactorMixing) -> None:
        """Make the clusters anew if it is time to: a function of seed, step and parameters."""
        if step % self.every == 0 and step != self._made_at:
            self._made_at = step
            centres = self._make_centres(step, mixing)
            self._adopt(*self._in_pieces(_nearest(mixing, centres), centres))

    @torch.no_grad()
    def _make_centres(self, step: int, mixing: FactorMixing) -> Float[Tensor, "C P1"]:
        """Centres of a sample of the labels."""
        n_centres = math.isqrt(self.n_labels - 1) + 1
        size = min(self.n_labels, _SAMPLED * n_centres)
        rng = np.random.default_rng([self._seed, step, _SAMPLE])
        sample = torch.from_numpy(rng.permutation(self.n_labels)[:size] - self._first).to(mixing.bias.device)
        own = (sample >= 0) & (sample < mixing.n_utilities)
        vectors = mixing.bias.new_zeros(size, mixing.loadings.shape[1] + 1)
        vectors[own] = _vectors(mixing, sample[own])
        self._world.add([vectors])
        centres = vectors[:n_centres].clone()
        for _ in range(_ITERATIONS):
            nearest = torch.cat([_closest(part, centres) for part in torch.split(vectors, max(1, _BLOCK // n_centres))])
            counts = torch.bincount(nearest, minlength=n_centres).unsqueeze(1)
            sums = torch.zeros_like(centres).index_add_(0, nearest, vectors)
            centres = torch.where(counts > 0, sums / counts.clamp(min=1), centres)
        self._world.of_first(centres)
        return centres

    def _in_pieces(
        self, clusters: Int[Tensor, " K"], centres: Float[Tensor, "C P1"]
    ) -> tuple[Int[Tensor, " K"], Float[Tensor, "pieces P1"]]:
        """Large clusters cut into pieces of one centre, so that no step has to score many more members than others."""
        most = 2 * -(-self.n_labels // len(centres))
        pieces = (self._sizes(clusters, len(centres)) + most - 1).div(most, rounding_mode="floor").clamp(min=1)
        labels = torch.arange(self._first, self._first + len(clusters), device=clusters.device)
        return (pieces.cumsum(0) - pieces)[clusters] + labels % pieces[clusters], centres.repeat_interleave(pieces, 0)

    def _sizes(self, clusters: Int[Tensor, " K"], n_clusters: int) -> Int[Tensor, " C"]:
        sizes = torch.bincount(clusters, minlength=n_clusters)
        self._world.add([sizes])
        return sizes

    def _adopt(self, clusters: Int[Tensor, " K"], centres: Float[Tensor, "C P1"]) -> None:
        self._clusters, self._centres = clusters.to(torch.int32), centres
        self._members = torch.argsort(clusters, stable=True)
        self._own_sizes = torch.bincount(clusters, minlength=len(centres))
        self._starts = self._own_sizes.cumsum(0) - self._own_sizes
        self._all_sizes = self._sizes(clusters, len(centres))

    @torch.no_grad()
    def find(
        self,
        mixing: FactorMixing,
        h: Float[Tensor, "B P"],
        known: Int[Tensor, " L"],
        offset: Float[Tensor, "B K"] | None = None,
        weights: Float[Tensor, " B"] | None = None,
    ) -> Int[Tensor, " n"]:
        """The n_hard labels k of all processes with the largest sum_i w_i sigmoid(f_ik), as far as it has them.

        Args:
            mixing: of the labels that this process has.
            h: means of the latent functions at all rows of the batch.
            known: labels to leave out.
            offset: what a mean function adds to the utilities; every label is then scored.
            weights: w; 1 throughout by default.

        Returns:
            Their numbers among the labels that this process has, ascending.
        """
        queries = torch.cat([h, torch.ones_like(h[:, :1])], dim=1)
        if offset is None:
            candidates = self._candidates(queries, weights)
        else:
            candidates = torch.arange(mixing.n_utilities, device=h.device)
        utilities = queries @ _vectors(mixing, candidates).T
        scores = _added(utilities if offset is None else utilities + offset, weights)
        scores[torch.isin(candidates, known)] = -1.0
        best = scores.topk(min(self.n_hard, len(scores)))
        padded = torch.cat([best.values, best.values.new_full((self.n_hard - len(best.values),), -1.0)])
        everywhere = self._world.rows(padded, self.n_hard * self._world.size)
        kept = everywhere.topk(self.n_hard)
        places = kept.indices[kept.values >= 0] - self._world.rank * self.n_hard
        own = best.indices[places[(places >= 0) & (places < self.n_hard)]]
        return candidates[own].sort().values

    def _candidates(
        self, queries: Float[Tensor, "B P1"], weights: Float[Tensor, " B"] | None = None
    ) -> Int[Tensor, " n"]:
        """Own members of the clusters whose centres score best, of as many as hold enough members in all processes."""
        assert self._centres is not None
        order = _added(queries @ self._centres.T, weights).argsort(descending=True, stable=True)
        before = self._all_sizes[order].cumsum(0) - self._all_sizes[order]
        chosen = order[before < _CANDIDATES * self.n_hard]
        sizes = self._own_sizes[chosen]
        shifts = self._starts[chosen] - (sizes.cumsum(0) - sizes)
        places = torch.arange(int(sizes.sum()), device=order.device) + shifts.repeat_interleave(sizes)
        return self._members[places]

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps; `clusters` has an entry for every label."""
        if self._clusters is None or self._centres is None:
            return {}
        return {"clusters": self._clusters, "centres": self._centres}

    def restore(self, tensors: Mapping[str, Tensor], mixing: FactorMixing, *, source: str | Path) -> None:
        """Go on with what `state` gave.

        Raises:
            ModelFormatError: `tensors` are nothing that it gives for this mixing.
        """
        self._world.together(lambda: _check(tensors, mixing, source))
        self._made_at = None
        self._adopt(*(tensors[name].to(mixing.bias.device) for name in ("clusters", "centres")))


def _added(utilities: Float[Tensor, "B L"], weights: Float[Tensor, " B"] | None) -> Float[Tensor, " L"]:
    """Probability of each label, summed over weighted rows."""
    probabilities = utilities.sigmoid()
    return probabilities.sum(0) if weights is None else weights @ probabilities


def _check(tensors: Mapping[str, Tensor], mixing: FactorMixing, source: str | Path) -> None:
    shape = mixing.loadings.shape
    if tensors.keys() != {"clusters", "centres"}:
        raise ModelFormatError(f"{source}: the clusters of labels are missing or unexpected")
    clusters, centres = tensors["clusters"], tensors["centres"]
    sound = (
        clusters.shape == shape[:1]
        and clusters.dtype == torch.int32
        and centres.dtype == mixing.loadings.dtype
        and centres.shape[1:] == (shape[1] + 1,)
        and len(centres) > 0
        and bool(centres.isfinite().all())
        and bool(((clusters >= 0) & (clusters < len(centres))).all())
    )
    if not sound:
        raise ModelFormatError(f"{source}: the clusters of labels do not fit the model")


def _vectors(mixing: FactorMixing, labels: Int[Tensor, " L"] | slice) -> Float[Tensor, "L P1"]:
    return torch.cat([mixing.loadings.detach()[labels], mixing.bias.detach()[labels].unsqueeze(1)], dim=1)


@torch.no_grad()
def _nearest(mixing: FactorMixing, centres: Float[Tensor, "C P1"]) -> Int[Tensor, " K"]:
    """The centre nearest to every label, in blocks of labels."""
    size = max(1, _BLOCK // len(centres))
    starts = range(0, mixing.n_utilities, size)
    return torch.cat([_closest(_vectors(mixing, slice(start, start + size)), centres) for start in starts])


def _closest(vectors: Float[Tensor, "L P1"], centres: Float[Tensor, "C P1"]) -> Int[Tensor, " L"]:
    return torch.addmm(centres.square().sum(1), vectors, centres.T, alpha=-2).argmin(1)
