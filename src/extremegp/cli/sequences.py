"""Sequences of tokens in columns: options of the commands, and how files must fit a template or a model."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import typer

from extremegp.errors import DataError, SettingsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from extremegp.data import FloatMatrix
    from extremegp.estimators import SequenceGPClassifier
    from extremegp.prediction.sequence_prediction import Block

Decoding: TypeAlias = Literal["max-marginal", "viterbi"]
Sequences: TypeAlias = list[list[tuple[str, ...]]]

SeparatorOption = Annotated[
    str | None,
    typer.Option(
        "--separator",
        metavar="TEXT",
        help=r"What separates columns, such as ',' or '\t'; by default runs of blanks. For sequences.",
    ),
]
EncodingOption = Annotated[
    str | None,
    typer.Option("--encoding", metavar="NAME", help="Encoding of files in columns; by default utf-8. For sequences."),
]
DecodingOption = Annotated[
    Decoding | None,
    typer.Option(
        "--decoding",
        help="The most probable label of every token, or the most probable sequence; by default as the model was "
        "trained, which is max-marginal unless set. For sequences.",
    ),
]
KBestOption = Annotated[
    int | None,
    typer.Option(
        "--k-best", metavar="K", min=1, max=10_000, help="Write the K most probable labellings. For sequences."
    ),
]
ProbabilitiesOption = Annotated[
    bool, typer.Option("--probabilities", help="Add the marginal probability of every label. For sequences.")
]

_BLANKS = b" \t"
_DOCUMENT_START = b"-DOCSTART-"


def refuse_row_options(options: Mapping[str, Any], because: str) -> None:
    """Refuse options that sequences have no use for.

    Raises:
        SettingsError: one was given; says what decided that data are sequences.
    """
    for option, value in options.items():
        if value is not None:
            raise SettingsError(f"{option} is not for sequences, which are read in columns, but {because}")


def refuse_sequence_options(options: Mapping[str, Any], because: str) -> None:
    """Refuse options that only sequences have a use for.

    Raises:
        SettingsError: one was given; says what decided that data are none.
    """
    for option, value in options.items():
        if value is not None:
            raise SettingsError(f"{option} is for sequences of tokens, but {because}")


class ColumnFormat(NamedTuple):
    """How columns are written.

    Attributes:
        separator: what is between them; None for runs of blanks.
        encoding: of the file.
    """

    separator: str | None
    encoding: str

    @classmethod
    def of_options(cls, separator: str | None, encoding: str | None) -> ColumnFormat:
        r"""The format that options name; a shell hands over \t as two characters."""
        return cls(separator and separator.replace(r"\t", "\t"), encoding or "utf-8")

    @property
    def hint(self) -> str:
        """The options that other data of the kind need, for a command to be shown."""
        shown = "" if self.separator is None else " --separator " + shlex.quote(self.separator.replace("\t", r"\t"))
        return shown + (f" --encoding {shlex.quote(self.encoding)}" if self.encoding != "utf-8" else "")

    def read(self, path: Path, max_sequences: int | None = None) -> Sequences:
        """The sequences of a file with all their columns.

        Raises:
            DataError: the file cannot be read; names the line.
            SettingsError: there is no such separator or encoding.
        """
        from extremegp.data import read_columns

        return read_columns(path, label_column=None, max_sequences=max_sequences, **self._asdict()).sequences

    def read_labelled(self, path: Path) -> tuple[Sequences, list[list[str]]]:
        """The sequences of a file and their labels, the last column.

        Raises:
            DataError: the file cannot be read; names the line.
            SettingsError: there is no such separator or encoding.
        """
        from extremegp.data import read_columns

        sequences, labels = read_columns(path, **self._asdict())
        assert labels is not None
        return sequences, labels

    def width(self, path: Path) -> int:
        """How many columns a file has, the label among them; its first sequence tells.

        Raises:
            DataError: the first sequence cannot be read.
        """
        return len(self.read(path, max_sequences=1)[0][0])


def counted(n: int, what: str) -> str:
    """A number of things."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def check_width(classifier: SequenceGPClassifier, model: Path, data: Path, form: ColumnFormat, labelled: bool) -> None:
    """Refuse a file whose columns are not those of training, before it is read.

    Args:
        classifier: the model.
        model: where it is.
        data: the file.
        form: how it is written.
        labelled: whether it must have a label, which it may have if not.

    Raises:
        DataError: it has fewer or more columns; names the first line with a token.
        SettingsError: the model was not trained on columns.
    """
    template = classifier.features_.template
    if template is None:
        raise SettingsError(
            f"{model} has no template, so files in columns do not have its features; use it from Python"
        )
    width, known = form.width(data), classifier.features_.n_columns
    assert known is not None
    if width not in ((known + 1,) if labelled else (known, known + 1)):
        beside = "and the label" if labelled else "(one more with the label)"
        raise DataError(
            f"the line has {counted(width, 'column')}, but {model} was trained on {known} {beside}; correct the file, "
            "or name what separates columns by --separator",
            path=data,
            line=first_token_line(data),
        )


def first_token_line(path: Path) -> int:
    """The number of the first line that is neither blank nor the start of a document."""
    from extremegp.storage.streams import line_blocks

    lines = (line for block in line_blocks(path) for line in block.split(b"\n"))
    return next(i for i, line in enumerate(lines, 1) if line.strip(_BLANKS) and not line.startswith(_DOCUMENT_START))


class Decoded(NamedTuple):
    """Some of the sequences with their labels.

    Attributes:
        block: which sequences, and what the model says of them.
        codes: B predicted labels, of all tokens.
        marginals: B x V probabilities.
    """

    block: Block
    codes: NDArray[np.int64]
    marginals: NDArray[np.float32]


def decoded(
    classifier: SequenceGPClassifier, x: FloatMatrix, lengths: NDArray[np.int64], decoding: Decoding | None
) -> Iterator[Decoded]:
    """Label all sequences as `SequenceGPClassifier.predict` does, each drawn for once, in blocks of a bounded size.

    Args:
        classifier: the model.
        x: inputs of the tokens, one sequence after the other.
        lengths: of the sequences.
        decoding: how; None for what the model was trained with.

    Raises:
        SettingsError: the model was altered to a decoding or a number of draws that there is not.
    """
    from extremegp.engine import chain
    from extremegp.estimators.sequences import DECODINGS
    from extremegp.settings.resolve import choice

    decoding = choice("decoding", decoding or classifier.decoding, DECODINGS)
    for block in classifier.predictor().blocks(x, lengths):
        marginals = block.marginals().mean(0)
        if decoding == "viterbi":
            codes = chain.unpad(block.k_best(1)[0][:, 0], block.lengths, dim=-1)
        else:
            codes = marginals.argmax(1)
        yield Decoded(block, codes.cpu().numpy(), marginals.cpu().numpy())
