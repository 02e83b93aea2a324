"""`extremegp predict`: the best labels of every row, to a file."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeAlias

import typer

from extremegp.cli.common import (
    JsonOption,
    ModelArgument,
    QuietOption,
    Report,
    check_output,
    label_names,
    load_model,
    only_for_labels,
    words_for,
)
from extremegp.cli.inputs import PER_ROW, FormatOption, Known, LabelColumnOption, Source, Task, XKeyOption
from extremegp.cli.row_blocks import InputBlock, RowProgress, input_blocks
from extremegp.cli.sequences import (
    ColumnFormat,
    DecodingOption,
    EncodingOption,
    KBestOption,
    ProbabilitiesOption,
    SeparatorOption,
    refuse_row_options,
    refuse_sequence_options,
)
from extremegp.errors import DataError, SettingsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from extremegp.data import FloatCSR, FloatMatrix
    from extremegp.estimators import MultiClassGPClassifier, MultiLabelGPClassifier
    from extremegp.label_tree import LabelTreePredictor
    from extremegp.prediction.label_index import LabelIndex
    from extremegp.prediction.predictor import Predictor, RankedBy

Ranked: TypeAlias = "list[tuple[int, float]]"
"""Labels of a row (column numbers) with their probabilities, best first."""

Block: TypeAlias = "tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32] | None]"
"""Of some rows the best labels (-1 where there are fewer), best first, their probabilities, and `UNCERTAINTY`."""

_TOP_K = 5

UNCERTAINTY = ("total", "aleatoric", "epistemic")
"""How uncertain the class of a row is, in nats, and the parts that more data could not and could take away."""


def predict(
    model: ModelArgument,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Rows to label; labels in the file are ignored.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Where to write, in the format of the suffix: .jsonl, .tsv, .csv, .txt (each may add .gz, .bz2, .xz "
            "or .zst) or .npz. For sequences columns, by default to standard output.",
        ),
    ] = None,
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Labels or classes per row.")] = _TOP_K,
    by: Annotated[
        Literal["utility", "probability"] | None,
        typer.Option(
            "--by",
            help="Rank by probability, the default, or by mean utility as in the papers. For many labels per row.",
        ),
    ] = None,
    given: Annotated[
        Path | None,
        typer.Option(
            "--given",
            metavar="FILE",
            help="Labels that are known already, a row for each row of DATA: the others are predicted given these, "
            "which are left out. For many labels per row.",
        ),
    ] = None,
    uncertainty: Annotated[
        bool,
        typer.Option(
            "--uncertainty",
            help="Add how uncertain the class of a row is, in nats: total, of which aleatoric is in the data and "
            "epistemic would go with more of them. For one class per row, and .jsonl, .tsv or .csv.",
        ),
    ] = False,
    approximate: Annotated[
        float | None,
        typer.Option(
            "--approximate",
            metavar="RECALL",
            help="Find this share of the exact best labels, such as 0.98, by an index of the labels: much faster where "
            "there are very many. Needs the extra extremegp[ann]. For many labels per row.",
        ),
    ] = None,
    k_best: KBestOption = None,
    probabilities: ProbabilitiesOption = False,
    decoding: DecodingOption = None,
    separator: SeparatorOption = None,
    encoding: EncodingOption = None,
    format: FormatOption = "auto",
    x_key: XKeyOption = None,
    label_column: LabelColumnOption = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Predict the best labels, or the most probable classes, of every row, or the labels of sequences.

    Every label comes with its probability, from 0 to 1, the uncertainty of the
    model integrated out. Text formats and converted folders are read and
    written a block of rows at a time, of any length; the file appears whole or
    not at all. Rows are numbered from 0, ranks from 1. Classes are labels here.

    \b
    Formats by suffix of --out:
      .jsonl      a line per row:
                  {"labels": ["a", ...], "probabilities": [0.9, ...]}
      .tsv, .csv  a line per label: row, rank, label, probability
      .txt        a line per row: 17:0.9 4:0.5, labels by number (from 0; of
                  classes their place in sorted order)
      .npz        a SciPy CSR matrix of probabilities, rows x labels
    With --uncertainty .jsonl has the keys total, aleatoric and epistemic too,
    .tsv and .csv have such columns.

    \b
    Sequences: the columns of DATA, its labels among them if it has them, then
    the predicted label and perhaps its probability, with tabs between and a
    blank line after each sequence. With --k-best every labelling has a line
    '# RANK LOG_PROBABILITY' (blanks, no tab) before it, ranks from 0:
      # 0 -0.105361
      He<TAB>PRP<TAB>B-NP

      # 1 -2.302585
      He<TAB>PRP<TAB>O

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
      extremegp predict model new.txt --approximate 0.98 --out labels.tsv
      extremegp predict model images.npy --uncertainty --out classes.csv
      extremegp predict tagger new.txt --probabilities --out tagged.txt
    """
    started = time.monotonic()
    if out is None and json == "-":
        raise SettingsError("--json - leaves no place for the predictions: name a file for them by --out")
    report = Report(json, quiet or out is None)
    if out is not None:
        check_output(out)
    from extremegp.estimators import MultiClassGPClassifier, SequenceGPClassifier
    from extremegp.storage.streams import base_suffix

    classifier = load_model(model)
    if isinstance(classifier, SequenceGPClassifier):
        refuse_row_options(
            {
                "--top-k": None if top_k == _TOP_K else top_k,
                "--by": by,
                "--given": given,
                "--approximate": approximate,
                "--uncertainty": uncertainty or None,
                "--format": None if format == "auto" else format,
                "--x-key": x_key,
                "--label-column": label_column,
            },
            f"{model} is for {PER_ROW['sequence']}",
        )
        from extremegp.cli.predict_sequences import predict_sequences

        predict_sequences(
            classifier,
            model,
            data,
            out,
            ColumnFormat.of_options(separator, encoding),
            report,
            decoding=decoding,
            probabilities=probabilities,
            k_best=k_best,
            started=started,
        )
        return
    if out is None:
        raise SettingsError("--out must name the file to write")
    suffix = out.suffix.lower() if out.suffix.lower() == ".npz" else base_suffix(out)
    if suffix not in (*_WRITERS, ".npz") or (suffix == ".npz" and suffix != out.suffix.lower()):
        raise SettingsError(f"--out must end in {', '.join(_WRITERS)} or .npz; it is {out}")
    if uncertainty and suffix in (".txt", ".npz"):
        raise SettingsError(f"--uncertainty needs --out to end in .jsonl, .tsv or .csv; it is {out}")
    source = Source(data, format, x_key=x_key, label_column=label_column)
    classes = isinstance(classifier, MultiClassGPClassifier)
    if classes:
        only_for_labels({"--given": given, "--by": by, "--approximate": approximate}, model)
    elif uncertainty:
        raise SettingsError(f"--uncertainty is for one class per row, but {model} is for many labels per row")
    task: Task = "multiclass" if classes else "multilabel"
    of_sequences = {"--decoding": decoding, "--separator": separator, "--encoding": encoding, "--k-best": k_best}
    refuse_sequence_options(
        of_sequences | {"--probabilities": probabilities or None}, f"{model} is for {PER_ROW[task]}"
    )
    source.check(task, because=f"{model} is for {PER_ROW[task]}", labelled=False)
    if approximate is not None and given is not None:
        raise SettingsError("--approximate cannot take given labels into account: leave out it or --given")
    if approximate is not None and not 0 < approximate <= 1:
        raise SettingsError(f"--approximate must be a recall above 0 and at most 1; it is {approximate:g}")
    data_blocks = input_blocks(source, task, Known.of_model(classifier))
    search = _Search(classifier, top_k, by or "probability", uncertainty, given, approximate)
    progress = RowProgress(quiet)
    blocks = search.blocks(data_blocks, progress)
    try:
        if suffix == ".npz":
            _write_npz(out, blocks, len(classifier.classes_))
        else:
            _write_text(out, blocks, _WRITERS[suffix], label_names(classifier), UNCERTAINTY if uncertainty else ())
    finally:
        progress.close()
    seconds = time.monotonic() - started
    n_rows, n_labels, many = search.n_rows, len(classifier.classes_), words_for(classifier).labels
    report.lines(f"{n_rows} rows, the {top_k} best of {n_labels} {many} each, to {out} in {seconds:.1f} s")
    result = {"out": str(out), "n_rows": n_rows, f"n_{many}": n_labels, "top_k": top_k, "seconds": seconds}
    if search.index is not None:
        setting = search.index.setting
        found = "not measured on so few rows" if setting.recall is None else f"{setting.recall:.4f}"
        report.lines(
            f"approximate: recall {found} of the exact best ({setting.n_rows} rows; {setting.n_probe} of "
            f"{search.index.n_lists} groups of labels, {setting.candidates} candidates)"
        )
        result["approximate"] = setting._asdict()
    report.result(result)


