"""What the pictures show: panels, lines, images and texts; and that Matplotlib is needed for drawing only."""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.sparse import coo_array, csr_matrix

from extremegp import plots
from extremegp.errors import DataError, SettingsError
from extremegp.estimators import Explanation, Share
from extremegp.metrics import LabelMetrics, PrecisionRecall, Reliability, RiskCoverage, risk_coverage

HALVES = Reliability(np.array([0.25, np.nan, 0.75]), np.array([0.5, np.nan, 0.75]), np.array([3, 0, 1]))
HISTORY = [{"epoch": epoch + 1.0, "elbo": -100.0 / (epoch + 1), "kl": 1.0} for epoch in range(20)]
VALIDATED = [{**record, "validation_P@1": record["epoch"] / 20} for record in HISTORY]


def lines(axis: Axes) -> dict[str, np.ndarray]:
    """Points of the lines by label."""
    return {str(line.get_label()): np.asarray(line.get_xydata()) for line in axis.lines}


def legend(axis: Axes) -> list[str]:
    return [text.get_text() for text in axis.get_legend().get_texts()]


def test_the_reliability_diagram_has_the_curve_and_the_counts_of_the_bins() -> None:
    curve, counts = plots.reliability_diagram(HALVES, title="two rings").axes
    diagonal, points = (np.asarray(line.get_xydata()) for line in curve.lines)
    np.testing.assert_array_equal(diagonal, [[0, 0], [1, 1]])
    np.testing.assert_array_equal(points, [[0.25, 0.5], [0.75, 0.75]])
    values, edges, _ = counts.patches[0].get_data()
    np.testing.assert_array_equal(values, [3, 0, 1])
    np.testing.assert_allclose(edges, [0, 1 / 3, 2 / 3, 1])
    # (3 x 0.25 + 1 x 0) / 4
    assert curve.get_title() == "two rings, ECE 0.188"
    assert counts.get_yscale() == "log"


def test_reliability_diagrams_share_a_picture_by_name() -> None:
    perfect = Reliability(np.array([0.5]), np.array([0.5]), np.array([9]))
    curve, counts = plots.reliability_diagram({"first": HALVES, "second": perfect}).axes
    assert legend(curve) == ["first (ECE 0.188)", "second (ECE 0.000)"]
    np.testing.assert_array_equal(lines(curve)["second (ECE 0.000)"], [[0.5, 0.5]])
    assert len(counts.patches) == 2
    assert curve.get_title() == ""


def test_the_risk_coverage_curve_is_drawn_above_the_best_one() -> None:
    (axis,) = plots.risk_coverage_curves(risk_coverage([True, False, True], [3, 2, 1]), title="two rings").axes
    curve, best = (np.asarray(line.get_xydata()) for line in axis.lines)
    np.testing.assert_allclose(curve, [[1 / 3, 0], [2 / 3, 1 / 2], [1, 1 / 3]])
    np.testing.assert_allclose(best, [[1 / 3, 0], [2 / 3, 0], [1, 1 / 3]])
    # (0 + 1 / 2 + 1 / 3) / 3
    assert axis.get_title() == "two rings, AURC 0.278"
    assert axis.get_ylim() == pytest.approx((0, 1.05 / 2))
    assert axis.get_legend() is None


def test_risk_coverage_curves_share_a_picture_by_name_and_stay_small() -> None:
    rng = np.random.default_rng(0)
    many = risk_coverage(rng.random(20_000) < 0.9, rng.random(20_000))
    (axis,) = plots.risk_coverage_curves({"many": many, "right": risk_coverage([True], [0.5])}).axes
    assert legend(axis) == [f"many (AURC {many.area:.3f})", "right (AURC 0.000)"]
    points = lines(axis)[f"many (AURC {many.area:.3f})"]
    assert len(points) == 2000
    np.testing.assert_allclose(points[[0, -1]], [[1 / 20_000, many.risk[0]], [1, many.risk[-1]]])
    assert axis.get_title() == ""


def test_the_steep_start_of_a_risk_coverage_curve_is_out_of_the_range() -> None:
    (axis,) = plots.risk_coverage_curves(risk_coverage([False] + [True] * 99, -np.arange(100))).axes
    assert axis.get_ylim() == pytest.approx((0, 1.05 / 11))
    assert plots.risk_coverage_curves(risk_coverage([True], [1])).axes[0].get_ylim() == (0, 1)


