"""Approximate search for the best labels of a factor model: few of very many labels are looked at, and those exactly.

The mean utility phi_k'h + b_k is an inner product in P + 1 dimensions, the bias being the last, so that the labels of
the greatest means are found by an index for maximum inner products. Labels of the greatest biases, the head, may rank
high at any input and lie in no one direction: their means are all computed. The others, the tail, are clustered by
k-means (IVF) and compressed to half a byte for every two dimensions (product quantisation, Jegou, Douze and Schmid
2011, in the form of Andre, Kermarrec and Le Scouarnec 2017 that stays in registers). What both find are candidates;
utilities and probabilities of these are the model's own, so that only which labels are found is approximate.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.latents import Marginals
from extremegp.engine.mixing import FactorMixing
from extremegp.engine.sparse import Matrix
from extremegp.errors import SettingsError
from extremegp.metrics import TopK
from extremegp.metrics.topk import PAD
from extremegp.prediction.predictor import Predictor, Ranked, RankedBy

SAMPLE_ROWS = 256
"""Rows, at most, that a recall is measured on."""

FEWEST_ROWS = 32
"""Rows, at least, that a recall is measured on: with fewer the most careful setting is taken instead."""

_CANDIDATES = (32, 64, 128, 256, 512, 1024)
# A candidate costs as much as so many labels that compressed codes are compared of.
_CANDIDATE_COST = 50
_HEAD_LABELS, _HEAD_SHARE = 4096, 0.02
_FEWEST_INDEXED = 4096
_ADDED_AT_ONCE = 1 << 16
_TRAINING_LABELS_PER_LIST = 40


class IndexSetting(NamedTuple):
    """How carefully an index searches.

    Attributes:
        n_probe: clusters of labels that are searched.
        candidates: labels that head and tail each propose for a row.
        recall: share of the exact k best labels that were found on a sample; None where it was not measured.
        n_rows: rows of that sample.
    """

    n_probe: int
    candidates: int
    recall: float | None = None
    n_rows: int = 0


class LabelIndex:
    """The k best labels of rows by an index of the labels; like a `Predictor`, it offers `top`.

    It is built from the model's loadings whenever it is needed (a minute for a million labels of 300 functions) and
    never read from a file. With few labels all are in the head, and nothing is approximate but that candidates are
    chosen by their means.

    Args:
        predictor: of a model that is `separable`.
        seed: decides the clusters.

    Attributes:
        n_lists: clusters of the tail; 0 where there is no tail.
        setting: how carefully it searches; the most careful at first. `tune` finds the cheapest that will do.

    Raises:
        SettingsError: the model ties its labels together, or faiss is not installed.
    """

    def __init__(self, predictor: Predictor, *, seed: int = 0) -> None:
        if not predictor.separable or predictor.model.mixing.independent:
            raise SettingsError(
                "approximate search is for factor models without a mean function (mean_function='zero'); rank exactly"
            )
        self._predictor = predictor
        mixing = cast(FactorMixing, predictor.model.mixing)
        loadings, bias = (part.detach().float().cpu() for part in (mixing.loadings, mixing.bias))
        n_labels = len(bias)
        n_head = max(_HEAD_LABELS, round(_HEAD_SHARE * n_labels))
        if n_labels - n_head < _FEWEST_INDEXED:
            n_head = n_labels
        order = torch.argsort(bias, descending=True, stable=True)
        self._head, self._tail = order[:n_head].numpy(), np.sort(order[n_head:].numpy())
        self._head_loadings, self._head_bias = loadings[self._head], bias[self._head]
        self._index: Any = None
        self.n_lists = 0
        if len(self._tail):
            self._build(loadings, bias, seed)
        self.setting = self._most_careful
        self._tuned: dict[tuple[int, RankedBy, float], IndexSetting] = {}

    def _build(self, loadings: Float[Tensor, "K P"], bias: Float[Tensor, " K"], seed: int) -> None:
        faiss = _faiss()
        tail = self._tail
        # The same inner product is subtracted from those of all labels with a row: distances are about what is left.
        self._centre, centre_bias = loadings[tail].mean(0), bias[tail].mean()
        rng = np.random.default_rng(seed)
        self.n_lists = max(1, round(2 * len(tail) ** 0.5))
        chosen = tail[np.sort(rng.permutation(len(tail))[: _TRAINING_LABELS_PER_LIST * self.n_lists])]
        spread = (loadings[chosen] - self._centre).square().sum(1).mean().sqrt()
        # Biases weigh a tenth of what loadings do in distances, for rows tell labels apart by the latter.
        scale = float(bias[chosen].std() * 10**0.5 / spread.clamp(min=1e-12)) or 1.0
        self._bias_scale = scale
        even = loadings.shape[1] % 2

        def vectors(labels: NDArray[np.int64]) -> NDArray[np.float32]:
            # The bias shares no pair of dimensions with a loading.
            parts = loadings[labels] - self._centre, (bias[labels] - centre_bias)[:, None] / scale
            padding = torch.zeros(len(labels), even), torch.zeros(len(labels), 1)
            joined: NDArray[np.float32] = torch.cat([parts[0], padding[0], parts[1], padding[1]], 1).numpy()
            return joined

        width = loadings.shape[1] + even + 2
        index = faiss.index_factory(width, f"IVF{self.n_lists},PQ{width // 2}x4fs", faiss.METRIC_INNER_PRODUCT)
        index.cp.seed, index.cp.niter, index.cp.min_points_per_centroid = int(rng.integers(2**31 - 1)), 10, 1
        index.clustering_index = clusters = faiss.IndexFlatL2(width)
        index.train(vectors(chosen))
        index.clustering_index = None
        del clusters
        for start in range(0, len(tail), _ADDED_AT_ONCE):
            index.add(vectors(tail[start : start + _ADDED_AT_ONCE]))
        self._index = index

    @property
    def predictor(self) -> Predictor:
        """What candidates are scored by."""
        return self._predictor

    @property
    def _most_careful(self) -> IndexSetting:
        return IndexSetting(self.n_lists, _CANDIDATES[-1])

    def top(
        self,
        x: Matrix,
        k: int,
        by: RankedBy = "probability",
        given: None = None,
        *,
        setting: IndexSetting | None = None,
    ) -> Iterator[Ranked]:
        """The k best labels of the candidates of every row, as `Predictor.top` gives those of all labels.

        Args:
            x: inputs, N x D.
            k: how many labels.
            by: rank by p(y = 1) or by the mean utility.
            given: None: where labels are known already, search is exact.
            setting: how carefully to search; `self.setting` by default, which other threads may change.
        """
        assert given is None
        setting = self.setting if setting is None else setting
        n_probe, n_candidates = setting.n_probe, max(setting.candidates, k)
        for rows, utilities in self._predictor.utilities(x, width=len(self._head)):
            # In the order of their numbers, which decides between equal scores.
            found = self._candidates(utilities.latents, n_probe, n_candidates)
            labels = np.sort(found.reshape(len(found), -1), axis=1)
            means, probabilities = self._predictor.at(utilities, torch.from_numpy(np.maximum(labels, 0)))
            scores = np.where(labels == PAD, -np.inf, means if by == "utility" else probabilities)
            places = TopK.from_scores(scores, k)
            found, p = (np.take_along_axis(values, places.labels, axis=1) for values in (labels, probabilities))
            pad = places.labels == PAD
            yield rows, TopK(np.where(pad, PAD, found), places.scores), np.where(pad, 0, p).astype(np.float32)

    def tune(self, x: Matrix, k: int, recall: float, by: RankedBy = "probability") -> IndexSetting:
        """Find the cheapest setting by which at least a share `recall` of the exact k best labels of rows is found.

        Cost is counted, not timed: labels whose codes are compared, and candidates. The measured recall is that of the
        sample: expect a little less elsewhere. The result is kept, and used from now on; the same question is answered
        from memory unless it comes with more rows than before, up to `SAMPLE_ROWS`. With fewer than `FEWEST_ROWS` rows
        nothing is measured, and the most careful setting is taken.

        Args:
            x: typical rows, of which `SAMPLE_ROWS` are taken evenly.
            k: how many labels will be asked for.
            recall: the share to reach, in (0, 1]; where no setting does, the most careful is taken.
            by: what they will be ranked by.

        Returns:
            The setting, with the recall measured.

        Raises:
            SettingsError: `recall` is outside its domain.
        """
        if not 0 < recall <= 1:
            raise SettingsError(f"approximate must be a recall above 0 and at most 1, not {recall!r}")
        known = self._tuned.get((k, by, recall))
        n_rows = min(x.shape[0], SAMPLE_ROWS)
        if known is None or n_rows > known.n_rows:
            known = self._most_careful
            if n_rows >= FEWEST_ROWS:
                known = self._cheapest(x[np.linspace(0, x.shape[0] - 1, n_rows).astype(np.int64)], k, recall, by)
            self._tuned[k, by, recall] = known
        self.setting = known
        return known

    def _cheapest(self, x: Matrix, k: int, recall: float, by: RankedBy) -> IndexSetting:
        exact = TopK.concatenate([best for _, best, _ in self._predictor.top(x, k, by)]).labels
        real = exact != PAD
        blocks = [utilities.latents for _, utilities in self._predictor.utilities(x, width=len(self._head))]
        sizes = [c for c in _CANDIDATES if c >= k] or [k]
        settings = []
        for n_probe in self._probes():
            found = np.concatenate([self._candidates(latents, n_probe, sizes[-1]) for latents in blocks])
            for c in sizes:
                candidates = np.sort(found[:, :, :c].reshape(len(exact), -1), axis=1)
                hits = np.stack([np.isin(row, of, kind="sort") for row, of in zip(exact, candidates, strict=True)])
                settings.append(IndexSetting(n_probe, c, float(hits[real].mean()), len(exact)))
        careful = max(settings, key=lambda setting: (setting.recall, -self._cost(setting)))
        return min((s for s in settings if (s.recall or 0) >= recall), key=self._cost, default=careful)

    def _probes(self) -> list[int]:
        return [2**i for i in range(self.n_lists.bit_length()) if 2**i < self.n_lists] + [self.n_lists]

    def _cost(self, setting: IndexSetting) -> float:
        compared = setting.n_probe / max(1, self.n_lists) * len(self._tail)
        return compared + _CANDIDATE_COST * setting.candidates

    def _candidates(self, latents: Marginals, n_probe: int, size: int) -> Int[NDArray[np.int64], "B parts C"]:
        """Labels of greatest means, of the head exactly and of the tail about, each best first; -1 where none is."""
        mean = latents.mean.detach().float().cpu()
        labels = np.full((len(mean), 1 if self._index is None else 2, size), PAD, dtype=np.int64)
        utilities = torch.addmm(self._head_bias, mean, self._head_loadings.T)
        of_head = utilities.topk(min(size, len(self._head)), dim=1).indices.numpy()
        labels[:, 0, : of_head.shape[1]] = self._head[of_head]
        if self._index is not None:
            even = mean.shape[1] % 2
            scale = mean.new_full((len(mean), 1), self._bias_scale)
            queries = torch.cat([mean, mean.new_zeros(len(mean), even), scale, mean.new_zeros(len(mean), 1)], 1)
            parameters = _faiss().SearchParametersIVF(nprobe=n_probe)
            _, of_tail = self._index.search(queries.numpy(), size, params=parameters)
            labels[:, 1] = np.where(of_tail < 0, PAD, self._tail[of_tail])
        return labels


def _faiss() -> ModuleType:
    try:
        import faiss
    except ImportError as error:
        raise SettingsError("approximate search needs faiss: pip install 'extremegp[ann]'") from error
    return faiss
