from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_matrix
from sklearn.datasets import load_svmlight_file

from extremegp.data import xc
from extremegp.data.blocks import Dataset
from extremegp.data.xc import read_xc, write_xc
from extremegp.errors import DataError
from extremegp.storage.streams import line_blocks, text_blocks

SMALL = "4 5 3\n0,2 0:1 3:0.5\n 1:2e-3 2:-1.\n1\n\n"
SMALL_X = [[1, 0, 0, 0.5, 0], [0, 2e-3, -1, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]]
SMALL_Y = [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0]]

finite32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def save(folder: Path, text: str | bytes) -> Path:
    path = folder / "data.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def same(a: csr_matrix, b: csr_matrix) -> bool:
    return (
        a.shape == b.shape
        and a.dtype == b.dtype == np.float32
        and np.array_equal(a.indptr, b.indptr)
        and np.array_equal(a.indices, b.indices)
        and np.array_equal(a.data, b.data)
    )


def check_form(data: Dataset) -> None:
    for matrix in (data.X, data.Y):
        assert isinstance(matrix, csr_matrix)
        assert matrix.dtype == np.float32
        for row in range(matrix.shape[0]):
            columns = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]
            assert (np.diff(columns) > 0).all()
    assert (data.Y.data == 1).all()


def test_rows_without_labels_without_features_and_without_either_are_kept(tmp_path: Path) -> None:
    data = read_xc(save(tmp_path, SMALL))
    check_form(data)
    np.testing.assert_array_equal(data.X.toarray(), np.asarray(SMALL_X, dtype=np.float32))
    np.testing.assert_array_equal(data.Y.toarray(), SMALL_Y)
    assert data.label_names is None


@pytest.mark.parametrize(
    "text",
    [
        SMALL.replace("\n", "\r\n"),
        SMALL.rstrip("\n") + "\n \n",
        SMALL + "\n\n  \n",
        SMALL.replace("0,2 0:1 3:0.5", "2,0 3:0.5 0:1"),
        SMALL.replace("0,2 0:1 3:0.5", "0,2\t0:1  3:0.5 "),
        SMALL.replace("0:1 3:0.5", "0:1e0 3:+.5 4:0 2:0.0"),
        "\ufeff" + SMALL,
    ],
    ids=["windows", "space row", "blank end", "unsorted", "spaces", "spellings and zeros", "byte-order mark"],
)
def test_harmless_variants_read_alike(tmp_path: Path, text: str) -> None:
    data = read_xc(save(tmp_path, text))
    check_form(data)
    np.testing.assert_array_equal(data.X.toarray(), np.asarray(SMALL_X, dtype=np.float32))
    np.testing.assert_array_equal(data.Y.toarray(), SMALL_Y)
    assert data.X.nnz == 4


def test_the_model_decides_the_width(tmp_path: Path) -> None:
    path = save(tmp_path, SMALL)
    data = read_xc(path, n_features=7, n_labels=4)
    assert data.X.shape == (4, 7)
    assert data.Y.shape == (4, 4)
    with pytest.raises(DataError, match=":1: the header says 5 features but the model has 4"):
        read_xc(path, n_features=4)
    with pytest.raises(DataError, match=":1: the header says 3 labels but the model has 2"):
        read_xc(path, n_labels=2)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("4 5", "separate files"),
        ("0,2 0:1 3:0.5", "three integers.*'0,2 0:1 3:0.5'"),
        ("four 5 3", "three integers"),
        ("4 -5 3", "three integers.*'4 -5 3'"),
        ("4 5 3.0", "three integers"),
        ("4 5 3 1", "three integers"),
        ("", "three integers"),
        ("0 5 3", "at least 1"),
        ("4 99999999999 3", "at most 2147483647"),
        ("4 5 " + "9" * 5000, "three integers"),
    ],
)
def test_a_bad_header_is_refused(tmp_path: Path, header: str, problem: str) -> None:
    with pytest.raises(DataError, match=rf"data\.txt:1: .*{problem}"):
        read_xc(save(tmp_path, SMALL.replace("4 5 3", header)))


def test_a_header_alone_allocates_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="says 999999999999999999 rows but only 1 follow"):
        read_xc(save(tmp_path, "999999999999999999 2147483647 2147483647\n0 1:1\n"))
    with pytest.raises(DataError, match="only 0 follow"):
        read_xc(save(tmp_path, "3 2 2\n"))