def test_the_learning_curve_shows_the_bound_and_each_validation_metric() -> None:
    (bound,) = plots.learning_curve(HISTORY).axes
    points = np.asarray(bound.lines[0].get_xydata())
    np.testing.assert_array_equal(points, [[record["epoch"], record["elbo"]] for record in HISTORY])
    assert bound.get_legend() is None
    bound, score = plots.learning_curve({"plain": HISTORY, "validated": VALIDATED}).axes
    assert legend(bound) == ["plain", "validated"]
    assert (bound.get_ylabel(), score.get_ylabel(), score.get_xlabel()) == ("ELBO", "validation P@1", "epoch")
    assert len(lines(score)["plain"]) == 0
    np.testing.assert_allclose(lines(score)["validated"][:, 1], np.arange(1, 21) / 20)


def test_the_steep_start_is_out_of_the_range() -> None:
    (bound,) = plots.learning_curve(HISTORY).axes
    low, high = bound.get_ylim()
    assert -100 < HISTORY[1]["elbo"] < low < HISTORY[2]["elbo"]
    assert HISTORY[-1]["elbo"] < high < 0


def test_one_epoch_is_drawn_as_a_point() -> None:
    figure = plots.learning_curve([{"epoch": 1.0, "elbo": -1e9}])
    assert figure.axes[0].lines[0].get_marker() == "."
    figure.canvas.draw()


def test_the_error_curve_is_sorted_along_a_logarithmic_axis_with_reference_lines() -> None:
    curves = {"OVSE-P": ([1000, 100], [0.02, 0.04]), "RM-P": ([100], [0.03])}
    (axis,) = plots.error_curve(curves, reference={"OVSE-LIN": 0.08}).axes
    assert axis.get_xscale() == "log"
    assert axis.get_xlabel() == "inducing inputs M"
    np.testing.assert_array_equal(lines(axis)["OVSE-P"], [[100, 0.04], [1000, 0.02]])
    np.testing.assert_array_equal(lines(axis)["OVSE-LIN"][:, 1], [0.08, 0.08])
    assert legend(axis) == ["OVSE-P", "RM-P", "OVSE-LIN"]


def test_inducing_inputs_are_images_at_the_start_and_of_each_model() -> None:
    rng = np.random.default_rng(0)
    before, first, second = rng.random((5, 6)), rng.normal(size=(5, 6)), rng.random((5, 6))
    first[3, 0] = -9
    figure = plots.inducing_images(before, {"one": first, "two": second}, image_shape=(2, 3), rows=(3, 1))
    assert len(figure.axes) == 6
    assert [axis.get_title() for axis in figure.axes] == ["start", "one", "two", "", "", ""]
    shown = [axis.images[0] for axis in figure.axes]
    for image, row in zip(shown, [before[3], first[3], second[3], before[1], first[1], second[1]], strict=True):
        np.testing.assert_array_equal(image.get_array(), row.reshape(2, 3))
    for column, inputs in ((0, before), (2, second)):
        assert shown[column].get_clim() == shown[column + 3].get_clim() == (inputs[[1, 3]].min(), inputs[[1, 3]].max())
    assert shown[1].get_clim() == shown[4].get_clim() == (-9, 9)


def test_images_are_square_and_the_first_four_unless_said_otherwise() -> None:
    figure = plots.inducing_images(np.zeros((7, 9)), np.ones((7, 9)))
    assert [axis.get_title() for axis in figure.axes[:2]] == ["start", "trained"]
    assert len(figure.axes) == 4 * 2
    assert figure.axes[0].images[0].get_array().shape == (3, 3)
    assert len(plots.inducing_images(np.zeros((2, 4)), np.ones((2, 4))).axes) == 2 * 2


def test_the_confusion_matrix_shows_counts_and_shares_of_the_true_class() -> None:
    (axis,) = plots.confusion_matrix([[3, 1], [0, 0]], ["cat", "dog"]).axes
    np.testing.assert_array_equal(axis.images[0].get_array(), [[0.75, 0.25], [0, 0]])
    assert {text.get_text(): text.get_position() for text in axis.texts} == {"3": (0, 0), "1": (1, 0)}
    assert [label.get_text() for label in axis.get_yticklabels()] == ["cat", "dog"]


def curve_of(p: object, y: object) -> PrecisionRecall:
    metrics = LabelMetrics(2)
    metrics.update(np.array(p), np.array(y))
    return metrics.precision_recall()


