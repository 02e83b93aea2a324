"""Pages of reports: well-formed, whole, escaped, and with the figures that the metrics give."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from tests.estimators.small import label_lists, small_classifier, small_data
from tests.estimators.small_sequences import small_tagger, sticky
from tests.estimators.test_learning_closed import classes, labelled, names_of
from tests.report.pages import HOSTILE, checked

from extremegp import LabelTreeGPClassifier, MultiClassGPClassifier, MultiLabelGPClassifier
from extremegp.errors import DataError, SettingsError
from extremegp.metrics import ClassMetrics, SequenceMetrics, evaluate_sequences, propensities
from extremegp.metrics.measured import measure
from extremegp.report import findings, labels, make_report
from extremegp.report.markup import Column, table, text
from extremegp.report.pictures import Line, histogram, line_chart

TEXTS = [f"word{a} word{b} word{a + b} {HOSTILE[(a + b) % 6]}" for a in range(12) for b in range(12)]
LABELS = [[f"{HOSTILE[a % 4]} {a % 4}", f"other{b % 3}"] for a in range(12) for b in range(12)]
QUICK: dict[str, Any] = {"n_resamples": 100}


@pytest.fixture(scope="module")
def trees() -> Any:
    small: dict[str, Any] = {"n_trees": 2, "leaf_size": 4, "n_inducing": 8, "random_state": 0, "verbose": False}
    ids = [f"{HOSTILE[i % 6]} {i}" for i in range(144)]
    return LabelTreeGPClassifier(features="text", **small).fit(TEXTS, LABELS, ids=ids)


@pytest.fixture(scope="module")
def landmarks() -> Any:
    x, y = labelled(300)
    model = MultiLabelGPClassifier(n_inducing=40, epochs=8, random_state=0, verbose=False)
    return model.fit(x, names_of(y))


@pytest.fixture(scope="module")
def regression() -> Any:
    return MultiClassGPClassifier(n_inducing=40, random_state=0, verbose=False).fit(*classes(150))


@pytest.fixture(scope="module")
def tagger() -> Any:
    return small_tagger().fit(*sticky(30))


def test_label_trees_with_hostile_texts_and_names_are_text_alone(trees: Any) -> None:
    found = make_report(trees, TEXTS[::3], LABELS[::3], title=HOSTILE[0], ids=list(HOSTILE) * 8, **QUICK)
    page = checked(found.html)
    for hostile in (HOSTILE[0], HOSTILE[1], HOSTILE[3], HOSTILE[5]):
        assert hostile in page.text
        assert hostile not in found.html or "<" not in hostile
    # Marks that turn the direction of text are shown as what they are not.
    assert "\u202e" not in found.html
    assert "$title" in page.text
    assert {"quality", "calibration", "selective", "labels", "novelty", "issues", "examples"} <= {*page.ids}
    assert {"model", "training", "times", "figures", "all-figures", "worst"} <= {*page.ids}
    assert "why" in page.text
    assert "document" in page.text


@pytest.mark.parametrize("dense", [True, False])
def test_figures_of_labels_are_those_of_the_metrics(
    landmarks: Any, dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = labelled(120, 5)
    p = landmarks.predict_proba(x)
    truth = landmarks.encode_labels(names_of(y))
    counts = landmarks.label_counts_
    chances = propensities(counts, landmarks.n_rows_)
    blocks = iter([(slice(0, 120), p, p)])
    expected = measure(blocks, truth, ks=(1, 3), propensity=chances, train_counts=counts, threshold=0.4).metrics
    if not dense:
        monkeypatch.setattr(labels, "DENSE_LABELS", 1)
    found = make_report(landmarks, x, names_of(y), ks=(1, 3), threshold=0.4, **QUICK)
    page = checked(found.html)
    shown = page.figures["all-figures"]
    assert {name: value for name, (value,) in shown.items()} == pytest.approx(
        {name: value for name, value in found.metrics.items() if not np.isnan(value)}
    )
    same = [name for name in found.metrics if name in expected and not np.isnan(expected[name])]
    assert len(same) > 30
    for name in same:
        assert found.metrics[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    assert {"P@1", "nDCG@3", "PSP@3", "R@3", "micro_f1", "macro_f1", "example_f1", "ECE@1"} <= found.intervals.keys()


@pytest.mark.parametrize("dense", [True, False])
def test_what_intervals_are_made_of_gives_the_figures_themselves(
    trees: Any, landmarks: Any, regression: Any, tagger: Any, dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not dense:
        monkeypatch.setattr(labels, "DENSE_LABELS", 1)
    options: dict[str, Any] = {"ks": (1, 3, 5), "propensity": (0.55, 1.5), "threshold": 0.5, "seed": 0}
    x, y = labelled(100, 6)
    many = [labels.find(landmarks, x, names_of(y), **options), labels.find(trees, TEXTS[::2], LABELS[::2], **options)]
    from extremegp.report import classes as of_classes
    from extremegp.report import sequences as of_sequences

    one = of_classes.find(regression, *classes(90, 4), ks=(1, 3), seed=0)
    tokens = of_sequences.find(tagger, *sticky(12, seed=3), decoding="viterbi", seed=0)
    for found in (*many, one, tokens):
        estimates = found.sums.estimates()
        assert len(estimates) >= 6
        for name, value in estimates.items():
            if name in found.metrics:
                assert value == pytest.approx(found.metrics[name], rel=1e-4, abs=1e-6), name
    assert {"log_loss" if dense else "log_loss_top20", "PSP@5"} <= many[0].sums.estimates().keys()
    assert {"nll_struct_per_token", "token_error"} <= tokens.sums.estimates().keys()
    assert {"accuracy", "top3_accuracy", "nlpd"} <= one.sums.estimates().keys()


def test_figures_of_classes_are_those_of_the_metrics(regression: Any) -> None:
    x, y = classes(90, 4)
    y = y.copy()
    quality = ClassMetrics(len(regression.classes_), ks=(1, 3))
    quality.update(regression.predict_proba(x), regression.encode_labels(y))
    found = make_report(regression, x, y, ks=(1, 3), **QUICK)
    page = checked(found.html)
    for name, value in quality.compute().items():
        assert page.figures["all-figures"][name] == [pytest.approx(value, rel=1e-4, abs=1e-6)]
    assert {"accuracy", "macro_f1", "nlpd", "ece"} <= found.intervals.keys()
    assert found.intervals["accuracy"][0] <= found.metrics["accuracy"] <= found.intervals["accuracy"][1]
    assert "closed form" in page.text
    assert page.figures["worst"].keys() <= {str(name) for name in regression.classes_}


def test_figures_of_sequences_are_those_of_the_metrics(tagger: Any) -> None:
    X, y = sticky(16, seed=2)
    found = make_report(tagger, X, y, decoding="viterbi", **QUICK)
    page = checked(found.html)
    quality = SequenceMetrics(tagger.classes_.tolist())
    marginals = np.concatenate(tagger.predict_marginals(X))
    decoded = [best[0][0] for best in tagger.predict_k_best(X, 1)]
    expected = evaluate_sequences(
        y, decoded, marginals, tagger.classes_.tolist(), sequence_log_prob=tagger.log_prob(X, y)
    )
    assert quality.classes == tuple(tagger.classes_.tolist())
    for name in ("token_error", "sequence_error", "nll_struct", "nll_unstruct", "brier", "ece", "aurc"):
        assert page.figures["all-figures"][name] == [pytest.approx(expected[name], rel=1e-3, abs=1e-6)]
    assert "models of sequences keep no training rows" in page.text
    assert "w0" in page.text


def test_hostile_tokens_labels_and_labels_that_training_never_saw_are_text() -> None:
    X = [[(HOSTILE[0], "a"), ("b", HOSTILE[1])], [("c", "d")]] * 8
    y = [["B-<b>", "O"], ["O"]] * 8
    model = small_tagger(template="U0:%x[0,0]\nB\n").fit(X, y)
    y[0] = ["B-<b>", HOSTILE[0]]
    page = checked(make_report(model, X, y, **QUICK).html)
    assert HOSTILE[0] in page.text
    assert "1 tokens have a label that training never saw" in page.text


def test_models_that_cannot_explain_say_why_in_a_line() -> None:
    x, y = small_data()
    by_steps = small_classifier().fit(x, label_lists(y))
    page = checked(make_report(by_steps, x, label_lists(y), **QUICK).html)
    reason = by_steps.can_learn()
    assert reason is not None
    assert f"There are no explanations: {reason}." in page.text
    # Trained by steps: there is a curve.
    assert "ELBO per row by epoch" in page.text


def test_other_forms_of_inputs_are_shown(tmp_path: Path) -> None:
    x, y = small_data()
    model = small_classifier().fit(scipy.sparse.csr_matrix(x), scipy.sparse.csr_matrix(y))
    checked(make_report(model, scipy.sparse.csr_matrix(x), scipy.sparse.csr_matrix(y), **QUICK).html)
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(x, columns=[f"<b>{i}" for i in range(x.shape[1])])
    named = small_classifier().fit(frame, label_lists(y))
    page = checked(make_report(named, frame, label_lists(y), **QUICK).html)
    assert "<b>" not in page.tags
    blocks = {"text": TEXTS, "vectors": np.eye(144, 3, dtype=np.float32) + 0.1}
    model = small_classifier(features={"text": "text", "vectors": "unit"}).fit(blocks, LABELS)
    page = checked(make_report(model, blocks, LABELS, **QUICK).html)
    assert HOSTILE[5] in page.text


def test_rows_can_be_left_out(trees: Any) -> None:
    secret = [f"{each} secretword" for each in TEXTS[::3]]
    shown = make_report(trees, secret, LABELS[::3], ids=[f"secretid{i}" for i in range(48)], **QUICK).html
    hidden = make_report(
        trees, secret, LABELS[::3], ids=[f"secretid{i}" for i in range(48)], show_rows=False, **QUICK
    ).html
    assert "secretword" in shown
    assert "secretid" in shown
    assert "secretword" not in hidden
    assert "secretid" not in hidden
    # Explanations name training rows.
    assert "left out of this page" in checked(hidden).text


def test_equal_seeds_give_equal_pages_but_for_times(regression: Any) -> None:
    def page(seed: int) -> str:
        html = make_report(regression, *classes(60, 4), seed=seed, **QUICK).html
        html = re.sub(r"written [\d-]+ [\d:]+ UTC", "", html)
        return re.sub(r'<section id="times">.*?</section>', "", html, flags=re.DOTALL)

    assert page(1) == page(1)
    assert page(1) != page(2)


def test_empty_labels_and_single_rows_make_a_page(trees: Any, regression: Any) -> None:
    checked(make_report(trees, ["word1 word2"], [[]], **QUICK).html)
    checked(make_report(trees, ["word1 word2", "word3"], [["never seen"], []], **QUICK).html)
    x, _ = classes(1)
    page = checked(make_report(regression, x, np.array(["never seen"]), **QUICK).html)
    assert "1 rows have a class that training never saw" in page.text


def test_bad_input_is_refused(trees: Any, regression: Any) -> None:
    with pytest.raises(DataError, match="rows"):
        make_report(trees, TEXTS[:3], LABELS[:2])
    with pytest.raises(DataError):
        make_report(regression, *classes(0))
    for wrong in ({"n_resamples": 5}, {"seed": -1}, {"threshold": 0}):
        with pytest.raises(SettingsError):
            make_report(regression, *classes(9), **wrong)  # type: ignore[arg-type]


def test_bands_are_of_training_rows() -> None:
    bins = findings.BandBins(np.array([0, 1, 9, 10, 99, 100, 1000, 5000]))
    bins.add(np.arange(8), np.full(8, 0.5), np.ones(8, np.bool_))
    diagrams = bins.diagrams()
    assert list(diagrams) == ["0", "1 to 9", "10 to 99", "100 to 999", "1000 or more"]
    assert [int(each.count.sum()) for each in diagrams.values()] == [1, 2, 2, 1, 2]


def test_rows_to_show_are_of_every_kind() -> None:
    error = np.array([1, 1, 0, 0, 1, 0, 0, 0.0])
    max_p = np.array([0.9, 0.8, 0.95, 0.6, 0.1, 0.2, 0.3, 0.4])
    chosen = findings.chosen_rows(error, max_p, -max_p, seed=0)
    assert [(each.row, each.because) for each in chosen[:4]] == [
        (0, "sure, and wrong"),
        (1, "sure, and wrong"),
        (4, "least sure"),
        (2, "sure, and right"),
    ]
    assert len({each.row for each in chosen}) == len(chosen) == 6


def test_texts_are_cut_and_cleaned() -> None:
    assert text("a\x00b\ud800\u202ec") == "a\N{REPLACEMENT CHARACTER}b" + 2 * "\N{REPLACEMENT CHARACTER}" + "c"
    assert text("<&\">'") == "&lt;&amp;&quot;&gt;&#x27;"
    assert len(text(500 * "x")) == 160
    text("\ud800").encode()


def test_tables_and_pictures_are_of_any_numbers() -> None:
    checked_table = table("<b>", [Column("a", False)], [("<i>",)])
    assert "<i>" not in checked_table
    flat = line_chart("flat", [Line("", np.array([1.0]), np.array([2.0]))], x="<x>", y="y")
    assert "<x>" not in flat
    assert "nan" not in flat
    wide = line_chart("wide", [Line("a", np.arange(10_000.0), np.arange(10_000.0) * 1e9)], x="x", y="y")
    assert len(wide) < 20_000
    assert 'height="0.0"' in histogram("none", [0, 0], x="x", y="y")
