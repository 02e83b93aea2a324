"""`extremegp predict`: the best labels of every row, to a file."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from extremegp.cli.common import (
    FormatOption,
    JsonOption,
    ModelArgument,
    QuietOption,
    Report,
    check_output,
    label_names,
    load_model,
    read_for,
)
from extremegp.errors import DataError, SettingsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from extremegp.data import FloatCSR, FloatMatrix
    from extremegp.estimators import MultiLabelGPClassifier
    from extremegp.prediction import Predictor

Ranked: TypeAlias = "list[tuple[int, float]]"
"""Labels of a row (column numbers) with their probabilities, best first."""


def predict(
    model: ModelArgument,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Rows to label; labels in the file are ignored.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Where to write, in the format of the suffix: .jsonl, .tsv, .csv, .txt (each may add .gz, .bz2, .xz "
            "or .zst) or .npz.",
        ),
    ],
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Labels per row.")] = 5,
    by: Annotated[
        Literal["utility", "probability"],
        typer.Option("--by", help="Rank by probability, or by mean utility as in the papers."),
    ] = "probability",
    given: Annotated[
        Path | None,
        typer.Option(
            "--given",
            metavar="FILE",
            help="Labels that are known already, a row for each row of DATA: the others are predicted given these, "
            "which are left out.",
        ),
    ] = None,
    format: FormatOption = "auto",
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Predict the best labels of every row.

    Every label comes with its probability, from 0 to 1, the uncertainty of the
    model integrated out. The file is written whole or not at all. Rows are
    numbered from 0, ranks from 1.

    \b
    Formats by suffix of --out:
      .jsonl      a line per row:
                  {"labels": ["a", ...], "probabilities": [0.9, ...]}
      .tsv, .csv  a line per label: row, rank, label, probability
      .txt        a line per row: 17:0.9 4:0.5, labels by number (from 0)
      .npz        a SciPy CSR matrix of probabilities, rows x labels

    \b
    Formats of --given, recognised as those of DATA are:
      jsonl          {"labels": ["known", ...], "absent": ["known not", ...]};
                     "absent" may be missing, other keys are ignored
      xc, svmlight   the labels of a row, by number, are those known to be
                     present; features are ignored

    \b
    Examples:
      extremegp predict model new.jsonl --top-k 3 --out labels.jsonl
      extremegp predict model new.jsonl --given known.jsonl --out more.jsonl
    """
    started = time.monotonic()
    report = Report(json, quiet)
    check_output(out)
    from extremegp.data._files import base_suffix
    from extremegp.prediction import Predictor

    suffix = out.suffix.lower() if out.suffix.lower() == ".npz" else base_suffix(out)
    if suffix not in (*_WRITERS, ".npz") or (suffix == ".npz" and suffix != out.suffix.lower()):
        raise SettingsError(f"--out must end in {', '.join(_WRITERS)} or .npz; it is {out}")
    classifier = load_model(model)
    x, _, _ = read_for(classifier, data, format, labels=False)
    inputs = classifier.features_.transform(x)
    known = None if given is None else read_given(given, classifier, inputs.shape[0])
    blocks = top_probabilities(Predictor(classifier.model_, classifier.instance_noise_), inputs, top_k, by, known)
    if suffix == ".npz":
        _write_npz(out, blocks, len(classifier.classes_))
    else:
        _write_text(out, blocks, _WRITERS[suffix], label_names(classifier))
    n_rows = inputs.shape[0]
    seconds = time.monotonic() - started
    report.lines(
        f"{n_rows} rows, the {top_k} best of {len(classifier.classes_)} labels each, to {out} in {seconds:.1f} s"
    )
    report.result(
        {"out": str(out), "n_rows": n_rows, "n_labels": len(classifier.classes_), "top_k": top_k, "seconds": seconds}
    )