class _Search:
    """The best labels of rows as the options ask for them.

    Attributes:
        n_rows: rows so far.
        index: what approximate search uses, once there were rows.
    """

    index: LabelIndex | None = None

    def __init__(
        self,
        classifier: MultiLabelGPClassifier | MultiClassGPClassifier,
        k: int,
        by: RankedBy,
        uncertainty: bool,
        given: Path | None,
        approximate: float | None,
    ) -> None:
        self._classifier, self._k, self._by = classifier, min(k, len(classifier.classes_)), by
        self._uncertainty, self._given, self._approximate = uncertainty, given, approximate
        self.n_rows = 0

    def blocks(self, data: Iterator[InputBlock], progress: RowProgress) -> Iterator[Block]:
        """The best labels of all rows, a block at a time."""
        predictor = self._classifier.predictor()
        for block in data if self._given is None else [_joined(data)]:
            done = 0
            for best in self._of_block(predictor, self._classifier.features_.transform(block.X)):
                yield best
                done += len(best[0])
                progress.show(self.n_rows + done, block.before + (block.after - block.before) * done / block.n_rows)
            self.n_rows += block.n_rows

    def _of_block(self, predictor: Predictor | LabelTreePredictor, inputs: FloatMatrix) -> Iterator[Block]:
        from extremegp.estimators import MultiLabelGPClassifier
        from extremegp.prediction.predictor import Predictor

        classifier, k, by = self._classifier, self._k, self._by
        if self._uncertainty and isinstance(predictor, Predictor):
            yield from uncertain_classes(predictor, inputs, k)
            return
        if self._approximate is not None and isinstance(classifier, MultiLabelGPClassifier):
            self.index = classifier.label_index()
            self.index.tune(inputs, k, self._approximate, by)
            ranked = self.index.top(inputs, k, by)
        else:
            known = None if self._given is None else read_given(self._given, classifier, inputs.shape[0])
            ranked = predictor.top(inputs, k, by, known)
        for _, best, probabilities in ranked:
            yield best.labels, probabilities, None