def test_a_row_count_that_differs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="says 5 rows but only 4 follow; the file is cut short"):
        read_xc(save(tmp_path, SMALL.replace("4 5 3", "5 5 3")))
    with pytest.raises(DataError, match=r"data\.txt:4: more rows than the header says"):
        read_xc(save(tmp_path, SMALL.replace("4 5 3", "2 5 3")))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("3 1:1", "label '3' is out of range.*0 to 2"),
        ("-1 1:1", "label '-1' is negative"),
        ("1.0 1:1", "label '1.0' is not an integer"),
        ("x 1:1", "label 'x' is not an integer"),
        ("1, 1:1", "label '' is not an integer"),
        (",1 1:1", "label '' is not an integer"),
        ("1,1 1:1", "label 1 comes twice"),
        (" 1,2 1:1", "'1,2' is not a 'feature:value' pair"),
        ("0:1 1:1", "'0:1' stands where labels are expected; start a row without labels with a space"),
        ("1 5:1", "feature '5' is out of range.*0 to 4"),
        ("1 99999999999999999999999:1", "feature '99999999999999999999999' is out of range"),
        ("1 -2:1", "feature '-2' is negative"),
        ("1 2.0:1", "feature '2.0' is not an integer"),
        ("1 1e0:1", "feature '1e0' is not an integer"),
        ("1 +1:1", "feature '\\+1' is not an integer"),
        ("1 :1", "feature '' is not an integer"),
        ("1 2:nan", "value 'nan' of feature 2 is not finite"),
        ("1 2:-inf", "value '-inf' of feature 2 is not finite"),
        ("1 2:1e39", "value '1e39' of feature 2 is too large for float32"),
        ("1 2:1e999", "value '1e999' of feature 2 is too large for float32"),
        ("1 2:abc", "value 'abc' of feature 2 is not a number"),
        ("1 2:", "value '' of feature 2 is not a number"),
        ("1 2:1:1", "value '1:1' of feature 2 is not a number"),
        ("1 2:1.2.3", "value '1.2.3' of feature 2 is not a number"),
        ("1 2:1_0", "value '1_0' of feature 2 is not a number"),
        ("1 2:0x1", "value '0x1' of feature 2 is not a number"),
        ("1 2:1,3", "value '1,3' of feature 2 is not a number"),
        ("1 2:1e", "value '1e' of feature 2 is not a number"),
        ("1 2", "'2' is not a 'feature:value' pair"),
        ("1 2:1 2:1", "feature 2 comes twice in the row"),
        ("1 2:1 0:1 2:1", "feature 2 comes twice in the row"),
        ("1 2:1 # comment", "'#' is not a 'feature:value' pair"),
        ("1 2:é", "value 'é' of feature 2 is not a number"),
        ("1 " + "7" * 100, "'7{40}\\.\\.\\.' is not"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(tmp_path: Path, row: str, problem: str) -> None:
    with pytest.raises(DataError, match=rf"data\.txt:4: .*{problem}") as caught:
        read_xc(save(tmp_path, f"4 5 3\n0 0:1\n1 1:1\n{row}\n2 2:1\n"))
    assert caught.value.line == 4


def test_the_line_is_right_in_later_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, "100 9 9\n" + "1 2:1\n" * 70 + "1 2:x\n" + "1 2:1\n" * 29)
    monkeypatch.setattr(xc, "text_blocks", partial(text_blocks, block_bytes=50))
    with pytest.raises(DataError, match=r":72: "):
        read_xc(path)


numbers = st.sampled_from(["0", "1", "17", "2.5", "-.5", "+1e1", "3.E-2", "007", "1e-50", "-0"])
rows = st.builds(
    lambda labels, pairs, gap: ",".join(map(str, labels)) + "".join(f"{gap}{f}:{v}" for f, v in pairs),
    st.lists(st.integers(0, 20), max_size=3),
    st.lists(st.tuples(st.integers(0, 50), numbers), max_size=3),
    st.sampled_from([" ", "  ", "\t"]),
)


def read_plainly(line: str) -> tuple[list[int], dict[int, np.float32]]:
    head, *pairs = line.replace("\t", " ").split(" ")
    labels = [int(label) for label in head.split(",") if head]
    row = {int(f): np.float32(float(v)) for f, v in (pair.split(":") for pair in pairs if pair)}
    return labels, {f: row[f] for f in sorted(row) if row[f]}


@given(data=st.data(), lines=st.lists(rows, min_size=1, max_size=4))
def test_rows_are_read_exactly_where_no_line_is_refused(data: st.DataObject, lines: list[str]) -> None:
    body = "\n".join(lines)
    if data.draw(st.booleans(), "damaged"):
        at = data.draw(st.integers(0, len(body)), "at")
        body = body[:at] + data.draw(st.sampled_from(list("19 :,.-+e\nx\t")), "new") + body[at + 1 :]
    block = (body + "\n").encode()
    parsed = xc._parse(block, 50, 20)
    if parsed is None:
        with pytest.raises(DataError):
            xc._refuse(block, 50, 20, Path("f"), 2)
        return
    with pytest.raises(AssertionError):
        xc._refuse(block, 50, 20, Path("f"), 2)
    plain = [read_plainly(line) for line in body.split("\n")]
    assert parsed.n_features.tolist() == [len(row) for _, row in plain]
    assert parsed.features.tolist() == [f for _, row in plain for f in row]
    assert parsed.values.tolist() == [v for _, row in plain for v in row.values()]
    assert parsed.n_labels.tolist() == [len(labels) for labels, _ in plain]
    assert parsed.labels.tolist() == [label for labels, _ in plain for label in sorted(labels)]
    assert parsed.first_labels.tolist() == [labels[0] if labels else -1 for labels, _ in plain]


