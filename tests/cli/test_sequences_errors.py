"""What goes wrong with sequences in columns: one line that names the file, and exit code 2."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import QUICK_TAGGER, Run, columns, written

from extremegp.estimators import SequenceGPClassifier, load


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever trains has noticed too late."""

    def fit(*_: object, **__: object) -> None:
        raise AssertionError("training began")

    monkeypatch.setattr(SequenceGPClassifier, "fit", fit)


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(
    ("content", "naming"),
    [
        (b"", "data.txt: "),
        (b"\n \n\t\n", "data.txt: the file has no tokens"),
        (b"\na X\nb\n", "data.txt:3: the line has 1 columns, but line 2 has 2"),
        (b"a X\nb Y\n\nc d Y\n", "data.txt:4: the line has 3 columns, but line 1 has 2"),
        (b"\n-DOCSTART-\n\na\nb\n", "data.txt:4: the line has only one column"),
        (b"a X\n\nb Y\n\xe9t\xe9 Y\n", "data.txt:4: not utf-8 text"),
        ("a X\nb Y\n".encode("utf-16"), "data.txt: not a text file"),
    ],
)
def test_bad_training_data_are_named_with_their_line(tmp_path: Path, run: Run, content: bytes, naming: str) -> None:
    (tmp_path / "data.txt").write_bytes(content)
    run.fails("train", tmp_path / "data.txt", "--task", "sequence", "--out", tmp_path / "m", "--quiet", naming=naming)
    assert not (tmp_path / "m").exists()


@pytest.mark.usefixtures("untrained")
def test_one_label_is_nothing_to_learn(tmp_path: Path, run: Run) -> None:
    (tmp_path / "data.txt").write_text("a X\nb X\n\nc X\n")
    args = ("train", tmp_path / "data.txt", "--task", "sequence", "--out", tmp_path / "m", "--quiet")
    assert "'X'" in run.fails(*args, naming="data.txt: ")


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(
    ("content", "naming"),
    [
        (b"", "f.template"),
        (b"# nothing\n", "f.template: the template has no lines"),
        (b"U0:%x[0,0]\nX:%x[0,0]\n", "f.template:2: a line starts with U"),
        (b"U0:%x[0 0]\n", "f.template:1: a % starts a macro"),
        (b"U0:%x[0,0]\n\nU0:%x[0,0]\n", "f.template:3: the same as line 1"),
        (b"U0:%x[2000,0]\n", "f.template:1: the row 2000"),
        (b"# words\nU0:%x[0,0]\nU1:%x[0,0]/%x[0,2] \n", "f.template:3: 'U1:%x[0,0]/%x[0,2]' asks for column 2"),
        (b"U0:%x[0,0]\nB:%x[0,1]\n", 'transitions="indexed"'),
        (b"U0:\xe9%x[0,0]\n", "f.template: not UTF-8"),
    ],
)
def test_bad_templates_are_named_with_their_line(
    sequence_files: Path, tmp_path: Path, run: Run, content: bytes, naming: str
) -> None:
    (tmp_path / "f.template").write_bytes(content)
    args = ("train", sequence_files / "train.txt", "--template", tmp_path / "f.template", "--out", tmp_path / "m")
    run.fails(*args, naming=naming)
    assert not (tmp_path / "m").exists()


