from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from extremegp.data import Dataset, classes_of_dataset, read_labels, read_svmlight, read_xc
from extremegp.errors import DataError


def save(folder: Path, name: str, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path = folder / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", ["y.txt", "y.txt.gz", "y"])
@pytest.mark.parametrize(
    ("content", "labels"),
    [
        ("3\n-1\n0\n", [3, -1, 0]),
        ("3\r\n 1 \r\n2", [3, 1, 2]),
        ("cat\ndog\ncat", ["cat", "dog", "cat"]),
        ("1\n2\nx\n", ["1", "2", "x"]),
        ("01\n1\n", ["01", "1"]),
        ("+1\n-1\n", ["+1", "-1"]),
        ("-0\n0\n", ["-0", "0"]),
        ("1.5\n2\n", ["1.5", "2"]),
        ("9223372036854775807\n1\n", [2**63 - 1, 1]),
        ("9223372036854775808\n1\n", ["9223372036854775808", "1"]),
        ("²\n1\n", ["²", "1"]),
        ("\ufeffüber uns\n\U0001f600\n", ["über uns", "\U0001f600"]),
    ],
)
def test_text_labels_are_integers_only_if_nothing_is_lost(
    tmp_path: Path, name: str, content: str, labels: list[Any]
) -> None:
    path = save(tmp_path, name, content)
    assert read_labels(path).tolist() == labels
    assert read_labels(path, as_strings=True).tolist() == [str(label) for label in labels]


def test_array_files_of_labels_are_recognised_by_their_content(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.asarray([3, 1]))
    assert read_labels(tmp_path / "y.npy").tolist() == [3, 1]
    np.save(tmp_path / "column.npy", np.asarray([["a"], ["b"]]))
    assert read_labels(tmp_path / "column.npy").tolist() == ["a", "b"]
    assert read_labels(save(tmp_path, "y.gz", b"\0\0\x08\x01\0\0\0\x02\x03\x01")).tolist() == [3, 1]
    np.save(tmp_path / "matrix.npy", np.eye(2))
    with pytest.raises(DataError, match=r"matrix\.npy: labels must be one a row.*\(2, 2\)"):
        read_labels(tmp_path / "matrix.npy")
    np.savez(tmp_path / "y.npz", y=np.asarray([1]))
    with pytest.raises(DataError, match=r"y\.npz: is an \.npz"):
        read_labels(tmp_path / "y.npz")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("1\n\n2\n", ":2: the line is blank"),
        ("1\n2\n \t\n", ":3: the line is blank"),
        (b"a\nb\n\xff\xfe\n", ":3: not UTF-8 text"),
        (b"a\n\0\n", "not a text file"),
        ("", "empty"),
    ],
)
def test_bad_label_files_are_refused_with_their_line(tmp_path: Path, content: str | bytes, problem: str) -> None:
    with pytest.raises(DataError, match=rf"y\.txt.*{problem}"):
        read_labels(save(tmp_path, "y.txt", content))


XC = "5 3 4\n2 0:1\n3,0 1:1\n 2:1\n1,2,0 0:2\n0\n"
SVMLIGHT = "# made by hand\n2 1:1\n3,0 2:1 # two labels\n\n 3:1\n1,2,0 1:2\n0\n"


@pytest.mark.parametrize(("read", "content"), [(read_xc, XC), (read_svmlight, SVMLIGHT)])
def test_the_first_label_is_that_of_the_file_and_rows_without_are_dropped(
    tmp_path: Path, read: Callable[[Path], Dataset], content: str
) -> None:
    path = save(tmp_path, "data.txt", content)
    data = read(path)
    assert data.first_labels is not None
    assert data.first_labels.tolist() == [2, 3, -1, 1, 0]
    rows = classes_of_dataset(data, path, first_label=True)
    assert rows.y.tolist() == [2, 3, 1, 0]
    assert rows.n_dropped == 1
    np.testing.assert_array_equal(rows.X.toarray(), [[1, 0, 0], [0, 1, 0], [2, 0, 0], [0, 0, 0]])
    with pytest.raises(DataError, match=r"data\.txt: row 1 \(counted from 0\) has 2 labels.*--first-label"):
        classes_of_dataset(data, path)


def test_a_row_without_label_is_named(tmp_path: Path) -> None:
    data = read_xc(save(tmp_path, "data.txt", "2 3 4\n2 0:1\n 1:1\n"))
    with pytest.raises(DataError, match=r"^row 1 \(counted from 0\) has no labels"):
        classes_of_dataset(data)


def test_single_label_data_are_taken_as_they_are(tmp_path: Path) -> None:
    data = read_xc(save(tmp_path, "data.txt", "2 3 4\n2 0:1\n0 1:1\n"))
    for first_label in (False, True):
        rows = classes_of_dataset(data, first_label=first_label)
        assert rows.X is data.X
        assert rows.y.tolist() == [2, 0]
        assert rows.n_dropped == 0


def test_names_and_the_lowest_label_serve_where_the_source_has_them_and_no_order() -> None:
    Y = csr_matrix(np.asarray([[0, 1, 1], [1, 0, 0]], dtype=np.float32))
    data = Dataset(csr_matrix(np.eye(2, dtype=np.float32)), Y, label_names=["a", "b", "c"])
    assert classes_of_dataset(data, first_label=True).y.tolist() == ["b", "a"]
    empty = Dataset(data.X, csr_matrix((2, 3), dtype=np.float32))
    with pytest.raises(DataError, match="no row has a label"):
        classes_of_dataset(empty, first_label=True)


@given(rows=st.lists(st.lists(st.integers(0, 9), max_size=4, unique=True), min_size=1, max_size=12))
def test_both_formats_keep_the_first_label(tmp_path_factory: pytest.TempPathFactory, rows: list[list[int]]) -> None:
    folder = tmp_path_factory.mktemp("first")
    lines = "".join(",".join(map(str, row)) + " 0:1\n" for row in rows)
    expected = [row[0] if row else -1 for row in rows]
    for data in (
        read_xc(save(folder, "data.txt", f"{len(rows)} 1 10\n{lines}")),
        read_svmlight(save(folder, "data.svm", lines), zero_based=True),
    ):
        assert data.first_labels is not None
        assert data.first_labels.tolist() == expected


def test_bibtex_becomes_multi_class(shared_data: Path) -> None:
    data = read_xc(shared_data / "bibtex" / "train.txt.xz")
    rows = classes_of_dataset(data, first_label=True)
    firsts = [row[0] for row in np.split(data.Y.indices, data.Y.indptr[1:-1]) if len(row)]
    # The file lists the labels of each row in increasing order.
    assert rows.y.tolist() == firsts
    assert rows.X.shape[0] + rows.n_dropped == data.X.shape[0]


def test_fashion_mnist_labels_read_whole(shared_data: Path) -> None:
    path = shared_data / "fashion-mnist" / "train-labels-idx1-ubyte.gz"
    if not path.is_file():
        pytest.skip(f"needs the real dataset, and there is no file {path}")
    assert np.bincount(read_labels(path)).tolist() == [6000] * 10
