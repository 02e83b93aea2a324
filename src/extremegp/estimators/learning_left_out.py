"""Rows that are kept, each judged without itself, where landmarks or a regression know them in closed form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import normalize

from extremegp.data import FloatCSR, FloatMatrix
from extremegp.engine.landmarks import Landmarks
from extremegp.engine.latents.regression import LeftOut
from extremegp.engine.model import VariationalModel
from extremegp.engine.sparse import row_block
from extremegp.errors import SettingsError
from extremegp.estimators.held_rows import HeldRows
from extremegp.estimators.label_issues import block_of, nearest_by_cosine
from extremegp.estimators.learning import LearnsRows
from extremegp.estimators.left_out import LeftOutBlock
from extremegp.settings.model import ModelSettings
from extremegp.training.exact_changes import LandmarkChanges, RowChanges
from extremegp.training.judging import JudgingRegression
from extremegp.training.known_rows import KnownRows
from extremegp.training.landmark_trial import log_scores, recorded
from extremegp.training.left_out import LeftOutLink, without_own_sites
from extremegp.training.regression import left_out_utilities

_STALE_ROWS, _LEFT_OUT_ROWS = 512, 1024
_LINK_ROWS, _LEAST_KL_WEIGHT = 2000, 1e-3


class LeavesOutInClosedForm(LearnsRows):
    """An estimator whose regression, or functions at landmarks, leave a row out without training."""

    model_: VariationalModel
    settings_: ModelSettings
    _held: HeldRows | None

    def _left_out_loss(self, rows: NDArray[np.int64]) -> float:
        if not len(rows):
            return float("nan")
        assert self._held is not None
        some = rows[np.linspace(0, len(rows) - 1, min(len(rows), _STALE_ROWS)).round().astype(np.int64)]
        known = self._held.all().some(some)
        changes, likelihood = self._working(), self.model_.likelihood
        left_out = None if changes is None else changes.left_out(some, known)
        with torch.no_grad():
            if isinstance(left_out, LeftOut):
                predicted = likelihood.predict(left_out_utilities(self.model_, left_out)).expectations
            else:
                # Functions alone know rows of training, and none that came since.
                found = self.predictor().utilities(known.x, None if left_out is None else left_out.cpu().numpy())
                predicted = torch.cat([likelihood.predict(utilities).expectations for _, utilities in found])
        scores = log_scores(recorded(likelihood, predicted), known.y, classes=likelihood.has_classes)
        return -float(scores.mean())

    def _left_out_blocks(self, places: NDArray[np.int64], k: int) -> Iterator[LeftOutBlock]:
        assert self._held is not None
        held, likelihood = self._held.all(), self.model_.likelihood
        if not self.settings_.is_closed and not likelihood.has_label_terms:
            what = type(likelihood).__name__
            raise SettingsError(f"functions under {what} have seen the training rows: they cannot be left out")
        yield from self._blocks_by(places, k, lambda some: self._left_out_probabilities(some, held.some(some)))

    def _judged_blocks(self, places: NDArray[np.int64], k: int) -> Iterator[LeftOutBlock]:
        changes, held = self._working(), self._held
        if not isinstance(changes, LandmarkChanges) or not self.model_.likelihood.labels_independent:
            yield from self._left_out_blocks(places, k)
            return
        assert held is not None
        rows, frequencies = held.all(), torch.from_numpy(changes.frequencies)
        judging = self._kept.get(
            "judging", lambda: JudgingRegression(changes.features, rows, frequencies), self.model_, rows.weights
        )
        link = self._left_out_link("judging link", judging.left_out)

        def found(some: NDArray[np.int64]) -> Iterator[tuple[slice, torch.Tensor]]:
            yield slice(0, len(some)), link.probabilities(judging.left_out(rows.some(some)))

        yield from self._blocks_by(places, k, found)

    def _blocks_by(
        self,
        places: NDArray[np.int64],
        k: int,
        found: Callable[[NDArray[np.int64]], Iterator[tuple[slice, torch.Tensor]]],
    ) -> Iterator[LeftOutBlock]:
        """Blocks of rows, given what makes probabilities of some of them."""
        assert self._held is not None
        y = self._held.all().y
        for start in range(0, len(places), _LEFT_OUT_ROWS):
            some = places[start : start + _LEFT_OUT_ROWS]
            for rows, p in found(some):
                of_block = slice(start + rows.start, start + rows.stop)
                yield block_of(of_block, p.float().cpu().numpy(), y[some[rows]], k)

    def _plain_blocks(self, x: FloatMatrix, y: FloatCSR, k: int) -> Iterator[LeftOutBlock]:
        for rows, p in self.predictor().probabilities(x):
            yield block_of(rows, p.astype(np.float32), y[rows], k)

    def _recorded(self) -> FloatCSR:
        assert self._held is not None
        return self._held.all().y

    def _nearest(self, x: FloatMatrix, own: NDArray[np.int64], m: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        assert self._held is not None
        unit = self._kept.get("unit rows", lambda: normalize(self._inputs()), self.model_, self._held.all().weights)
        return nearest_by_cosine(x, unit, own, m)

    @torch.no_grad()
    def _left_out_probabilities(
        self, places: NDArray[np.int64], known: KnownRows
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """How probable it is that labels are recorded of some rows, each without itself."""
        changes, model = self._working(), self.model_
        everything = slice(0, len(places))
        if changes is None:
            weights = torch.from_numpy(known.weights) / self._kl_weight()
            for rows, utilities in self.predictor().utilities(known.x):
                a = self._landmark_features()(row_block(known.x, rows))
                without = without_own_sites(utilities, model.likelihood, a, known.y[rows], weights[rows])
                yield rows, recorded(model.likelihood, model.likelihood.predict(without).expectations)
        elif self.settings_.is_closed:
            left_out = changes.left_out(places, known)
            assert isinstance(left_out, LeftOut)
            expected = model.likelihood.predict(left_out_utilities(model, left_out)).expectations
            yield everything, recorded(model.likelihood, expected)
        else:
            link = self._left_out_link("left out", changes.regressed_left_out)
            yield everything, link.probabilities(changes.regressed_left_out(known))

    def _left_out_link(self, name: str, left_out: Callable[[KnownRows], torch.Tensor]) -> LeftOutLink:
        """What makes probabilities of a regression without rows: chosen once, until rows change."""
        changes, held = self._working(), self._held
        assert changes is not None
        assert held is not None
        self._catch_up()
        rows = held.all()

        def make() -> LeftOutLink:
            n = len(held)
            known = rows.some(np.linspace(0, n - 1, min(n, _LINK_ROWS)).round().astype(np.int64))
            frequencies = torch.from_numpy(changes.frequencies)
            return LeftOutLink.chosen(left_out(known), known.y, frequencies, known.weights)

        return self._kept.get(name, make, self.model_, rows.weights)

    def _kl_weight(self) -> float:
        given = getattr(self, "kl_weight", "auto")
        return 1.0 if given == "auto" else max(float(given), _LEAST_KL_WEIGHT)

    @abstractmethod
    def _working(self) -> RowChanges | None:
        """What rows come and go by; None without a regression."""

    @abstractmethod
    def _catch_up(self) -> None:
        """Let the model know the rows that there are."""

    @abstractmethod
    def _landmark_features(self) -> Landmarks:
        """Features of inputs by way of the landmarks."""
