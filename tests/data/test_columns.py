from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tempfile
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from extremegp.data import Columns, read_columns, write_columns
from extremegp.data.columns import first_token_line
from extremegp.errors import DataError, SettingsError

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
TEXT = "The DT B-NP\n# NN I-NP\n\nIt PRP B-NP\n"
READ = Columns([[("The", "DT"), ("#", "NN")], [("It", "PRP")]], [["B-NP", "I-NP"], ["B-NP"]])


def save(folder: Path, content: str | bytes, name: str = "data.txt") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_are_read(tmp_path: Path, suffix: str) -> None:
    assert read_columns(save(tmp_path, COMPRESS[suffix](TEXT.encode()), f"data.txt{suffix}")) == READ


@pytest.mark.parametrize(
    "text",
    [
        TEXT.removesuffix("\n"),
        TEXT + "\n\n",
        "\n \n" + TEXT,
        TEXT.replace("\n\n", "\n \t \n\n"),
        TEXT.replace("\n", "\r\n"),
        "\ufeff" + TEXT,
        TEXT.replace(" ", "\t"),
        TEXT.replace(" ", " \t  "),
        TEXT.replace("It", "  It").replace("NP\n", "NP \n"),
        "-DOCSTART- -X- O O\n\n" + TEXT,
        "-DOCSTART-\n" + TEXT + "\n-DOCSTART- -X-\n\n",
        TEXT.replace("\n\n", "\n-DOCSTART- -X- O\n"),
    ],
)
def test_blanks_line_ends_and_document_starts_do_not_count(tmp_path: Path, text: str) -> None:
    assert read_columns(save(tmp_path, text)) == READ


def test_only_blanks_and_tabs_separate_columns(tmp_path: Path) -> None:
    read = read_columns(save(tmp_path, "a\u00a0b\u3000 x\x0bx T\n\u3000 \u2028 T\n"))
    assert read == Columns([[("a\u00a0b\u3000", "x\x0bx"), ("\u3000", "\u2028")]], [["T", "T"]])
    alone = read_columns(save(tmp_path, "a\n\u3000\nb\n"), label_column=None)
    assert alone.sequences == [[("a",), ("\u3000",), ("b",)]]


@pytest.mark.parametrize(("column", "sequence", "labels"), [
    (-1, [("a", "b")], ["c"]),
    (2, [("a", "b")], ["c"]),
    (0, [("b", "c")], ["a"]),
    (-2, [("a", "c")], ["b"]),
    (None, [("a", "b", "c")], None),
])  # fmt: skip
def test_the_label_column_is_chosen(tmp_path: Path, column: int | None, sequence: Any, labels: Any) -> None:
    read = read_columns(save(tmp_path, "a b c\n"), label_column=column)
    assert read == Columns([sequence], None if labels is None else [labels])


def test_a_separator_allows_cells_that_are_empty_or_hold_blanks(tmp_path: Path) -> None:
    path = save(tmp_path, "New York\t\tB\n\tx \tO\n\t\t\nend\ty\tO\n")
    assert read_columns(path, separator="\t") == Columns(
        [[("New York", ""), ("", "x ")], [("end", "y")]], [["B", "O"], ["O"]]
    )
    assert read_columns(save(tmp_path, "a||b\n"), separator="||").sequences == [[("a",)]]
    with pytest.raises(DataError, match=r"data\.txt:2: the label is blank"):
        read_columns(save(tmp_path, "a\tB\nb\t \n"), separator="\t")


def test_reading_stops_after_the_wanted_sequences(tmp_path: Path) -> None:
    path = save(tmp_path, TEXT + "\nbroken\n")
    assert read_columns(path, max_sequences=2) == READ
    assert read_columns(path, max_sequences=1).sequences == READ.sequences[:1]
    with pytest.raises(DataError, match=r"data\.txt:6: the line has 1 columns, but line 1 has 3"):
        read_columns(path, max_sequences=3)


