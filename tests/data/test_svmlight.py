from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from extremegp.data.svmlight import read_svmlight
from extremegp.data.xc import read_xc
from extremegp.errors import DataError, SettingsError
from extremegp.storage.streams import line_blocks

SMALL = "# made by hand\n0,2 1:1 3:0.5\n\n1:2 2:-1 # no labels\n1\n 2:0\n"
ONE_BASED_X = [[1, 0, 0.5], [2, -1, 0], [0, 0, 0], [0, 0, 0]]
SMALL_Y = [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0]]


def save(folder: Path, content: str) -> Path:
    path = folder / "data.svm"
    path.write_text(content)
    return path


@pytest.mark.parametrize("zero_based", [False, "auto"])
def test_rows_comments_and_blank_lines(tmp_path: Path, zero_based: bool | str) -> None:
    data = read_svmlight(save(tmp_path, SMALL), zero_based=zero_based)  # type: ignore[arg-type]
    np.testing.assert_array_equal(data.X.toarray(), ONE_BASED_X)
    np.testing.assert_array_equal(data.Y.toarray(), SMALL_Y)
    assert data.X.dtype == data.Y.dtype == np.float32
    assert data.X.nnz == 4
    assert data.X.has_canonical_format
    assert data.Y.has_canonical_format


def test_features_that_count_from_zero(tmp_path: Path) -> None:
    expected = np.hstack([np.zeros((4, 1)), ONE_BASED_X])
    np.testing.assert_array_equal(read_svmlight(save(tmp_path, SMALL), zero_based=True).X.toarray(), expected)
    seen = read_svmlight(save(tmp_path, SMALL + "1 0:1\n"))
    assert seen.X.shape == (5, 4)


def test_compressed_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "data.svm.gz"
    path.write_bytes(gzip.compress(SMALL.encode()))
    np.testing.assert_array_equal(read_svmlight(path).X.toarray(), ONE_BASED_X)


def test_the_model_decides_the_width(tmp_path: Path) -> None:
    path = save(tmp_path, SMALL)
    data = read_svmlight(path, n_features=6, n_labels=5, zero_based=False)
    assert data.X.shape == (4, 6)
    assert data.Y.shape == (4, 5)
    with pytest.raises(DataError, match=r"data\.svm:2: the file has 3 features but 2 were expected"):
        read_svmlight(path, n_features=2, zero_based=False)
    with pytest.raises(DataError, match=r"data\.svm:2: the label 2 is out of range: 2 labels were expected.*0 to 1"):
        read_svmlight(path, n_labels=2)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("1 2:x", "could not convert"),
        ("1 2:1:1", "could not convert"),
        ("a 2:1", "could not convert"),
        ("1 3:1 2:1", "sorted and unique"),
        ("1 2:1 2:1", "sorted and unique"),
        ("1 -2:1", "Invalid index -2"),
        ("1 0:1", "Invalid index 0"),
        ("1 99999999999:1", "too large"),
        ("1 2", "not a row"),
        ("1 2:nan", "value nan is not a finite"),
        ("1 2:-inf", "value -inf is not a finite"),
        ("1 2:1e39", r"value 1e\+39 is not a finite"),
        ("1.5 2:1", "label 1.5 is not a column number"),
        ("-1 2:1", "label -1 is not a column number.*binary"),
        ("nan 2:1", "label nan is not a column number"),
        ("1e300 2:1", r"label 1e\+300 is not a column number"),
        ("0,1,1 2:1", "label 1 comes twice"),
    ],
)
@pytest.mark.parametrize("before", [0, 1, 2, 7])
def test_a_bad_row_is_refused_with_its_line(tmp_path: Path, row: str, problem: str, before: int) -> None:
    content = "1 1:1\n\n" * before + row + "\n" + "0 2:1\n# end\n" * 3
    with pytest.raises(DataError, match=rf"data\.svm:{2 * before + 1}: .*{problem}"):
        read_svmlight(save(tmp_path, content), zero_based=False)


def test_files_without_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no rows"):
        read_svmlight(save(tmp_path, "# nothing\n\n"))
    with pytest.raises(DataError, match="empty"):
        read_svmlight(save(tmp_path, ""))
    with pytest.raises(SettingsError, match="zero_based"):
        read_svmlight(save(tmp_path, SMALL), zero_based="yes")  # type: ignore[arg-type]


def test_a_headerless_real_file_gives_what_the_repository_reader_gives(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "delicious" / "test.txt.xz"
    rows = b"".join(line_blocks(source)).partition(b"\n")[2].decode()
    expected = read_xc(source)
    data = read_svmlight(save(tmp_path, rows), n_features=500, n_labels=983, zero_based=True)
    assert (data.X != expected.X).nnz == 0
    assert (data.Y != expected.Y).nnz == 0
