"""`extremegp train`, `evaluate`, `predict` and `info` for sequences of tokens in columns."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support
from tests.cli.conftest import QUICK_TAGGER, Process, Run, columns, written

import extremegp
from extremegp import SequenceGPClassifier
from extremegp.data import convert_tags, read_columns
from extremegp.data.templates import default_template
from extremegp.metrics import evaluate_sequences
from extremegp.presets import SEQUENCE_PRESETS


@pytest.fixture(scope="module")
def uncertain(sequence_files: Path, run: Run) -> Path:
    """A model by chunks.template with a posterior, whose predictions average draws."""
    args = ("--template", sequence_files / "chunks.template", "--out", sequence_files / "uncertain", "--quiet")
    settings = ("--set", "epochs=20", "--set", "n_random_features=20", "--set", "n_draws=4")
    assert run("train", sequence_files / "train.txt", *args, *settings).output == ""
    return sequence_files / "uncertain"


def split(part: str) -> tuple[list[list[tuple[str, str]]], list[list[str]]]:
    return (
        [[token[:2] for token in tokens] for tokens in columns(part)],
        [[token[2] for token in tokens] for tokens in columns(part)],
    )


def evaluated(run: Run, *args: object) -> dict[str, Any]:
    result = run("evaluate", *args, "--json", "-")
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def bits(model: Path) -> bytes:
    return (model / "tensors.safetensors").read_bytes()


def test_the_model_is_the_one_that_the_library_trains(sequence_files: Path, tagger: Path, tmp_path: Path) -> None:
    own = SequenceGPClassifier(
        template=default_template(2),
        latents="linear-point",
        transitions="point",
        epochs=8,
        random_state=0,
        verbose=False,
    )
    own.fit(*split("train")).save(tmp_path / "same")
    assert bits(tagger) == bits(tmp_path / "same")
    assert not (sequence_files / "tagger.checkpoint").exists()


@pytest.mark.parametrize("decoding", ["max-marginal", "viterbi"])
def test_metrics_are_those_of_the_estimator(sequence_files: Path, uncertain: Path, run: Run, decoding: str) -> None:
    model = extremegp.load(uncertain)
    assert isinstance(model, SequenceGPClassifier)
    model.set_params(decoding=decoding)
    X, y = split("test")
    wanted = evaluate_sequences(
        y,
        model.predict(X),
        np.concatenate(model.predict_marginals(X)),
        model.classes_.tolist(),
        sequence_log_prob=model.log_prob(X, y),
    )
    found = evaluated(run, uncertain, sequence_files / "test.txt", "--decoding", decoding)
    assert found["decoding"] == decoding
    counts = {name: int(wanted.pop(name)) for name in ("n_sequences", "n_tokens", "n_unknown")}
    assert (found["n_sequences"], found["n_tokens"], found["n_unknown_tokens"]) == tuple(counts.values())
    assert found["metrics"].pop("seconds") > 0
    assert found["metrics"] == pytest.approx(wanted, rel=1e-5)
    assert 0 < wanted["span_f1"] < 1
    shown = [line.split() for line in run("evaluate", uncertain, sequence_files / "test.txt").stdout.splitlines()]
    if decoding == "max-marginal":
        assert ["token_error", f"{100 * wanted['token_error']:.2f}"] in shown
        assert ["NLL_struct", "(nats)", f"{wanted['nll_struct']:.4g}"] in shown
        assert found["spans"].keys() == {"NP"}


def test_the_decoding_is_the_model_s_unless_said(sequence_files: Path, tmp_path: Path, run: Run) -> None:
    args = (
        "train",
        sequence_files / "train.txt",
        "--out",
        tmp_path / "m",
        *QUICK_TAGGER,
        "--set",
        "decoding=viterbi",
        "--quiet",
    )
    assert run(*args).exit_code == 0
    assert evaluated(run, tmp_path / "m", sequence_files / "test.txt")["decoding"] == "viterbi"


def test_predictions_stand_beside_the_columns(sequence_files: Path, uncertain: Path, tmp_path: Path, run: Run) -> None:
    model = extremegp.load(uncertain)
    X, y = split("test")
    marginals = model.predict_marginals(X)
    labels = [part.tolist() for part in model.predict(X)]
    result = run("predict", uncertain, sequence_files / "bare.txt", "--out", tmp_path / "bare.tsv", "--json", "-")
    assert json.loads(result.stdout)["n_tokens"] == sum(map(len, X))
    assert tuple(read_columns(tmp_path / "bare.tsv", separator="\t")) == (X, labels)
    # With labels in DATA these stay, before the predicted ones.
    out = tmp_path / "all.tsv.gz"
    assert (
        run("predict", uncertain, sequence_files / "test.txt", "--probabilities", "--out", out, "--quiet").output == ""
    )
    text = gzip.decompress(out.read_bytes()).decode()
    for block, x, own, found, p in zip(text.strip().split("\n\n"), X, y, labels, marginals, strict=True):
        for line, token, label, predicted, row in zip(block.split("\n"), x, own, found, p, strict=True):
            *cells, probability = line.split("\t")
            assert cells == [*token, label, predicted]
            assert float(probability) == pytest.approx(row.max(), abs=1e-6)


def test_without_a_file_predictions_alone_go_to_standard_output(
    sequence_files: Path, tagger: Path, tmp_path: Path, run: Run
) -> None:
    result = run("predict", tagger, sequence_files / "test.txt")
    assert (result.exit_code, result.stderr) == (0, "")
    shown = run("predict", tagger, sequence_files / "test.txt", "--out", tmp_path / "o.txt").stdout
    assert re.match(r"15 sequences of \d+ tokens to .*o\.txt in", shown)
    assert (tmp_path / "o.txt").read_text() == result.stdout
    run.fails("predict", tagger, sequence_files / "test.txt", "--json", "-", naming="--json -")


def test_the_k_best_labellings_have_their_log_probabilities(sequence_files: Path, uncertain: Path, run: Run) -> None:
    model = extremegp.load(uncertain)
    X, _ = split("test")
    text = run("predict", uncertain, sequence_files / "bare.txt", "--k-best", "3", "--probabilities").stdout
    labellings = iter(text.strip().split("\n\n"))
    classes = model.classes_.tolist()
    for x, best, p in zip(X, model.predict_k_best(X, 3), model.predict_marginals(X), strict=True):
        for rank, (labels, log_prob) in enumerate(best):
            header, *lines = next(labellings).split("\n")
            sign, number, value = header.split(" ")
            assert (sign, int(number)) == ("#", rank)
            assert float(value) == pytest.approx(log_prob, abs=1e-6)
            for line, token, label, row in zip(lines, x, labels, p, strict=True):
                *cells, probability = line.split("\t")
                assert cells == [*token, label]
                assert float(probability) == pytest.approx(row[classes.index(label)], abs=1e-6)
    assert next(labellings, None) is None


@pytest.mark.parametrize("threshold", [None, 0.4])
@pytest.mark.parametrize("told", [True, False])
def test_the_uncertainty_of_every_token_comes_last(
    sequence_files: Path, uncertain: Path, run: Run, told: bool, threshold: float | None
) -> None:
    model = extremegp.load(uncertain)
    X, _ = split("test")
    options: list[object] = ["--probabilities"] + ["--uncertainty"] * told
    options += [] if threshold is None else ["--novelty-threshold", threshold]
    plain = run("predict", uncertain, sequence_files / "bare.txt", "--probabilities").stdout.split("\n")
    lines = run("predict", uncertain, sequence_files / "bare.txt", *options).stdout.split("\n")
    parts = [np.stack(part, axis=1) for part in model.predict_uncertainty(X)]
    expected = iter(np.concatenate(parts))
    marks = set()
    for line, before in zip(lines, plain, strict=True):
        n_columns = before.count("\t") + 1
        assert line.split("\t")[:n_columns] == before.split("\t")
        if not line:
            continue
        measured, values = line.split("\t")[n_columns:], next(expected)
        if threshold is not None:
            marks.add(mark := measured.pop())
            assert mark == str(bool(values[-1] < threshold)).lower()
        assert len(measured) == 5 * told
        np.testing.assert_allclose(np.array(measured, dtype=float), values[: len(measured)], rtol=1e-5, atol=1e-7)
    assert next(expected, None) is None
    assert marks == (set() if threshold is None else {"true", "false"})


def test_the_viterbi_path_is_the_best_labelling(sequence_files: Path, tagger: Path, run: Run) -> None:
    best = run("predict", tagger, sequence_files / "bare.txt", "--k-best", "1").stdout
    viterbi = run("predict", tagger, sequence_files / "bare.txt", "--decoding", "viterbi").stdout
    assert re.sub(r"^# 0 -\d+\.\d+\n", "", best, flags=re.MULTILINE) == viterbi


def test_the_template_is_said_stored_and_shown(sequence_files: Path, tagger: Path, tmp_path: Path, run: Run) -> None:
    args = ("train", sequence_files / "train.txt", *QUICK_TAGGER, "--out", tmp_path / "m", "--overwrite")
    assert run(*args).stderr.startswith("no --template: features are the columns of the tokens -2 to 2")
    assert run(*args, "--quiet").stderr == ""
    result = run(*args, "--template", sequence_files / "chunks.template")
    assert result.stderr == ""
    assert f"Next: extremegp evaluate {tmp_path / 'm'} TEST_DATA" in result.stdout
    info = json.loads(run("info", tmp_path / "m", "--json", "-").stdout)
    assert (info["template"], info["n_columns"]) == ("U0:%x[0,0]\nU1:%x[-1,1]/%x[0,1]\nB\n", 2)
    shown = run("info", tagger).stdout
    for part in ("SequenceGPClassifier", "training tokens", "most frequent labels", "B-NP", "U1.5:%x[-1,1]/%x[0,1]"):
        assert part in shown


def test_the_json_holds_the_result(sequence_files: Path, tmp_path: Path, run: Run) -> None:
    args = ("--preset", "DGP", "--set", "epochs=2", "--set", "n_random_features=10", "--set", "n_draws=3")
    args += ("--valid", sequence_files / "valid.txt", "--time-budget", "1h")
    result = json.loads(
        run("train", sequence_files / "train.txt", *args, "--out", tmp_path / "m", "--json", "-").stdout
    )
    model = extremegp.load(tmp_path / "m")
    assert isinstance(model, SequenceGPClassifier)
    assert (result["n_sequences"], result["n_tokens"]) == (50, sum(map(len, columns("train"))))
    assert (result["n_columns"], result["n_labels"], result["epochs"]) == (2, 3, 2)
    assert result["settings"]["transitions"] == "none"
    assert result["template"] == str(default_template(2))
    assert result["elbo_per_sequence"] == pytest.approx(model.history_[-1]["elbo"] / 50)
    assert result["validation_accuracy"] == max(record["validation_accuracy"] for record in model.history_)
    assert model.time_budget == 3600


def test_elbo_per_sequence_counts_those_trained_on(sequence_files: Path, tmp_path: Path, run: Run) -> None:
    args = (*QUICK_TAGGER, "--set", "validation_fraction=0.2", "--json", "-")
    result = json.loads(run("train", sequence_files / "train.txt", *args, "--out", tmp_path / "m").stdout)
    assert result["elbo_per_sequence"] == pytest.approx(extremegp.load(tmp_path / "m").history_[-1]["elbo"] / 40)


def test_every_preset_has_parameters_that_work() -> None:
    for preset in SEQUENCE_PRESETS.values():
        SequenceGPClassifier(**preset.settings).check_params()


def test_an_interrupted_run_resumes_to_the_same_bits(sequence_files: Path, tmp_path: Path) -> None:
    options = ("--template", str(sequence_files / "chunks.template"), "--valid", str(sequence_files / "valid.txt"))
    options += ("--set", "n_random_features=20", "--set", "batch_size=25", "--set", "n_draws=4")
    whole = Process(sequence_files / "train.txt", tmp_path / "whole", *options)
    assert whole.finished().returncode == 0
    process = Process(sequence_files / "train.txt", tmp_path / "model", *options)
    stopped = process.interrupted(signal.SIGINT)
    assert (stopped.returncode, stopped.stderr.count("\n")) == (130, 1)
    assert f"resumes from {process.checkpoint}; --fresh starts anew" in stopped.stderr
    result = process.finished()
    assert (result.returncode, f"resuming from {process.checkpoint}" in result.stderr) == (0, True)
    assert bits(tmp_path / "model") == bits(tmp_path / "whole")
    assert not process.checkpoint.exists()


def test_labels_never_seen_are_counted_and_told(sequence_files: Path, tagger: Path, tmp_path: Path, run: Run) -> None:
    text = (sequence_files / "test.txt").read_text()
    n_tokens, n_verbs = sum(map(len, columns("test"))), text.count(" O\n")
    (tmp_path / "new.txt").write_text(text.replace(" O\n", " B-VP\n"))
    found = evaluated(run, tagger, tmp_path / "new.txt")
    assert (found["n_unknown_tokens"], found["n_tokens"]) == (n_verbs, n_tokens)
    assert found["metrics"]["token_error"] >= n_verbs / n_tokens
    shown = run("evaluate", tagger, tmp_path / "new.txt").stdout
    assert f"{n_verbs} of {n_tokens} tokens have a label that training never saw (B-VP)" in shown


def test_without_seqeval_a_note_stands_for_the_spans(
    sequence_files: Path, tagger: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("seqeval", "seqeval.metrics", "seqeval.metrics.sequence_labeling"):
        monkeypatch.setitem(sys.modules, name, None)
    found = evaluated(run, tagger, sequence_files / "test.txt")
    assert "span_f1" not in found["metrics"]
    assert "token_error" in found["metrics"]
    assert "pip install 'extremegp[sequences]'" in found["note"]
    assert "F1 of spans is left out" in run("evaluate", tagger, sequence_files / "test.txt").stdout


def test_labels_that_are_no_spans_have_no_f1(sequence_files: Path, tmp_path: Path, run: Run) -> None:
    for part in ("train", "test"):
        (tmp_path / f"{part}.txt").write_text(written([[(w, t) for w, t, _ in s] for s in columns(part)]))
    assert run("train", tmp_path / "train.txt", *QUICK_TAGGER, "--out", tmp_path / "m").exit_code == 0
    found = evaluated(run, tmp_path / "m", tmp_path / "test.txt")
    assert (found["n_labels"], found["spans"], found["note"]) == (4, {}, None)
    assert not any(name.startswith("span") for name in found["metrics"])


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF")])
def test_the_reliability_diagram_is_drawn(
    sequence_files: Path, tagger: Path, tmp_path: Path, run: Run, suffix: str, start: bytes
) -> None:
    picture = tmp_path / f"calibration{suffix}"
    assert run("evaluate", tagger, sequence_files / "test.txt", "--plot", picture, "--quiet").output == ""
    assert picture.read_bytes().startswith(start)


@pytest.mark.parametrize("decoding", ["max-marginal", "viterbi"])
def test_labels_and_their_confusions_are_those_of_the_predictions(
    sequence_files: Path, uncertain: Path, tmp_path: Path, run: Run, decoding: str
) -> None:
    model = extremegp.load(uncertain)
    model.set_params(decoding=decoding)
    X, y = split("test")
    truth, predicted = np.concatenate(y), np.concatenate(model.predict(X))
    args = (uncertain, sequence_files / "test.txt", "--decoding", decoding)
    found = evaluated(run, *args, "--per-class", tmp_path / "each.tsv")
    names = model.classes_.tolist()
    table = confusion_matrix(truth, predicted, labels=names)
    cells = {(cell["true"], cell["predicted"]): cell["count"] for cell in found["confusion"]}
    assert cells == {(names[i], names[j]): table[i, j] for i, j in np.argwhere(table)}
    parts = precision_recall_fscore_support(truth, predicted, labels=names, zero_division=0)
    header, *lines = [line.split("\t") for line in (tmp_path / "each.tsv").read_text().splitlines()]
    assert header == ["class", "support", "predicted", "precision", "recall", "f1"]
    for line, name, precision, recall, f1, support in zip(lines, names, *parts, strict=True):
        assert line[:3] == [name, str(support), str(np.count_nonzero(predicted == name))]
        assert [float(cell) for cell in line[3:]] == pytest.approx([precision, recall, f1], rel=1e-5)
        assert found["labels"][name]["f1"] == pytest.approx(f1)
    span = found["spans"]["NP"]
    assert span["f1"] == pytest.approx(2 / (1 / span["precision"] + 1 / span["recall"]))
    shown = run("evaluate", *args).stdout
    assert "Labels with the lowest F1" in shown
    (true, other), count = next((pair, count) for pair, count in cells.items() if pair[0] != pair[1])
    share = f"{100 * count / np.count_nonzero(truth == true):.2f}"
    confusions = shown.split("Largest confusions")[1]
    assert [true, other, str(count), share] in [line.split() for line in confusions.splitlines()]


def test_separators_and_encodings_are_the_file_s(tmp_path: Path, run: Run) -> None:
    # Blank cells and cells with spaces need a separator; é is one byte, and no UTF-8.
    content = "caf\u00e9 noir\t\tX\u00e9\nth\u00e9\tn\tY\n\nth\u00e9\t\tY\ncaf\u00e9 noir\tn\tX\u00e9\n\n" * 4
    (tmp_path / "train.txt").write_bytes(content.encode("latin-1"))
    form = ("--separator", r"\t", "--encoding", "latin-1")
    result = run("train", tmp_path / "train.txt", *QUICK_TAGGER, *form, "--out", tmp_path / "m")
    assert r"TEST_DATA --separator '\t' --encoding latin-1" in result.stdout
    assert extremegp.load(tmp_path / "m").classes_.tolist() == ["X\u00e9", "Y"]
    assert evaluated(run, tmp_path / "m", tmp_path / "train.txt", *form)["metrics"]["token_error"] == 0
    args = ("predict", tmp_path / "m", tmp_path / "train.txt", *form, "--out", tmp_path / "o.txt", "--quiet")
    assert run(*args).output == ""
    lines = (tmp_path / "o.txt").read_bytes().decode("latin-1").split("\n")
    assert lines[:3] == ["caf\u00e9 noir\t\tX\u00e9\tX\u00e9", "th\u00e9\tn\tY\tY", ""]


def test_models_of_the_library_without_columns_are_refused(sequence_files: Path, tmp_path: Path, run: Run) -> None:
    model = SequenceGPClassifier(latents="linear-point", epochs=1, random_state=0, verbose=False)
    model.fit([[{"word": word} for word, _, _ in tokens] for tokens in columns("train")], split("train")[1])
    model.save(tmp_path / "m")
    for command in ("evaluate", "predict"):
        run.fails(command, tmp_path / "m", sequence_files / "test.txt", naming="has no template")


def test_models_of_the_library_know_their_columns_too(sequence_files: Path, tmp_path: Path, run: Run) -> None:
    model = SequenceGPClassifier(template="U:%x[0,1]\nB", latents="linear-point", epochs=1, verbose=False)
    model.fit(*split("train")).save(tmp_path / "m")
    assert evaluated(run, tmp_path / "m", sequence_files / "test.txt")["n_sequences"] == 15
    assert json.loads(run("info", tmp_path / "m", "--json", "-").stdout)["n_columns"] == 2
    run.fails("evaluate", tmp_path / "m", sequence_files / "bare.txt", naming="was trained on 2 and the label")


def test_known_labels_of_a_file_are_kept_and_told_of(
    sequence_files: Path, uncertain: Path, tmp_path: Path, run: Run
) -> None:
    X, y = split("test")
    given = [[label if t % 2 else None for t, label in enumerate(labels)] for labels in y]
    lines = [
        "".join(f"{' '.join(token)} {label or '?'}\n" for token, label in zip(tokens, labels, strict=True))
        for tokens, labels in zip(X, given, strict=True)
    ]
    (tmp_path / "given.txt").write_text("\n".join(lines))
    args = (
        "predict",
        uncertain,
        sequence_files / "test.txt",
        "--given",
        tmp_path / "given.txt",
        "--unknown-label",
        "?",
    )
    out = tmp_path / "out.tsv"
    run(*args, "--probabilities", "--out", out)
    model = extremegp.load(uncertain)
    assert isinstance(model, SequenceGPClassifier)
    found = read_columns(out, label_column=None, separator="\t").sequences
    labels, marginals = model.predict(X, given), model.predict_marginals(X, given)
    for tokens, wanted, p in zip(found, labels, marginals, strict=True):
        assert [token[-2] for token in tokens] == wanted.tolist()
        np.testing.assert_allclose([float(token[-1]) for token in tokens], p.max(1), atol=1e-5)
    assert any(a.tolist() != b.tolist() for a, b in zip(labels, model.predict(X), strict=True))
    run(*args, "--k-best", "2", "--out", out)
    assert out.read_text().startswith(f"# 0 {model.predict_k_best(X[:1], 2, given[:1])[0][0][1]:.6f}\n")
    run(*args, "--uncertainty", "--out", out)
    (tmp_path / "short.txt").write_text(lines[0])
    run.fails(*args[:4], tmp_path / "short.txt", naming="has 1 sequences, but there are")
    (tmp_path / "other.txt").write_text("\n".join([lines[0] + lines[0].split("\n")[0] + "\n", *lines[1:]]))
    run.fails(*args[:4], tmp_path / "other.txt", naming="tokens in sequence 0 (counted from 0), but there are")
    run.fails(*args[:5], naming="has the label '?', which the model does not know")
    run.fails(*args[:3], "--unknown-label", "?", naming="--unknown-label goes with --given")


def test_training_files_may_leave_tokens_without_labels(sequence_files: Path, tmp_path: Path, run: Run) -> None:
    X, y = split("train")
    partly = [[label if t != 1 else None for t, label in enumerate(labels)] for labels in y]
    lines = [
        "".join(f"{' '.join(token)} {label or '_'}\n" for token, label in zip(tokens, labels, strict=True))
        for tokens, labels in zip(X, partly, strict=True)
    ]
    (tmp_path / "train.txt").write_text("\n".join(lines))
    result = run(
        "train", tmp_path / "train.txt", "--task", "sequence", *QUICK_TAGGER, "--unknown-label", "_", "--json", "-",
        "--out", tmp_path / "partly", "--valid", tmp_path / "train.txt",
    )  # fmt: skip
    n_labelled = sum(label is not None for labels in partly for label in labels)
    assert json.loads(result.stdout)["n_labelled"] == n_labelled
    own = SequenceGPClassifier(
        template=default_template(2),
        latents="linear-point",
        transitions="point",
        epochs=8,
        random_state=0,
        verbose=False,
    )
    own.fit(X, partly, validation=(X, partly)).save(tmp_path / "same")
    assert bits(tmp_path / "partly") == bits(tmp_path / "same")


def test_spans_are_written_with_their_probabilities(
    sequence_files: Path, uncertain: Path, tmp_path: Path, run: Run
) -> None:
    model = extremegp.load(uncertain)
    assert isinstance(model, SequenceGPClassifier)
    X, _ = split("test")
    args = ("predict", uncertain, sequence_files / "test.txt", "--spans", "--scheme", "auto")
    run(*args, "--out", tmp_path / "spans.tsv")
    run(*args, "--out", tmp_path / "spans.jsonl")
    assert run(*args).stdout == (tmp_path / "spans.tsv").read_text()
    lines = [line.split("\t") for line in (tmp_path / "spans.tsv").read_text().splitlines()]
    records = [json.loads(line) for line in (tmp_path / "spans.jsonl").read_text().splitlines()]
    model.set_params(scheme="auto")
    assert len(records) == len(X)
    for s, (spans, record) in enumerate(zip(model.predict_spans(X), records, strict=True)):
        own = [line for line in lines if line[0] == str(s)]
        assert record["tokens"] == [token[0] for token in X[s]]
        for span, line, told in zip(spans, own, record["spans"], strict=True):
            text = " ".join(record["tokens"][span.start : span.end])
            assert line[1:] == [str(span.start), str(span.end), span.type, f"{span.probability:.6f}", text]
            assert told == {**span._asdict(), "probability": pytest.approx(span.probability, abs=1e-6), "text": text}
    for more, naming in (
        (("--k-best", "2"), "--spans tells of spans"),
        (("--out", tmp_path / "o.csv"), "--out of spans ends in .tsv"),
    ):
        run.fails(*args, *more, naming=naming)


def test_predictions_keep_the_rules_of_a_scheme(
    sequence_files: Path, uncertain: Path, tmp_path: Path, run: Run
) -> None:

    out = tmp_path / "out.tsv"
    result = run("predict", uncertain, sequence_files / "test.txt", "--scheme", "IOB2", "--out", out, "--json", "-")
    assert json.loads(result.stdout)["scheme"] == "IOB2"
    labels = [[token[-1] for token in own] for own in read_columns(out, label_column=None, separator="\t").sequences]
    assert convert_tags(labels, "IOB2") == labels
    found = evaluated(run, uncertain, sequence_files / "test.txt", "--scheme", "IOB2")
    assert (found["scheme"], 0 <= found["metrics"]["token_error"] < 1) == ("IOB2", True)
    run.fails("predict", uncertain, sequence_files / "test.txt", "--scheme", "IO", naming="--scheme")


def test_training_tells_the_scheme_of_the_labels(sequence_files: Path, tmp_path: Path, run: Run) -> None:
    args = ("train", sequence_files / "train.txt", "--task", "sequence", *QUICK_TAGGER, "--out", tmp_path / "model")
    assert "scheme of tags" in run(*args, "--scheme", "auto").stdout
    model = extremegp.load(tmp_path / "model")
    assert isinstance(model, SequenceGPClassifier)
    assert model.scheme == "auto"


def test_files_are_converted_from_scheme_to_scheme(tmp_path: Path, run: Run) -> None:
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("He PRP B-NP\nthe DT B-NP\ncat NN I-NP\nran VB O\n\nIt PRP B-NP\n")
    result = run("convert", source, out, "--scheme", "IOBES", "--json", "-")
    assert out.read_text() == "He\tPRP\tS-NP\nthe\tDT\tB-NP\ncat\tNN\tE-NP\nran\tVB\tO\n\nIt\tPRP\tS-NP\n\n"
    found = json.loads(result.stdout)
    assert (found["scheme"], found["n_illegal"], found["n_changed"], found["n_tokens"]) == ("IOB2", 0, 3, 5)
    run.fails("convert", source, out, "--scheme", "IOBES", naming="exists already")
    assert "they were IOBES" in run("convert", out, source, "--scheme", "IOB1", "--overwrite").stdout
    assert "I-NP\nthe\tDT\tB-NP" in source.read_text()
    source.write_text("He PRP NP\n")
    run.fails("convert", source, out, "--scheme", "IOB2", "--overwrite", naming="'NP' is no tag of a span")
    run.fails("convert", source, out, "--separator", ",", naming="--separator is for files in columns")


def test_a_file_of_conllu_becomes_columns_that_training_takes(tmp_path: Path, run: Run) -> None:
    words = ["1\tDogs\tdog\tNOUN\t_\t_\t2\tnsubj\t_\t_", "2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_", "2\tbark\tbark\tVERB"]
    words[2] += "\t_\t_\t0\troot\t_\t_"
    (tmp_path / "a.conllu").write_text(
        "# text = Dogs bark\n" + "\n".join(words) + "\n\n" + words[0].replace("NOUN", "_") + "\n" + words[2] + "\n\n"
    )
    out = tmp_path / "a.txt"
    args = ("convert", tmp_path / "a.conllu", out, "--label-field", "upos", "--fields", "form,lemma")
    done = run(*args, "--json", tmp_path / "found.json")
    assert out.read_text() == "Dogs\tdog\tNOUN\nbark\tbark\tVERB\n\nDogs\tdog\t_\nbark\tbark\tVERB\n\n"
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["n_sequences"], found["n_tokens"], found["n_unlabelled"]) == (2, 4, 1)
    command = next(line for line in done.stdout.splitlines() if line.startswith("Next: "))
    options = shlex.split(command.removeprefix("Next: extremegp ").replace("MODEL", str(tmp_path / "model")))
    run(*options, "--quiet")
    run.fails(*args, naming="--overwrite")
    run(*args, "--overwrite")
    run.fails(*args[:3], "--overwrite", "--label-field", "tag", naming="upos")
    run.fails(*args, "--overwrite", "--scheme", "IOB2", naming="--label-field")