def test_other_encodings_are_read_where_named(tmp_path: Path) -> None:
    path = save(tmp_path, "a B\n\ncafé O\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"data\.txt:3: not utf-8 text \(byte 3 of the line\).*--encoding"):
        read_columns(path)
    assert read_columns(path, encoding="latin-1").sequences[1] == [("café",)]
    japanese = save(tmp_path, "表 ソ B\n".encode("shift_jis"))
    assert read_columns(japanese, encoding="shift_jis").sequences == [[("表", "ソ")]]


@pytest.mark.parametrize(
    ("content", "options", "problem"),
    [
        (b"", {}, "data.txt: the file is empty"),
        (b"\n \n", {}, "data.txt: the file has no tokens, only blank lines"),
        (b"-DOCSTART- O\n", {}, "data.txt: the file has no tokens"),
        (b"a b C\nd e\n", {}, r"data.txt:2: the line has 2 columns, but line 1 has 3.*separator"),
        (b"\na b\n\nd e f\n", {}, r"data.txt:4: the line has 3 columns, but line 2 has 2"),
        (b"a\tb\nd e\n", {"separator": "\t"}, r"data.txt:2: the line has 1 columns, but line 1 has 2; write all .*"),
        (b"a b\n", {"label_column": 2}, r"data.txt:1: there is no label column 2: the line has 2 columns"),
        (b"a b\n", {"label_column": -3}, r"data.txt:1: there is no label column -3"),
        (b"\na\n", {}, r"data.txt:2: the line has only one column.*label_column=None"),
        ("a B\n".encode("utf-16"), {}, "NUL"),
        (gzip.compress(b"a B\n", mtime=0), {}, "does not end in .gz"),
    ],
)
def test_broken_files_are_refused_with_their_line(
    tmp_path: Path, content: bytes, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(DataError, match=problem):
        read_columns(save(tmp_path, content), **options)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.txt: no such file"):
        read_columns(tmp_path / "absent.txt")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"label_column": "-1"}, "label_column must be an integer or None"),
        ({"label_column": True}, "label_column must be"),
        ({"separator": ""}, "separator must be a string"),
        ({"separator": "\n"}, "separator must be a string"),
        ({"separator": 9}, "separator must be a string"),
        ({"max_sequences": 0}, "max_sequences must be a positive integer"),
        ({"max_sequences": True}, "max_sequences must be a positive integer"),
        ({"encoding": "klingon"}, "encoding 'klingon' is not known"),
        ({"encoding": "rot13"}, "encoding 'rot13' is not known"),
        ({"encoding": "utf-16"}, "does not keep the bytes of ASCII; convert the file to UTF-8"),
        ({"encoding": "cp037"}, "does not keep the bytes of ASCII"),
    ],
)
def test_bad_options_are_refused_before_the_file_is_opened(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        read_columns("absent.txt", **options)


def test_predictions_are_written_as_rows_with_label_and_probability() -> None:
    stream = io.StringIO()
    write_columns(stream, READ.sequences, [["B", 3], ["O"]], probabilities=[[0.5, 1 + 1e-6], [1e-9]])
    assert stream.getvalue() == "The\tDT\tB\t0.500000\n#\tNN\t3\t1.000000\n\nIt\tPRP\tO\t0.000000\n\n"


def test_measures_come_last_with_six_digits() -> None:
    stream = io.StringIO()
    measures = [[(0.125, 1234567.8, True)], [(float("nan"), 1e-9, False)]]
    write_columns(stream, [[("a",)], [("b",)]], [["B"], ["O"]], probabilities=[[0.5], [1]], measures=measures)
    first, second = stream.getvalue().split("\n\n")[:2]
    assert first == "a\tB\t0.500000\t0.125\t1.23457e+06\ttrue"
    assert second == "b\tO\t1.000000\tnan\t1e-09\tfalse"


@pytest.mark.parametrize("suffix", COMPRESS)
def test_what_is_written_is_read_again(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out.tsv{suffix}"
    assert READ.labels is not None
    write_columns(path, READ.sequences, READ.labels)
    assert read_columns(path, separator="\t") == READ
    write_columns(path, READ.sequences, READ.labels, probabilities=[[0.25, 0.5], [1]])
    assert read_columns(path).labels == [["0.250000", "0.500000"], ["1.000000"]]


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\t\n\r\0\ufeff"), max_size=6)
LABELS = CELLS.filter(lambda label: label.strip(" ") != "")
TOKENS = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.lists(st.tuples(st.tuples(*[CELLS] * width), LABELS), min_size=1), min_size=1)
)


@given(TOKENS)
def test_every_cell_survives_a_round_trip(sequences: list[list[tuple[tuple[str, ...], str]]]) -> None:
    columns = Columns(
        [[token for token, _ in sequence] for sequence in sequences],
        [[label for _, label in sequence] for sequence in sequences],
    )
    assert columns.labels is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.tsv"
        write_columns(path, *columns)
        assert read_columns(path, separator="\t") == columns
        unlabelled = read_columns(path, separator="\t", label_column=None)
    assert unlabelled.labels is None
    assert unlabelled.sequences == [[(*token, label) for token, label in sequence] for sequence in sequences]