def test_precision_over_recall_is_drawn_with_the_best_threshold() -> None:
    curve = curve_of([[0.75, 0.5], [0.25, 0.125]], [[1, 0], [1, 1]])
    (axis,) = plots.precision_recall_curves(curve, title="two rings").axes
    best, points = (np.asarray(line.get_xydata()) for line in axis.lines)
    np.testing.assert_allclose(points, [[1 / 3, 1], [2 / 3, 2 / 3], [1, 3 / 4]])
    np.testing.assert_allclose(best, [[1, 3 / 4]])
    assert legend(axis) == ["best F1 0.857, at 0.125"]
    # (1 + 2 / 3 + 3 / 4) / 3
    assert axis.get_title() == "two rings, AP 0.806"
    (axis,) = plots.precision_recall_curves({"one": curve, "two": curve}).axes
    assert [text for text in legend(axis) if "AP" in text] == ["one (AP 0.806)", "two (AP 0.806)"]
    many = PrecisionRecall(*np.linspace(1, 0, 3 * 5001)[:-3].reshape(3, -1), average_precision=0.5)
    (axis,) = plots.precision_recall_curves(many).axes
    assert len(axis.lines[1].get_xydata()) == 2000


def test_reports_stand_beside_the_reliability_diagram() -> None:
    curve = curve_of([[0.75, 0.5]], [[1, 0]])
    figure = plots.label_report({"all labels": HALVES, "best": HALVES}, curve, title="test.txt")
    diagram, counts, axis = figure.axes
    assert legend(diagram) == ["all labels (ECE 0.188)", "best (ECE 0.188)"]
    assert (counts.get_ylabel(), axis.get_title(), figure.get_suptitle()) == ("number", "AP 1.000", "test.txt")
    figure.canvas.draw()
    # Without a true label there is no curve, but there are probabilities.
    assert (
        len(plots.label_report(HALVES, curve_of([[0.75, 0.5]], [[0, 0]])).axes[2].get_legend_handles_labels()[0]) == 0
    )
    figure = plots.class_report(HALVES, [[3, 1], [0, 0]], ["cat", "dog"], title="test.txt")
    diagram, counts, matrix = figure.axes
    assert diagram.get_title() == "ECE 0.188"
    assert [label.get_text() for label in matrix.get_xticklabels()] == ["cat", "dog"]
    np.testing.assert_array_equal(matrix.images[0].get_array(), [[0.75, 0.25], [0, 0]])
    figure.canvas.draw()
    largest = plots.class_report(HALVES, np.eye(30), list(map(str, range(30))), largest=4)
    assert largest.axes[2].get_xticklabels()[-1].get_text() == "others (26)"


@pytest.mark.parametrize("form", [np.asarray, csr_matrix, coo_array])
def test_small_classes_of_a_confusion_matrix_are_one(form: Callable) -> None:
    matrix = form(np.array([[5, 1, 0, 2], [1, 0, 1, 0], [0, 2, 6, 0], [1, 0, 3, 0]]))
    (axis,) = plots.confusion_matrix(matrix, list("abcd"), largest=2).axes
    assert [label.get_text() for label in axis.get_xticklabels()] == ["a", "c", "others (2)"]
    np.testing.assert_allclose(
        axis.images[0].get_array(), np.divide([[5, 0, 3], [0, 6, 2], [2, 4, 0]], [[8], [8], [6]])
    )
    assert {text.get_position(): text.get_text() for text in axis.texts}[0, 2] == "2"


