"""What is lost by the surest rows, against loops over rows and labels."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from tests.reference import risks as reference

from extremegp.errors import DataError, SettingsError
from extremegp.metrics import ClassRisks, LabelRisks, TopK, TopLabelRisks, risks


def many_labels(n_rows: int = 40, n_labels: int = 7) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    p = (rng.random((n_rows, n_labels)) * rng.random((n_rows, 1))).astype(np.float32)
    return p, (rng.random(p.shape) < p).astype(np.int64)


def test_areas_of_many_labels_are_those_of_loops_over_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    p, y = many_labels()
    # A row of certain labels, one of which is wrong.
    p[3], y[3] = [1, 0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0]
    found = LabelRisks()
    monkeypatch.setattr(risks, "_CHUNK", 20)
    for rows in (slice(0, 11), slice(11, 40)):
        found.update(p[rows], csr_matrix(y[rows]))
    expected = reference.areas(reference.of_labels(y.tolist(), p.astype(float).tolist()), "log_loss")
    assert found.compute() == pytest.approx(expected)
    curve = found.risk_coverage("log_loss", "entropy")
    assert curve.area == found.compute()["aurc_log_loss_by_entropy"]
    assert curve.risk[-1] == pytest.approx(np.mean(reference.of_labels(y.tolist(), p.astype(float).tolist())[1]))


def test_areas_of_the_best_labels_are_those_of_all_where_these_are_all() -> None:
    p, y = many_labels()
    whole, best, listed = LabelRisks(), TopLabelRisks(7), TopK.from_scores(p, 9)
    whole.update(p, y)
    best.update(listed, np.take_along_axis(np.pad(p, ((0, 0), (0, 1))), listed.labels, axis=1), y)
    expected = whole.compute()
    for name, value in best.compute().items():
        # Means over the labels of a row in place of sums.
        scale = 7 if "log_loss" in name else 1
        assert scale * value == pytest.approx(expected[name.replace("_top7", "")]), name


def test_of_the_best_labels_no_more_than_asked_for_are_judged() -> None:
    p, y = many_labels()
    order = np.argsort(-p, axis=1)[:, :3]
    found, listed = TopLabelRisks(3), TopK.from_scores(p, 5)
    found.update(listed, np.take_along_axis(p, listed.labels, axis=1), y)
    errors, log_losses, entropies, greatest = reference.of_labels(
        np.take_along_axis(y, order, axis=1).tolist(), np.take_along_axis(p, order, axis=1).astype(float).tolist()
    )
    rows = errors, [each / 3 for each in log_losses], [each / 3 for each in entropies], greatest
    assert found.compute() == pytest.approx(reference.areas(rows, "log_loss_top3"))


def test_the_error_is_that_of_the_most_probable_label_whatever_the_ranking() -> None:
    by_utility = TopK(np.array([[1, 0]]), np.array([[2.0, 1.0]], np.float32))
    for truth, error in (([1, 0], 0), ([0, 1], 1)):
        found = TopLabelRisks()
        found.update(by_utility, np.array([[0.3, 0.4]]), np.array([truth]))
        assert found.risk_coverage().risk.tolist() == [error]


def test_a_row_without_a_best_label_is_an_error_and_the_least_sure() -> None:
    best = TopK(np.array([[-1, -1], [0, -1]]), np.array([[-np.inf, -np.inf], [0.2, -np.inf]], np.float32))
    found = TopLabelRisks(2)
    found.update(best, np.array([[0.0, 0.0], [0.2, 0.0]]), np.array([[1, 0], [1, 0]]))
    assert found.risk_coverage("error", "max_p").risk.tolist() == [0, 0.5]
    assert found.risk_coverage("log_loss_top2", "max_p").risk.tolist() == pytest.approx(
        [-np.log(0.2), -np.log(0.2) / 2]
    )


def test_areas_of_classes_are_those_of_loops_and_a_class_never_seen_is_an_error() -> None:
    rng = np.random.default_rng(1)
    p = rng.dirichlet([0.4] * 5, 30).astype(np.float32)
    classes = np.array([rng.choice(5, p=row / row.sum()) for row in p.astype(float)])
    classes[:2] = -1
    found = ClassRisks(5)
    for rows in (slice(0, 4), slice(4, 30)):
        found.update(p[rows], classes[rows])
    rows = reference.of_classes(classes.tolist(), p.astype(float).tolist())
    assert found.compute() == pytest.approx(reference.areas(rows, "nlpd"))


def test_of_equal_probabilities_the_lower_label_counts() -> None:
    found, of_classes = LabelRisks(), ClassRisks(2)
    found.update(np.full((2, 2), 0.5), np.array([[1, 0], [0, 1]]))
    of_classes.update(np.full((2, 2), 0.5), np.array([0, 1]))
    for each in (found, of_classes):
        assert each.risk_coverage().risk.tolist() == [0.5, 0.5]


def test_what_cannot_be_measured_is_refused_without_a_trace() -> None:
    p, y = many_labels()
    found = LabelRisks()
    with pytest.raises(DataError, match="no rows have been added"):
        found.compute()
    found.update(p, y)
    expected = found.compute()
    for block, truth, message in (
        (p[:, :3], y[:, :3], "3 labels, those before had 7"),
        (p + 1, y, r"in \[0, 1\]"),
        (p, 2 * y, "0 or 1"),
    ):
        with pytest.raises(DataError, match=message):
            found.update(block, truth)
    assert found.compute() == expected
    with pytest.raises(SettingsError, match="loss must be one of error, log_loss; got 'brier'"):
        found.risk_coverage("brier")
    with pytest.raises(SettingsError, match="by must be one of entropy, max_p; got 'variance'"):
        found.risk_coverage(by="variance")
    with pytest.raises(SettingsError, match="top must be a positive integer"):
        TopLabelRisks(0)
    with pytest.raises(SettingsError, match="n_classes must be a positive integer"):
        ClassRisks(0)
    with pytest.raises(DataError, match="sum to 1"):
        ClassRisks(7).update(p, np.zeros(len(p), int))