@given(st.binary(max_size=60), st.sampled_from([None, "\t"]), st.sampled_from([None, -1, 0]))
def test_any_bytes_are_read_or_refused(content: bytes, separator: str | None, label_column: int | None) -> None:
    read = Columns([[("refused",)]], None)
    problem = None
    with tempfile.TemporaryDirectory() as folder:
        path = save(Path(folder), content)
        try:
            read = read_columns(path, separator=separator, label_column=label_column, encoding="latin-1")
        except DataError as error:
            problem = str(error)
    assert problem is None or problem.startswith(str(path))
    assert len({len(token) for sequence in read.sequences for token in sequence}) == 1
    assert all(read.sequences)
    assert read.labels is None or list(map(len, read.labels)) == list(map(len, read.sequences))


@pytest.mark.parametrize(
    ("sequences", "labels", "options", "problem"),
    [
        ([], [], {}, "no sequences to write"),
        ([[("a",)]], [], {}, "there are 1 sequences but 0 label sequences"),
        ([[("a",)]], [["B"]], {"probabilities": []}, "1 sequences but 0 sequences of probabilities"),
        ([[("a",)], []], [["B"], []], {}, "sequence 1 .*has no tokens"),
        ([[("a",)]], [["B", "B"]], {}, "sequence 0 .*has 1 tokens but 2 labels"),
        ([[("a",)]], [["B"]], {"measures": []}, "1 sequences but 0 sequences of measures"),
        ([[("a",)]], [["B"]], {"measures": [[(1,), (2,)]]}, "sequence 0 .*has 1 tokens but 2 rows of measures"),
        ([[("a",)]], [["B"]], {"probabilities": [[]]}, "sequence 0 .*has 1 tokens but 0 probabilities"),
        ([["ab"]], [["B"]], {}, "token 0 of sequence 0 .*bare string 'ab'"),
        ([[("a", 1)]], [["B"]], {}, "token 0 of sequence 0 .*has a int among its columns"),
        ([[("a",), ("a", "b")]], [["B", "B"]], {}, "token 1 of sequence 0 .*has 2 columns, but those before have 1"),
        ([[("a\tb",)]], [["B"]], {}, "the cell 'a\\\\tb'; tabs"),
        ([[("a",)]], [["B\r"]], {}, "the cell 'B\\\\r'"),
        ([[("a",)]], [[" "]], {}, "has a blank label"),
        ([[("-DOCSTART-",)]], [["O"]], {}, "separates sequences"),
        ([[("a",)]], [["B"]], {"probabilities": [[1.1]]}, "the probability 1.1, which is not from 0 to 1"),
        ([[("a",)]], [["B"]], {"probabilities": [[float("nan")]]}, "the probability nan"),
    ],
)
def test_what_does_not_go_together_is_not_written(
    tmp_path: Path, sequences: Any, labels: Any, options: dict[str, Any], problem: str
) -> None:
    stream = io.StringIO()
    with pytest.raises(DataError, match=problem):
        write_columns(stream, sequences, labels, **options)
    with pytest.raises(DataError, match=problem):
        write_columns(tmp_path / "out.tsv", sequences, labels, **options)
    assert not stream.getvalue()
    assert not list(tmp_path.iterdir())


def test_files_are_written_in_the_wanted_encoding_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.tsv"
    write_columns(path, [[("é",)]], [["O"]], encoding="latin-1")
    assert path.read_bytes() == b"\xe9\tO\n\n"
    with pytest.raises(DataError, match=r"out\.tsv:3: '€' cannot be written in latin-1; write UTF-8"):
        write_columns(path, [[("a",)], [("€",)]], [["O"], ["O"]], encoding="latin-1")
    assert path.read_bytes() == b"\xe9\tO\n\n"
    with pytest.raises(SettingsError, match="encoding"):
        write_columns(path, [[("a",)]], [["O"]], encoding="utf-16")


def test_the_chunks_of_conll_2000_are_read(shared_data: Path) -> None:
    read = read_columns(shared_data / "conll2000" / "train.txt.xz")
    assert read.labels is not None
    assert (len(read.sequences), sum(map(len, read.labels))) == (8936, 211727)
    assert read.sequences[0][:2] == [("Confidence", "NN"), ("in", "IN")]
    assert read.labels[0][:2] == ["B-NP", "B-PP"]
    assert len({label for labels in read.labels for label in labels}) == 22