@pytest.mark.usefixtures("untrained")
def test_a_column_beyond_the_data_s_is_told_with_their_number(sequence_files: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "f.template").write_text("U0:%x[0,0]\nU1:%x[0,2]\n")
    args = ("train", sequence_files / "train.txt", "--template", tmp_path / "f.template", "--out", tmp_path / "m")
    message = run.fails(*args, naming="f.template:2: 'U1:%x[0,2]' asks for column 2")
    assert "train.txt has 2 columns beside the label" in message


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(
    ("args", "naming"),
    [
        (["--format", "xc"], "--format is not for sequences, which are read in columns, but --task is sequence"),
        (["--labels", "y.txt"], "--labels is not for sequences"),
        (["--features", "unit"], "--features is not for sequences"),
        (["--label-column", "1"], "--label-column is not for sequences"),
        (["--first-label"], "--first-label is not for sequences"),
        (["--labels-names", "n.txt"], "--labels-names is not for sequences"),
        (["--preset", "SE"], "--preset SE is for many labels per row, but --task is sequence"),
        (["--preset", "CFR"], "did you mean 'CRF'"),
        (["--set", "template=U"], "use --template FILE"),
        (["--set", "n_latent=3"], "'n_latent' is unknown"),
        (["--set", "labels=NN,VB"], "--set cannot set labels: a list of labels can only be given from Python"),
        (["--set", "transitions=some"], "transitions"),
        (["--preset", "CRF", "--set", "kernel=cosine"], "kernel must be one of linear, "),
        (["--set", "n_draws=0"], "n_draws must be"),
        (["--set", "epochs=few"], "epochs"),
        (["--separator", ""], "separator"),
        (["--encoding", "utf-99"], "encoding 'utf-99' is not known"),
        (["--encoding", "utf-16"], "does not keep the bytes of ASCII"),
        (["--template", "missing.template"], "missing.template"),
        (["--valid", "missing.txt"], "missing.txt"),
        (["--time-budget", "soon"], "--time-budget"),
    ],
)
def test_bad_options_of_training_are_named(
    sequence_files: Path, tmp_path: Path, run: Run, args: list[str], naming: str
) -> None:
    data = ("train", sequence_files / "train.txt", "--task", "sequence", "--out", tmp_path / "m", "--quiet")
    run.fails(*data, *args, naming=naming)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("args", "naming"),
    [
        (
            ["--template", "t", "--task", "multilabel"],
            "--template is for sequences of tokens, but --task is multi",
        ),
        (
            ["--template", "t", "--preset", "OVE"],
            "OVE is for one class per row, but --template is for sequences",
        ),
        (["--preset", "CRF", "--task", "multiclass"], "--preset CRF is for a label for every token of sequences, but"),
        (["--separator", ","], "--separator is for sequences of tokens, but --task is not multiclass"),
        (["--encoding", "latin-1"], "--encoding is for sequences of tokens"),
    ],
)
def test_rows_refuse_what_is_for_sequences(files: Path, tmp_path: Path, run: Run, args: list[str], naming: str) -> None:
    run.fails("train", files / "train.txt", "--out", tmp_path / "m", *args, naming=naming)


def test_data_in_columns_lead_to_their_task(sequence_files: Path, tmp_path: Path, run: Run) -> None:
    run.fails("train", sequence_files / "train.txt", "--out", tmp_path / "m", naming="train --task sequence")


@pytest.mark.usefixtures("untrained")
def test_places_that_cannot_be_written_are_refused_before_training(
    sequence_files: Path, tagger: Path, tmp_path: Path, run: Run
) -> None:
    args = ("train", sequence_files / "train.txt", "--task", "sequence", "--out")
    run.fails(*args, tagger, naming="tagger: holds a model already")
    (tmp_path / "thesis.tex").write_text("years of work")
    run.fails(*args, tmp_path, "--overwrite", naming=str(tmp_path))
    run.fails(*args, tmp_path / "m", "--json", tmp_path / "no" / "x.json", naming="there is no folder")


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(
    ("content", "naming"),
    [
        ("\na DT x O\n", "valid.txt:2: the line has 4 columns, but "),
        ("a O\n", "valid.txt:1: the line has 2 columns, but "),
        ("a DT O\n\nb DT\n", "valid.txt:3: the line has 2 columns, but line 1 has 3"),
    ],
)
def test_validation_data_must_have_the_columns_of_training(
    sequence_files: Path, tmp_path: Path, run: Run, content: str, naming: str
) -> None:
    (tmp_path / "valid.txt").write_text(content)
    args = ("train", sequence_files / "train.txt", "--task", "sequence", "--out", tmp_path / "m", "--quiet")
    run.fails(*args, "--valid", tmp_path / "valid.txt", naming=naming)


def test_a_checkpoint_of_other_settings_is_refused_and_fresh_discards_it(
    sequence_files: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "m"
    args = ("train", sequence_files / "train.txt", *QUICK_TAGGER, "--set", "checkpoint_seconds=0", "--quiet", "--out")
    # As if the machine had stopped at the end of training: the checkpoint stays.
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: os.unlink(path) if ".tmp" in path.name else None)
    run(*args, out)
    monkeypatch.undo()
    assert Path(f"{out}.checkpoint").exists()
    run.fails(*args, out, "--overwrite", "--seed", 1, naming="--fresh")
    assert run(*args, out, "--overwrite", "--seed", 1, "--fresh").output == ""


