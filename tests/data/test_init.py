from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

import extremegp.data
from extremegp.data import Dataset, TextDataset, read_dataset, recognise_format
from extremegp.errors import DataError, SettingsError

XC = "2 3 2\n1 0:1\n 2:1\n"
SVMLIGHT = "1 0:1\n 2:1\n"
JSONL = '{"text": "a", "labels": ["x"]}\n'


def save(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    return path


@pytest.mark.parametrize("name", ["data.txt", "data", "data.svm", "data.txt.gz"])
@pytest.mark.parametrize("content", [XC, SVMLIGHT, "# comment\n" + SVMLIGHT, " 2:1\n1 0:1\n", "0:1\n1 2:1\n"])
def test_matrices_are_recognised_by_their_first_line(tmp_path: Path, name: str, content: str) -> None:
    data = read_dataset(save(tmp_path, name, content))
    assert isinstance(data, Dataset)
    assert data.X.shape == (2, 3)
    assert data.Y.shape == (2, 2)
    assert data.X.sum() == 2


@pytest.mark.parametrize("name", ["data.txt", "data.json", "data.jsonl.gz"])
def test_texts_are_recognised(tmp_path: Path, name: str) -> None:
    assert read_dataset(save(tmp_path, name, JSONL)) == TextDataset(["a"], [["x"]])


def test_a_jsonl_name_decides(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r":1: not valid JSON"):
        read_dataset(save(tmp_path, "data.ndjson", XC))


@pytest.mark.parametrize("content", ["hello world\n", "a b 1:1\n", "1 2 3 4\n", "text,labels\n", "%PDF-1.4\n"])
def test_other_content_is_refused_with_the_accepted_formats(tmp_path: Path, content: str) -> None:
    with pytest.raises(DataError, match=r"data\.txt:1: the format is not recognised.*'xc'.*'svmlight'.*'jsonl'"):
        read_dataset(save(tmp_path, "data.txt", content))


def test_a_bad_header_gets_the_message_of_its_format(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="separate files"):
        read_dataset(save(tmp_path, "data.txt", "2 3\n0:1\n1:1\n"))


def test_a_named_format_and_options_are_obeyed(tmp_path: Path) -> None:
    path = save(tmp_path, "data.txt", XC)
    data = read_dataset(path, format="xc", n_features=5, n_labels=4)
    assert isinstance(data, Dataset)
    assert (data.X.shape, data.Y.shape) == ((2, 5), (2, 4))
    with pytest.raises(DataError, match="not a row"):
        read_dataset(path, format="svmlight")
    with pytest.raises(DataError, match="not valid JSON"):
        read_dataset(path, format="jsonl")
    rows = read_dataset(save(tmp_path, "rows.txt", "1 1:1\n"), n_features=4, n_labels=3, zero_based=False)
    assert isinstance(rows, Dataset)
    np.testing.assert_array_equal(rows.X.toarray(), [[1, 0, 0, 0]])
    with pytest.raises(SettingsError, match="format must be 'auto' or one of"):
        read_dataset(path, format="csv")  # type: ignore[call-overload, arg-type]


def test_the_public_names_exist_and_are_sorted() -> None:
    names = extremegp.data.__all__
    assert sorted(names, key=lambda name: (not name.isupper(), name)) == names
    assert all(hasattr(extremegp.data, name) for name in extremegp.data.__all__)


@pytest.mark.parametrize(
    "header",
    ["3,4,5", "3, 4, 5", "3;4;5", "3|4|5", "3\t4,5", "3.0 4 5", "3 4 5.0", "3e0 4 5", "3,4", "(3, 4, 5)", "3,4,5,"],
)
def test_a_header_with_other_separators_or_numbers_is_refused_not_read_as_a_row(tmp_path: Path, header: str) -> None:
    rows = "\n0,1 0:1 2:0.5\n 1:2\n2 3:1\n"
    with pytest.raises(DataError, match=r"data\.txt:1: .*looks like a header.*'N D K'.*format svmlight") as refused:
        read_dataset(save(tmp_path, "data.txt", header + rows))
    assert repr(header) in str(refused.value)


@pytest.mark.parametrize("header", ["3 4 5", "3\t4\t5", "  3   4 5  "])
def test_a_header_has_any_blanks_between_its_integers(tmp_path: Path, header: str) -> None:
    data = read_dataset(save(tmp_path, "data.txt", header + "\n0,1 0:1 2:0.5\n 1:2\n2 3:1\n"))
    assert isinstance(data, Dataset)
    assert (data.X.shape, data.Y.shape) == ((3, 4), (3, 5))


def test_a_first_row_of_labels_alone_is_read_where_the_format_is_named(tmp_path: Path) -> None:
    path = save(tmp_path, "data.txt", "3,4,5\n1 2:1\n")
    data = read_dataset(path, format="svmlight")
    assert isinstance(data, Dataset)
    assert data.Y.toarray().tolist() == [[0, 0, 0, 1, 1, 1], [0, 1, 0, 0, 0, 0]]
    assert recognise_format(path, labels_alone=True) == "svmlight"


@pytest.mark.parametrize("content", ["5\n0 1:1\n", "1,2,3,4\n0 1:1\n", "# 3 4 5\n0 1:1\n", " 1:1\n"])
def test_other_first_rows_without_features_are_rows(tmp_path: Path, content: str) -> None:
    data = read_dataset(save(tmp_path, "data.txt", content))
    assert isinstance(data, Dataset)
    assert data.X.nnz == 1


def test_rows_of_numbers_without_any_feature_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.txt:1: no line has a feature 'f:v'.*\.csv"):
        read_dataset(save(tmp_path, "data.txt", "1,2,3,4\n5,6,7,8\n"))