CONLL = """# newdoc id = a
# sent_id = 1
# text = It's late
1-2\tIt's\t_\t_
1\tIt\tPRON\tX
2\t's\tAUX\tY
3\tlate\tADJ\tX

# newpar
# sent_id = 2
# a remark
1\tRun\tVERB\tY
1.1\tyou\t_\t_
2\t!\tPUNCT\tX
"""
TOKENS = [
    [("1", "It", "PRON"), ("2", "'s", "AUX"), ("3", "late", "ADJ")],
    [("1", "Run", "VERB"), ("2", "!", "PUNCT")],
]


def test_comments_and_lines_that_are_no_tokens_of_conll_u_are_left_out(tmp_path: Path) -> None:
    path = save(tmp_path, CONLL)
    with pytest.warns(UserWarning, match=r"data\.txt:4: left out.*as in CoNLL-U") as told:
        read = read_columns(path)
    assert [str(warning.message).split(":")[1] for warning in told] == ["4"]
    assert read == Columns(TOKENS, [["X", "Y", "X"], ["Y", "X"]])
    with pytest.warns(UserWarning, match="as in CoNLL-U"):
        assert read_columns(path, separator="\t", label_column=None).sequences[1][1] == ("2", "!", "PUNCT", "X")
    assert first_token_line(path) == 4


@pytest.mark.parametrize("comment", ["# sent_id = 1", "#sent_id = 1", "# global.columns = ID FORM", "# text ="])
@pytest.mark.parametrize("separator", [None, " "])
def test_comments_among_columns_between_blanks_are_left_out(tmp_path: Path, comment: str, separator: Any) -> None:
    path = save(tmp_path, f"{comment}\na b c d e f T\n\n{comment}\nx b c d e f T\n")
    assert read_columns(path, separator=separator).sequences == [[tuple("abcdef")], [tuple("xbcdef")]]
    assert first_token_line(path, separator) == 2


@pytest.mark.parametrize("text", ["# sent_id = {}\na b c T\n", "# a b T\nc\td\te\tT\n"])
def test_comments_that_could_be_tokens_are_told_of_once(tmp_path: Path, text: str) -> None:
    path = save(tmp_path, "\n".join(text.format(i) for i in range(5)))
    with pytest.warns(UserWarning, match=r"data\.txt:1: left out as a comment") as told:
        read = read_columns(path)
    assert len(told) == 1
    assert [len(tokens) for tokens in read.sequences] == [1] * 5
    assert {tag for tags in read.labels or () for tag in tags} == {"T"}


@pytest.mark.parametrize(
    ("text", "options", "first"),
    [
        ("# SYM O\n1 CD O\n", {}, "#"),
        ("#\tSYM\tO\n1\tCD\tO\n", {}, "#"),
        ("#python NN O\nrocks VB O\n", {}, "#python"),
        ("#\t=\tO\nx\ty\tO\n", {"separator": "\t"}, "#"),
        ("# sent_id = 1\tSYM\tO\nx\ty\tO\n", {"separator": "\t"}, "# sent_id = 1"),
        ("# SYM O\n\n", {}, "#"),
        ("#,SYM,O\na,b,O\n", {"separator": ","}, "#"),
        ("#\n#\n", {"label_column": None}, "#"),
    ],
)
def test_tokens_that_start_with_a_hash_stay(tmp_path: Path, text: str, options: Any, first: str) -> None:
    path = save(tmp_path, text)
    sequences = read_columns(path, **options).sequences
    assert sequences[0][0][0] == first
    assert sum(map(len, sequences)) == len(text.strip().splitlines())
    assert first_token_line(path, options.get("separator")) == 1


def test_a_hash_within_a_sequence_is_a_token(tmp_path: Path) -> None:
    path = save(tmp_path, "we PRP O x\n# sent_id = 1\n")
    assert read_columns(path).sequences == [[("we", "PRP", "O"), ("#", "sent_id", "=")]]


@pytest.mark.parametrize("text", ["1-2 CD S\n1 CD S\n3 CD S\n", "1 X S\n1.1 X S\n", "a X S\n1-2 X S\n", "1-2 X S\n"])
def test_words_that_look_like_numbers_of_conll_u_stay(tmp_path: Path, text: str) -> None:
    assert sum(map(len, read_columns(save(tmp_path, text)).sequences)) == text.count("\n")


def test_json_lines_are_told_from_columns(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.txt:2: the line is a JSON object.*a token a line, in columns"):
        read_columns(save(tmp_path, '\n{"text": "a b", "labels": ["x"]}\n'))
    assert read_columns(save(tmp_path, "{ ( O\n")).sequences == [[("{", "(")]]