@pytest.mark.parametrize(
    ("content", "command", "naming"),
    [
        ("a O\n", "evaluate", "data.txt:1: the line has 2 columns, but "),
        ("\n\na DT\n", "evaluate", "data.txt:3: the line has 2 columns, but "),
        ("a DT x O\n", "evaluate", "data.txt:1: the line has 4 columns, but "),
        ("a DT O\nb DT\n", "evaluate", "data.txt:2: the line has 2 columns, but line 1 has 3"),
        ("-DOCSTART- x\n\na\n", "predict", "data.txt:3: the line has 1 column, but "),
        ("a DT O x\n", "predict", "data.txt:1: the line has 4 columns, but "),
        ("", "predict", "data.txt: "),
        ("\n", "evaluate", "data.txt: the file has no tokens"),
    ],
)
def test_data_that_do_not_fit_the_model_are_named(
    tagger: Path, tmp_path: Path, run: Run, content: str, command: str, naming: str
) -> None:
    (tmp_path / "data.txt").write_text(content)
    message = run.fails(command, tagger, tmp_path / "data.txt", naming=naming)
    if "tagger" in message:
        assert "was trained on 2 " in message


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_another_encoding_is_named_with_its_line(tagger: Path, tmp_path: Path, run: Run, command: str) -> None:
    (tmp_path / "data.txt").write_bytes(b"a DT O\n\n\xe9 NN O\n")
    run.fails(command, tagger, tmp_path / "data.txt", naming="data.txt:3: not utf-8 text")
    assert run(command, tagger, tmp_path / "data.txt", "--encoding", "latin-1", "--quiet").exit_code == 0


@pytest.mark.parametrize(
    ("args", "naming"),
    [
        (["evaluate", "--labels", "y.txt"], "--labels is not for sequences"),
        (["evaluate", "--ks", "1,2"], "--ks is not for sequences"),
        (["evaluate", "--per-class", "c.txt"], "--per-class must end in .csv or .tsv"),
        (["evaluate", "--threshold", "0.3"], "--threshold is not for sequences"),
        (["evaluate", "--propensity", "default"], "tagger is for a label for every token of sequences"),
        (["evaluate", "--format", "jsonl"], "--format is not for sequences"),
        (["evaluate", "--plot", "p.txt"], "--plot must end in .png"),
        (["evaluate", "--decoding", "luck"], "--decoding"),
        (["predict", "--top-k", "2"], "--top-k is not for sequences"),
        (["predict", "--uncertainty", "--k-best", "2"], "--uncertainty tells of tokens, and --k-best of whole"),
        (["predict", "--novelty-threshold", "0.1", "--k-best", "2"], "--novelty-threshold tells of tokens, and"),
        (["predict", "--novelty-threshold", "2"], "--novelty-threshold must be a p-value above 0 and at most 1"),
        (["predict", "--k-best", "0"], "--k-best"),
        (["predict", "--k-best", "2", "--decoding", "viterbi"], "leave out --decoding"),
        (["predict", "--out", "o.jsonl"], "let it end in .txt or .tsv"),
        (["predict", "--out", "o.csv.gz"], "let it end in .txt or .tsv"),
        (["predict", "--out", "no/such/o.txt"], "there is no folder"),
    ],
)
def test_bad_options_of_sequences_are_named(
    sequence_files: Path, tagger: Path, tmp_path: Path, run: Run, args: list[str], naming: str
) -> None:
    command, *options = args
    run.fails(command, tagger, sequence_files / "test.txt", *options, naming=naming)


@pytest.mark.parametrize(
    ("args", "naming"),
    [
        (["evaluate", "--decoding", "viterbi"], "--decoding is for sequences of tokens, but"),
        (["evaluate", "--separator", ","], "--separator is for sequences of tokens, but"),
        (["predict", "--out", "o.jsonl", "--k-best", "2"], "--k-best is for sequences of tokens, but"),
        (["predict", "--out", "o.jsonl", "--probabilities"], "is for many labels per row"),
        (["predict"], "--out must name the file"),
    ],
)
def test_models_of_rows_refuse_what_is_for_sequences(
    files: Path, model: Path, run: Run, args: list[str], naming: str
) -> None:
    command, *options = args
    run.fails(command, model, files / "test.txt", *options, naming=naming)