def top_probabilities(
    predictor: Predictor,
    inputs: FloatMatrix,
    k: int,
    by: Literal["utility", "probability"],
    given: FloatCSR | None = None,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Blocks of rows: the k best labels (-1 where there are fewer), best first, and their probabilities."""
    import numpy as np

    from extremegp.metrics import TopK
    from extremegp.prediction import exclude

    for rows, utilities, probabilities in predictor.mean_utilities_and_probabilities(inputs, given):
        scores = utilities if by == "utility" else probabilities
        scores = scores if given is None else exclude(scores, given[rows])
        best = TopK.from_scores(scores, min(k, probabilities.shape[1]))
        yield best.labels, np.take_along_axis(probabilities, best.labels, axis=1)


def read_given(path: Path, classifier: MultiLabelGPClassifier, n_rows: int) -> FloatCSR:
    """Known labels, N x K: 1 for present, -1 for absent.

    Raises:
        DataError: the file cannot be read, has another number of rows or labels, or a label that the model lacks.
    """
    from extremegp.data import read_svmlight, read_xc, recognise_format

    n_labels, kind = len(classifier.classes_), recognise_format(path)
    if kind == "jsonl":
        known = _read_names(path, {name: column for column, name in enumerate(label_names(classifier))})
    else:
        known = (read_xc(path) if kind == "xc" else read_svmlight(path, n_labels=n_labels)).Y
    if known.shape[1] != n_labels:
        raise DataError(f"has {known.shape[1]} labels, but the model has {n_labels}", path=path)
    if known.shape[0] != n_rows:
        raise DataError(f"has {known.shape[0]} rows of known labels, but there are {n_rows} rows to predict", path=path)
    return known


def _read_names(path: Path, columns: dict[str, int]) -> FloatCSR:
    import json

    import numpy as np
    from scipy.sparse import csr_matrix

    from extremegp.data._files import line_blocks

    indices: list[int] = []
    signs: list[float] = []
    indptr = [0]
    lines = (line for block in line_blocks(path) for line in block.split(b"\n")[:-1])
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"not valid JSON: {error}", path=path, line=number) from error
        if not isinstance(record, dict) or "labels" not in record:
            raise DataError('expected an object like {"labels": ["a"], "absent": ["b"]}', path=path, line=number)
        row: dict[int, float] = {}
        for key, sign in (("labels", 1.0), ("absent", -1.0)):
            names = record.get(key, [])
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise DataError(f'"{key}" must be a list of strings such as ["a", "b"]', path=path, line=number)
            for name in names:
                if name not in columns:
                    raise DataError(f"the model has no label {name!r}", path=path, line=number)
                if row.setdefault(columns[name], sign) != sign:
                    raise DataError(f"the label {name!r} is both present and absent", path=path, line=number)
        indices += row
        signs += row.values()
        indptr.append(len(indices))
    known: FloatCSR = csr_matrix((np.array(signs, np.float32), indices, indptr), shape=(len(indptr) - 1, len(columns)))
    return known


def _write_text(
    out: Path,
    blocks: Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]],
    writer: tuple[str, Callable[[int, Ranked, list[str]], str]],
    names: list[str],
) -> None:
    from extremegp.data._files import atomic_writer

    header, line = writer
    with atomic_writer(out) as stream:
        stream.write(header.encode())
        row = 0
        for labels, probabilities in blocks:
            for pair in zip(labels.tolist(), probabilities.tolist(), strict=True):
                ranked = [(label, float(f"{p:.6g}")) for label, p in zip(*pair, strict=True) if label >= 0]
                stream.write(line(row, ranked, names).encode())
                row += 1


def _write_npz(out: Path, blocks: Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]], n_labels: int) -> None:
    import numpy as np
    import scipy.sparse

    from extremegp.data._files import atomic_writer

    labels, probabilities = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    stored = labels >= 0
    indptr = np.concatenate([[0], np.cumsum(stored.sum(axis=1))])
    matrix = scipy.sparse.csr_matrix((probabilities[stored], labels[stored], indptr), shape=(len(labels), n_labels))
    matrix.sort_indices()
    with atomic_writer(out) as stream:
        scipy.sparse.save_npz(stream, matrix)


def _jsonl(row: int, ranked: Ranked, names: list[str]) -> str:
    import json

    record = {"labels": [names[label] for label, _ in ranked], "probabilities": [p for _, p in ranked]}
    return json.dumps(record, ensure_ascii=False) + "\n"


def _table(delimiter: str) -> tuple[str, Callable[[int, Ranked, list[str]], str]]:
    def lines(row: int, ranked: Ranked, names: list[str]) -> str:
        text = io.StringIO()
        writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
        writer.writerows([row, rank, names[label], p] for rank, (label, p) in enumerate(ranked, 1))
        return text.getvalue()

    return delimiter.join(("row", "rank", "label", "probability")) + "\n", lines


def _scores(row: int, ranked: Ranked, names: list[str]) -> str:
    return " ".join(f"{label}:{p:g}" for label, p in ranked) + "\n"


_WRITERS: dict[str, tuple[str, Callable[[int, Ranked, list[str]], str]]] = {
    ".jsonl": ("", _jsonl),
    ".tsv": _table("\t"),
    ".csv": _table(","),
    ".txt": ("", _scores),
}