def _joined(data: Iterator[InputBlock]) -> InputBlock:
    """All rows as one block."""
    import scipy.sparse

    parts = [block.X for block in data]
    if isinstance(parts[0], list):
        return InputBlock([text for part in parts for text in part], 0.0, 1.0)
    return InputBlock(parts[0] if len(parts) == 1 else scipy.sparse.vstack(parts, format="csr"), 0.0, 1.0)


def uncertain_classes(predictor: Predictor, inputs: FloatMatrix, k: int) -> Iterator[Block]:
    """The k most probable classes of every row and how uncertain that is, a block of rows at a time."""
    import numpy as np

    from extremegp.metrics import TopK

    for _, probabilities, total, aleatoric in predictor.class_uncertainty(inputs):
        best = TopK.from_scores(probabilities, min(k, probabilities.shape[1]))
        yield best.labels, best.scores, np.stack([total, aleatoric, total - aleatoric], axis=1)


def read_given(path: Path, classifier: MultiLabelGPClassifier | MultiClassGPClassifier, n_rows: int) -> FloatCSR:
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

    from extremegp.storage.streams import line_blocks

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


def _write_text(out: Path, blocks: Iterator[Block], writer: Writer, names: list[str], measures: Sequence[str]) -> None:
    from extremegp.storage.streams import atomic_writer

    with atomic_writer(out) as stream:
        stream.write(writer.header(measures).encode())
        row = 0
        for labels, probabilities, measured in blocks:
            extra = [[]] * len(labels) if measured is None else measured.tolist()
            for *pair, values in zip(labels.tolist(), probabilities.tolist(), extra, strict=True):
                ranked = [(label, _rounded(p)) for label, p in zip(*pair, strict=True) if label >= 0]
                by_name = dict(zip(measures, map(_rounded, values), strict=True))
                stream.write(writer.lines(row, ranked, names, by_name).encode())
                row += 1


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _write_npz(out: Path, blocks: Iterator[Block], n_labels: int) -> None:
    import numpy as np
    import scipy.sparse

    from extremegp.storage.streams import atomic_writer

    parts = zip(*((labels, probabilities) for labels, probabilities, _ in blocks), strict=True)
    labels, probabilities = map(np.concatenate, parts)
    stored = labels >= 0
    indptr = np.concatenate([[0], np.cumsum(stored.sum(axis=1))])
    matrix = scipy.sparse.csr_matrix((probabilities[stored], labels[stored], indptr), shape=(len(labels), n_labels))
    matrix.sort_indices()
    with atomic_writer(out) as stream:
        scipy.sparse.save_npz(stream, matrix)


class Writer(NamedTuple):
    """A text format: its header, given the names of what is measured of rows, and the lines of a row.

    Lines are made of the row's number, its labels, their names, and what is measured of it by name.
    """

    header: Callable[[Sequence[str]], str]
    lines: Callable[[int, Ranked, list[str], dict[str, float]], str]


def _jsonl(row: int, ranked: Ranked, names: list[str], measured: dict[str, float]) -> str:
    import json

    record = {"labels": [names[label] for label, _ in ranked], "probabilities": [p for _, p in ranked]}
    return json.dumps(record | measured, ensure_ascii=False) + "\n"


def _table(delimiter: str) -> Writer:
    def header(measures: Sequence[str]) -> str:
        return delimiter.join(("row", "rank", "label", "probability", *measures)) + "\n"

    def lines(row: int, ranked: Ranked, names: list[str], measured: dict[str, float]) -> str:
        text = io.StringIO()
        writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
        writer.writerows([row, rank, names[label], p, *measured.values()] for rank, (label, p) in enumerate(ranked, 1))
        return text.getvalue()

    return Writer(header, lines)


def _scores(row: int, ranked: Ranked, names: list[str], measured: dict[str, float]) -> str:
    return " ".join(f"{label}:{p:g}" for label, p in ranked) + "\n"


def _no_header(measures: Sequence[str]) -> str:
    return ""


_WRITERS: dict[str, Writer] = {
    ".jsonl": Writer(_no_header, _jsonl),
    ".tsv": _table("\t"),
    ".csv": _table(","),
    ".txt": Writer(_no_header, _scores),
}