def test_what_columns_cannot_hold_is_refused_before_the_work(tmp_path: Path, run: Run) -> None:
    text = written(columns("train"), ",")
    (tmp_path / "train.txt").write_text(text)
    args = ("--separator", ",", "--quiet")
    assert run("train", tmp_path / "train.txt", *QUICK_TAGGER, *args, "--out", tmp_path / "m").output == ""
    (tmp_path / "new.txt").write_text("a\tb,DT\n")
    run.fails("predict", tmp_path / "m", tmp_path / "new.txt", *args, naming=r"new.txt: token 0 of sequence 0")
    (tmp_path / "train.txt").write_text(text.replace("B-NP", "Début"))
    assert run("train", tmp_path / "train.txt", *QUICK_TAGGER, *args, "--out", tmp_path / "named").output == ""
    (tmp_path / "new.txt").write_text("a,DT\n")
    naming = "the model has labels that cannot be written in ascii"
    run.fails("predict", tmp_path / "named", tmp_path / "new.txt", *args, "--encoding", "ascii", naming=naming)


def test_labels_of_another_kind_than_the_model_s_are_named(sequence_files: Path, tmp_path: Path, run: Run) -> None:
    X = [[token[:2] for token in tokens] for tokens in columns("train")]
    y = [[int(token[2] == "O") for token in tokens] for tokens in columns("train")]
    model = SequenceGPClassifier(template="U:%x[0,0]\nB", latents="linear-point", epochs=1, verbose=False)
    model.fit(X, y).save(tmp_path / "m")
    run.fails("evaluate", tmp_path / "m", sequence_files / "test.txt", naming="test.txt: the last column holds values")
    assert run("predict", tmp_path / "m", sequence_files / "bare.txt").stdout.split("\n")[0].endswith(("\t0", "\t1"))


def test_a_file_of_labels_never_seen_is_measured(tagger: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "new.txt").write_text("a DT X\nb NN Y\n")
    shown = run("evaluate", tagger, tmp_path / "new.txt")
    assert shown.exit_code == 0
    assert "2 of 2 tokens have a label that training never saw (X, Y)" in shown.stdout


@pytest.mark.parametrize("command", ["predict", "evaluate"])
@pytest.mark.parametrize(
    ("name", "value"), [("n_draws", "many"), ("n_draws", 0), ("n_draws", 2**70), ("decoding", "greedy")]
)
def test_altered_parameters_of_prediction_are_named(
    sequence_files: Path, tagger: Path, tmp_path: Path, run: Run, command: str, name: str, value: object
) -> None:
    shutil.copytree(tagger, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config["params"][name] = value
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    run.fails(command, tmp_path / "m", sequence_files / "test.txt", naming=f"{name} must be")


def test_a_limit_of_memory_is_for_sequences_too(sequence_files: Path, tmp_path: Path, run: Run) -> None:
    args = (
        "train",
        sequence_files / "train.txt",
        "--task",
        "sequence",
        "--out",
        tmp_path / "m",
        "--quiet",
        "--max-memory",
    )
    run.fails(*args, "1M", naming="max_memory is 0.00 GB: raise it")
    run.fails(*args, "much", naming="max_memory must be bytes")
    assert not (tmp_path / "m").exists()


@pytest.mark.filterwarnings("default")
def test_comments_that_could_be_tokens_are_told_of_once_and_not_learnt(run: Run, tmp_path: Path) -> None:
    rows = "the DT x O\nold JJ x B-NP\ndog NN x I-NP\n"
    text = "\n".join(f"# sent_id = {i}\n{rows}" for i in range(10))
    (tmp_path / "train.txt").write_text(text)
    args = ("--task", "sequence", "--out", tmp_path / "m", "--preset", "CRF", "--set", "epochs=2", "--quiet")
    result = run("train", tmp_path / "train.txt", *args)
    assert result.exit_code == 0
    assert result.stderr.count("\n") == 1
    assert "train.txt:1: left out as a comment" in result.stderr
    assert load(tmp_path / "m").classes_.tolist() == ["B-NP", "I-NP", "O"]


def test_json_lines_are_told_from_columns(run: Run, files: Path, tagger: Path, tmp_path: Path) -> None:
    problem = "train.jsonl:1: the line is a JSON object, but files of sequences have a token a line, in columns"
    run.fails("train", files / "train.jsonl", "--task", "sequence", "--out", tmp_path / "m", naming=problem)
    for command in (("predict", tagger, files / "train.jsonl"), ("evaluate", tagger, files / "train.jsonl")):
        run.fails(*command, naming=problem)