@pytest.mark.parametrize(
    ("draw", "error", "message"),
    [
        (lambda: plots.reliability_diagram({}), DataError, "needs probabilities"),
        (
            lambda: plots.reliability_diagram(Reliability(np.full(2, np.nan), np.full(2, np.nan), np.zeros(2, int))),
            DataError,
            "needs probabilities",
        ),
        (lambda: plots.precision_recall_curves({}), DataError, "one or more true labels"),
        (lambda: plots.precision_recall_curves(curve_of([[0.5, 0]], [[0, 1]])), DataError, "one or more true labels"),
        (lambda: plots.class_report(HALVES, np.eye(3), ["a", "b"]), DataError, "2 x 2; got shape"),
        (lambda: plots.label_report({}, curve_of([[0.5, 0]], [[1, 1]])), DataError, "needs probabilities"),
        (lambda: plots.risk_coverage_curves({}), DataError, "one or more predictions"),
        (
            lambda: plots.risk_coverage_curves({"none": RiskCoverage(*np.zeros((3, 0)))}),
            DataError,
            "one or more predictions",
        ),
        (lambda: plots.learning_curve([]), DataError, "one or more records"),
        (lambda: plots.learning_curve({"a": HISTORY, "b": []}), DataError, "one or more records"),
        (lambda: plots.learning_curve([{"epoch": 1.0}]), DataError, "epoch and elbo"),
        (lambda: plots.error_curve({}), DataError, "one or more curves"),
        (lambda: plots.error_curve({"RM-F": ([0, 1], [1, 1])}), DataError, "RM-F needs .* positive inducing inputs M"),
        (lambda: plots.error_curve({"RM-F": ([1, 2], [1])}), DataError, r"got \(2,\), \(1,\)"),
        (lambda: plots.error_curve({"RM-F": ([1], [np.nan])}), DataError, "RM-F"),
        (lambda: plots.inducing_images(np.ones((3, 4)), np.ones((2, 4))), DataError, r"trained .* \(2, 4\), the first"),
        (lambda: plots.inducing_images(np.ones((3, 4)), np.full((3, 4), np.nan)), DataError, "finite"),
        (lambda: plots.inducing_images(csr_matrix(np.eye(4)), np.eye(4)), DataError, "start is object"),
        (lambda: plots.inducing_images(np.ones((3, 6)), np.ones((3, 6))), SettingsError, "6 features make no square"),
        (
            lambda: plots.inducing_images(np.ones((3, 6)), np.ones((3, 6)), image_shape=(2, 2)),
            SettingsError,
            "2 x 2 has 4 pixels; there are 6 features",
        ),
        (
            lambda: plots.inducing_images(np.ones((3, 4)), np.ones((3, 4)), rows=(3,)),
            SettingsError,
            "3 inducing inputs",
        ),
        (lambda: plots.inducing_images(np.ones((3, 4)), np.ones((3, 4)), rows=()), SettingsError, "got \\[\\]"),
        (lambda: plots.confusion_matrix(np.eye(3), ["a", "b"]), DataError, r"2 x 2; got shape \(3, 3\)"),
        (lambda: plots.confusion_matrix([[1, -1], [0, 1]], ["a", "b"]), DataError, "at least 0"),
        (lambda: plots.confusion_matrix(np.eye(2), ["a", "b"], largest=0), SettingsError, "largest must be a positive"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw: Callable[[], Figure], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        draw()


def test_drawing_leaves_the_settings_of_matplotlib_alone() -> None:
    before = dict(rcParams)
    plots.learning_curve(HISTORY).canvas.draw()
    assert dict(rcParams) == before


def test_a_notebook_gets_a_picture_of_a_figure_and_of_its_copy() -> None:
    figure = plots.learning_curve(HISTORY)
    for shown in (figure, pickle.loads(pickle.dumps(figure))):
        picture = shown._repr_png_()
        width, height = struct.unpack(">II", picture[16:24])
        assert picture.startswith(b"\x89PNG\r\n")
        assert (width / height) == pytest.approx(4.5 / 2.8, rel=0.02)


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_matplotlib_is_imported_when_something_is_drawn_and_pyplot_never() -> None:
    run(
        "import sys\n"
        "from extremegp import plots\n"
        "assert not any(name.startswith('matplotlib') for name in sys.modules)\n"
        "plots.error_curve({'a': ([1, 2], [3, 4])})._repr_png_()\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )


def test_without_matplotlib_the_error_names_the_extra() -> None:
    run(
        "import sys\n"
        "sys.modules['matplotlib'] = None\n"
        "from extremegp import plots\n"
        "try:\n"
        "    plots.error_curve({'a': ([1, 2], [3, 4])})\n"
        "except ImportError as error:\n"
        "    assert \"pip install 'extremegp[plot]'\" in str(error), error\n"
        "else:\n"
        "    raise AssertionError('drew without Matplotlib')\n"
    )


def test_an_explanation_is_drawn_as_bars_of_documents_and_of_features() -> None:
    documents = [Share("first $id$", 0.3), Share("second\n" + 60 * "x", -0.1), Share("others", 0.2)]
    features = [Share("word", 0.5), Share("others", -0.1)]
    why = Explanation("label", 0.75, 0.1, 0.5, documents, features, {})
    figure = plots.explanation_bars(why)
    for axis, shares in zip(figure.axes, (documents, features), strict=True):
        assert [bar.get_width() for bar in axis.patches] == [each.share for each in shares]
        assert axis.get_ylim()[0] > axis.get_ylim()[1]
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names[0] == r"first \$id\$"
    assert names[1].startswith("second xxx")
    assert len(names[1]) == 40
    assert figure.axes[0].get_title() == "label: p 0.750\n10.0 % of all documents, 50.0 % of those like this one"
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    assert plots.explanation_bars(why, title="why").axes[0].get_title() == "why"
    with pytest.raises(DataError, match="documents and of features"):
        plots.explanation_bars(why._replace(features=[]))
