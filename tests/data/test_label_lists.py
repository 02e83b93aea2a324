from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from extremegp.data import read_label_lists, read_sparse
from extremegp.data.label_lists import sign_of_lists
from extremegp.errors import DataError


def test_a_line_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "tags.txt"
    path.write_text("a; b\n\nb\n;\n")
    assert read_label_lists(path, ";") == [["a", "b"], [], ["b"], []]
    path.write_text('["a", "b"]\n[]\n\n[3]\n')
    assert read_label_lists(path) == [["a", "b"], [], [], [3]]


def test_a_line_without_a_separator_is_asked_about(tmp_path: Path) -> None:
    path = tmp_path / "tags.txt"
    path.write_text('["a"]\na|b\n')
    with pytest.raises(DataError, match=r"tags\.txt:2: 'a\|b' is a text.*--label-separator '\|'"):
        read_label_lists(path)
    path.write_text("[1, \n")
    with pytest.raises(DataError, match=r"tags\.txt:1: .* is no list of labels"):
        read_label_lists(path)


def test_matrices_are_read(tmp_path: Path) -> None:
    Y = np.eye(3, dtype=np.int8)
    np.save(tmp_path / "y.npy", Y)
    np.testing.assert_array_equal(read_label_lists(tmp_path / "y.npy"), Y)
    scipy.sparse.save_npz(tmp_path / "y.npz", scipy.sparse.csr_matrix(Y))
    np.testing.assert_array_equal(read_label_lists(tmp_path / "y.npz").toarray(), Y)
    np.save(tmp_path / "flat.npy", Y[0])
    with pytest.raises(DataError, match=r"flat\.npy: labels of many per row are an array N x K"):
        read_label_lists(tmp_path / "flat.npy")


def test_sparse_matrices_that_are_damaged_or_of_another_format_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    scipy.sparse.save_npz(path, scipy.sparse.csc_matrix(np.eye(3)))
    with pytest.raises(DataError, match=r"x\.npz: holds a sparse matrix of the format b'csc'; save it again"):
        read_sparse(path)
    parts = {"data": np.ones(1), "indices": np.array([9]), "indptr": np.array([0, 1]), "shape": np.array([1, 3])}
    np.savez(path, **parts, format=np.array(b"csr"))
    with pytest.raises(DataError, match=r"x\.npz: not a readable \.npz file"):
        read_sparse(path)
    np.savez(path, data=np.ones(3))
    with pytest.raises(DataError, match="holds no matrix"):
        read_sparse(path)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (["a;b", "b;c", "a", "c"], "';'"),
        ([", ".join(some) for n in (1, 2, 3) for some in combinations("abcd", n)], "','"),
        ([" ".join(some) for n in (1, 2, 3) for some in combinations("abcdef", n)], "' '"),
        (["['a', 'b']", "['a']", "[]"], "is a list"),
        (["x|y", "y|x", "x", "y"], r"'\|'"),
    ],
)
def test_lists_among_classes_are_noticed(values: list[str], shown: str) -> None:
    assert re.search(shown, sign_of_lists(values) or "")


@pytest.mark.parametrize(
    "values",
    [
        ["New York", "San Jose", "Oslo", "Rome", "Lima"],
        ["Smith, John", "Doe, Jane", "Roe, Richard"],
        ["ash", "birch"],
        [1, 2, 3],
        ["B-NP", "I-NP", "O"],
        [f"{who} {what}" for who in ("Men's", "Women's", "Kids'") for what in ("shoes", "hats", "coats")],
        ["http://example.org/a", "http://example.org/b"],
    ],
)
def test_names_of_classes_are_no_lists(values: list[object]) -> None:
    assert sign_of_lists(values) is None