@given(content=st.binary(max_size=60), start=st.sampled_from([b"", b"1 3 2\n", b"3 3 2\n1 0:1\n"]))
def test_any_bytes_give_a_dataset_or_a_data_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, start: bytes
) -> None:
    path = save(tmp_path_factory.getbasetemp(), start + content)
    try:
        data = read_xc(path)
    except DataError as error:
        assert error.path == path  # noqa: PT017 - most examples fail, but some must not
    else:
        check_form(data)


@st.composite
def datasets(draw: st.DrawFn) -> tuple[csr_matrix, csr_matrix]:
    n, d, k = (draw(st.integers(1, 6)) for _ in range(3))
    present = draw(arrays(np.bool_, (n, d)))
    X = np.where(present, draw(arrays(np.float32, (n, d), elements=finite32)), np.float32(0))
    return csr_matrix(X), csr_matrix(draw(arrays(np.bool_, (n, k))).astype(np.float32))


@given(data=datasets(), suffix=st.sampled_from(["", ".gz", ".xz"]), block_bytes=st.integers(1, 200))
def test_what_is_written_reads_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, data: tuple[csr_matrix, csr_matrix], suffix: str, block_bytes: int
) -> None:
    X, Y = data
    path = tmp_path_factory.getbasetemp() / f"round_trip.txt{suffix}"
    write_xc(path, X, Y)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(xc, "text_blocks", partial(text_blocks, block_bytes=block_bytes))
        back = read_xc(path)
    assert same(back.X, X)
    assert same(back.Y, Y)


def test_float32_that_double_rounding_misses_reads_back_exactly(tmp_path: Path) -> None:
    value = np.float32("7.0385313e-26")
    value = np.nextafter(value, np.float32(0))
    assert np.float32(float(str(value))) != value
    path = tmp_path / "data.txt"
    write_xc(path, csr_matrix([[value]]), csr_matrix([[1]]))
    assert read_xc(path).X.data[0] == value


def test_the_writer_is_compact_and_leaves_its_input_alone(tmp_path: Path) -> None:
    X = csr_matrix(np.asarray([[1, 0.1, 0], [0, 0, 0]]))
    X.data[0] = 0
    path = tmp_path / "data.txt"
    write_xc(path, X, np.asarray([[0, 1], [0, 0]]))
    assert path.read_text() == "2 3 2\n1 1:0.1\n \n"
    assert X.nnz == 2


def test_the_writer_refuses_what_it_cannot_write_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    for X, Y, problem in (
        ([[1.0]], [["a"]], "label numbers, not names"),
        ([[1.0], [2.0]], np.asarray([[1]]), "X has 2 rows but Y has 1"),
        ([[np.nan]], np.asarray([[1]]), "NaN"),
        ([[1.0]], np.asarray([[2]]), "only 0 and 1"),
    ):
        with pytest.raises(DataError, match=problem):
            write_xc(path, X, Y)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["delicious", "bibtex", "mulan/scene", "mulan/yeast"])
def test_real_files_agree_with_scikit_learn(shared_data: Path, tmp_path: Path, name: str) -> None:
    path = shared_data / (f"{name}_train.txt.xz" if "/" in name else f"{name}/train.txt.xz")
    data = read_xc(path)
    check_form(data)
    header, _, rows = b"".join(line_blocks(path)).partition(b"\n")
    assert header.split() == [str(size).encode() for size in (*data.X.shape, data.Y.shape[1])]
    plain = tmp_path / "rows.txt"
    plain.write_bytes(rows)
    X, labels = load_svmlight_file(
        str(plain), n_features=data.X.shape[1], dtype=np.float32, multilabel=True, zero_based=True
    )
    assert (csr_matrix(X) != data.X).nnz == 0
    assert [tuple(row) for row in np.split(data.Y.indices, data.Y.indptr[1:-1])] == [
        tuple(int(label) for label in row) for row in labels
    ]


def test_unlabelled_rows_of_delicious_are_kept(shared_data: Path) -> None:
    data = read_xc(shared_data / "delicious" / "train.txt.xz")
    assert data.X.shape == (12920, 500)
    assert data.Y.shape == (12920, 983)
    assert int((np.diff(data.Y.indptr) == 0).sum()) == 13


@pytest.mark.slow
def test_large_real_files_are_read_whole(shared_data: Path) -> None:
    sources = (shared_data / "SOURCES.md").read_text()
    for name in ("human_gene_pubmed", "yso_finna_en"):
        stated = re.search(rf"\| {name} \| (\d+) / \d+ \| (\d+) \| (\d+) \|", sources)
        assert stated is not None
        data = read_xc(shared_data / name / "train.txt.xz")
        assert (*data.X.shape, data.Y.shape[1]) == tuple(int(number) for number in stated.groups())
