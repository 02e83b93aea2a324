from __future__ import annotations

import bz2
import gzip
import lzma
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from extremegp.data import encode_classes, read_table, table_files
from extremegp.errors import DataError

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
FRAME = pd.DataFrame(
    {"width": [1, 2, 3], "y": ["cat", "dog", "cat"], "height": [0.5, -2, 1e3], "flat": [True, False, True]}
)
X = [[1, 0.5, 1], [2, -2, 0], [3, 1000, 1]]
NAMES = ["width", "height", "flat"]


def save(folder: Path, content: str | bytes, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write(frame: pd.DataFrame, path: Path) -> Path:
    if path.suffix in (".parquet", ".pq"):
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if ".tsv" in path.name else ",")
    return path


@pytest.mark.parametrize("name", ["data.csv", "data.tsv", "data.parquet", "data.pq", "data.csv.gz", "DATA.CSV"])
@pytest.mark.parametrize("label_column", ["y", "1", 1, -3])
def test_tables_of_every_format_read_alike(tmp_path: Path, name: str, label_column: str | int) -> None:
    read, y, names = read_table(write(FRAME, tmp_path / name), label_column)
    assert read.dtype == np.float32
    assert read.flags.c_contiguous
    np.testing.assert_array_equal(read, np.asarray(X, dtype=np.float32))
    assert y is not None
    assert y.tolist() == ["cat", "dog", "cat"]
    assert names == NAMES


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_text_is_read(tmp_path: Path, suffix: str) -> None:
    content = FRAME.to_csv(index=False).encode()
    path = save(tmp_path, COMPRESS[suffix](content), f"data.csv{suffix}")
    np.testing.assert_array_equal(read_table(path, "y")[0], np.asarray(X, dtype=np.float32))
    damaged = save(tmp_path, COMPRESS[suffix](content)[:-5] if suffix else content[:5], f"damaged.csv{suffix}")
    with pytest.raises(DataError, match=r"damaged\.csv"):
        read_table(damaged, "y")


@pytest.mark.parametrize("values_at_a_time", [1, 7, 1 << 20])
@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
def test_tables_larger_than_a_piece_are_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, values_at_a_time: int
) -> None:
    monkeypatch.setattr(table_files, "_VALUES_AT_A_TIME", values_at_a_time)
    values = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    frame = pd.DataFrame(values, columns=["a", "b", "c"]).assign(y=np.arange(50) % 7)
    read, y, _ = read_table(write(frame, tmp_path / name), "y")
    np.testing.assert_array_equal(read, values)
    np.testing.assert_array_equal(y, np.arange(50) % 7)
    frame = frame.assign(b=frame["b"].where(frame.index != 37))
    where = r"data\.csv:39: the column 'b' has no value" if name.endswith("csv") else "'b' has no value at row 37"
    with pytest.raises(DataError, match=where):
        read_table(write(frame, tmp_path / name), "y")


@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
def test_a_model_chooses_and_orders_the_columns(tmp_path: Path, name: str) -> None:
    path = write(FRAME.assign(note="text"), tmp_path / name)
    read, y, names = read_table(path, feature_names=["flat", "width"])
    np.testing.assert_array_equal(read, [[1, 1], [0, 2], [1, 3]])
    assert y is None
    assert names == ["flat", "width"]
    _, y, _ = read_table(path, "y", ["height"])
    assert y is not None
    with pytest.raises(DataError, match="lacks the columns 'depth', 'age'; its columns are 'width', 'y'"):
        read_table(path, feature_names=["width", "depth", "age"])
    with pytest.raises(DataError, match="'width' cannot be both an input and the label"):
        read_table(path, "width", ["flat", "width"])


def test_without_a_label_column_all_columns_are_inputs(tmp_path: Path) -> None:
    read, y, names = read_table(save(tmp_path, "a,b\n1,2\n"))
    assert (read.tolist(), y, names) == ([[1, 2]], None, ["a", "b"])
    with pytest.raises(DataError, match="has no columns of inputs"):
        read_table(save(tmp_path, "y\n1\n"), "y")


def test_a_name_beats_a_number(tmp_path: Path) -> None:
    path = save(tmp_path, "1,0\n5,6\n7,8\n")
    _, y, names = read_table(path, 0)
    assert (np.asarray(y).tolist(), names) == ([6, 8], ["1"])
    _, y, names = read_table(path, "1")
    assert (np.asarray(y).tolist(), names) == ([5, 7], ["0"])


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (["1", "2"], [1, 2]),
        ([" 1", "2 "], [1, 2]),
        (["1.0", "2"], [1.0, 2.0]),
        (["01", "1"], ["01", "1"]),
        (["1", "x"], ["1", "x"]),
        (["NA", "None"], ["NA", "None"]),
        (["True", "False"], ["True", "False"]),
        (['"a,b"', '"say ""hi"""'], ["a,b", 'say "hi"']),
        (["9223372036854775807", "1"], [2**63 - 1, 1]),
        (["9223372036854775808", "9223372036854775809"], ["9223372036854775808", "9223372036854775809"]),
    ],
)
def test_labels_of_text_are_numbers_only_if_nothing_is_lost(
    tmp_path: Path, values: list[str], labels: list[Any]
) -> None:
    path = save(tmp_path, "a,y\n" + "".join(f"1,{value}\n" for value in values))
    assert np.asarray(read_table(path, "y")[1]).tolist() == labels
    if not values[0].startswith('"'):
        strings = read_table(path, "y", labels_as_strings=True)[1]
        assert np.asarray(strings).tolist() == [value.strip() for value in values]


def test_a_regression_target_is_seen_as_one(tmp_path: Path) -> None:
    _, y, _ = read_table(save(tmp_path, "a,y\n1,0.5\n2,1.5\n"), "y")
    with pytest.raises(DataError, match="continuous"):
        encode_classes(y)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [([3, 1], [3, 1]), (["b", "a"], ["b", "a"]), ([True, False], [True, False]), ([1.0, 2.0], [1.0, 2.0])],
)
def test_labels_of_parquet_keep_their_type(tmp_path: Path, labels: list[Any], expected: list[Any]) -> None:
    frame = pd.DataFrame({"a": [1, 2], "y": labels})
    for stored in (frame, frame.astype({"y": "category"})):
        y = read_table(write(stored, tmp_path / "data.parquet"), "y")[1]
        assert y is not None
        assert y.tolist() == expected
        assert encode_classes(y)[1].tolist() == sorted(expected)


def test_an_index_that_pandas_stored_is_no_input(tmp_path: Path) -> None:
    for frame in (FRAME.set_index(pd.Index([7, 8, 3], name="id")), FRAME.set_index(pd.Index(["p", "q", "r"]))):
        path = write(frame, tmp_path / "data.parquet")
        assert read_table(path, "y")[2] == NAMES
    path = write(FRAME.set_index(pd.Index([7, 8, 3], name="id")), tmp_path / "data.parquet")
    assert read_table(path, "y", ["id"])[0].tolist() == [[7], [8], [3]]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a,b,y\n1,2,c\n3,oops,d\n", r":3: the column 'b' has 'oops', which is not a number; correct it, encode"),
        ("a,b,y\n\n1,2,c\n\n3,,d\n", r":5: the column 'b' has no value; fill"),
        ("a,b,y\n1,2,c\n3,NaN,d\n", r":3: the column 'b' has no value"),
        ("a,b,y\n1,2,c\n3,inf,d\n", r":3: the column 'b' has inf, which is not finite"),
        ("a,b,y\n1,inf,c\n3,-inf,d\n", r":2: the column 'b' has inf"),
        ("a,b,y\n1,2,c\n3,-1e39,d\n", r":3: the column 'b' has -1e\+39, which is too large"),
        ('a,b,y\n1,2,"c\nc"\n3,x,d\n', r":4: the column 'b' has 'x'"),
        ("a,b,y\n1,True,c\n3,4,d\n", r":2: the column 'b' has 'True', which is not a number"),
        ("a,b,y\n1,x,c\n3,1_000,d\n", r":2: the column 'b' has 'x'"),
        ("a,b,y\n1,2,c\n3,1_000,d\n", r":3: the column 'b' has '1_000'"),
        ("a,b,y\r\n1,2,c\r\n3,x,d\r\n", r":3: the column 'b' has 'x'"),
        ("a,b,y\n1,2,c\n3,4\n", r":3: the label column 'y' has no value"),
        ("a,b,y\n1,2,c\n3,4, \n", r":3: the label column 'y' has no value"),
        ("a,b,y\n1,2,c\n3,4,d,5\n", "Expected 3 fields in line 3, saw 4"),
        ("a,b,y\n1,2,c,9\n3,4,d,9\n", "more values than the first line"),
        ('a,b,y\n1,2,"c\n', "EOF inside string"),
        ("a,a,y\n1,2,c\n", "the column name 'a' comes twice"),
        (",a,y\n0,1,c\n", r"column 0 \(counted from 0\) has no name"),
        ("a,b,z\n1,2,c\n", "has no column 'y'; its columns are 'a', 'b', 'z'"),
        ("a;b;y\n1;2;c\n", r"has no column 'y'; its columns are 'a;b;y' \(columns of \.csv are separated by commas"),
        ("a,b,y\n", "has no rows"),
        ("\n\n", "only blank lines"),
        ("", "empty"),
        (b"a,b,y\n1,2,\xff\n", ":2: not UTF-8"),
        (b"a,\xff,y\n1,2,3\n", ":1: not UTF-8"),
        (b"a,b,y\n1,\0,3\n", "NUL bytes"),
        ("a,y\n" + "1" * 5000 + ",c\n", ":2: "),
        ("a,y\n" + "1" * 400 + ",c\n", ":2: the column 'a' has inf"),
    ],
)
def test_bad_text_tables_are_refused_with_column_and_line(tmp_path: Path, content: str | bytes, problem: str) -> None:
    with pytest.raises(DataError, match=rf"data\.csv.*{problem}") as caught:
        read_table(save(tmp_path, content), "y")
    assert "\n" not in str(caught.value)


def test_a_file_without_header_is_not_read_as_if_it_had_one(tmp_path: Path) -> None:
    path = save(tmp_path, "5.1,3.5,setosa\n4.9,3.0,setosa\n6.3,3.3,virginica\n")
    with pytest.raises(DataError, match=r"the first line holds numbers.*put a header before it.*'setosa'"):
        read_table(path, 2)
    assert read_table(path, "setosa")[2] == ["5.1", "3.5"]
    with pytest.raises(DataError, match=r"'0' comes twice.*if it holds data"):
        read_table(save(tmp_path, "5,0,0,3\n4,0,1,2\n"), 0)


@pytest.mark.parametrize("label_column", ["3", 3, -4, "1.0", "-", "99999999999999999999"])
def test_a_label_number_outside_the_table_is_refused(tmp_path: Path, label_column: str | int) -> None:
    with pytest.raises(DataError, match="has no column"):
        read_table(save(tmp_path, "a,b,y\n1,2,c\n"), label_column)


def test_integers_beyond_64_bits_are_numbers(tmp_path: Path) -> None:
    read, _, _ = read_table(save(tmp_path, "a,y\n100000000000000000000,c\n1,d\n"), "y")
    np.testing.assert_array_equal(read, np.asarray([[1e20], [1]], dtype=np.float32))


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (["p", "q", "r"], "'bad' is of type (large_)?string, not numbers"),
        (["1", "2", "3"], "'bad' is of type (large_)?string, not numbers"),
        (pd.to_datetime(["2020-01-01"] * 3), "'bad' is of type timestamp"),
        ([[1], [2], [3]], "'bad' is of type list"),
        ([1.0, None, 2.0], r"'bad' has no value at row 1 \(counted from 0\)"),
        ([True, True, None], "'bad' has no value at row 2"),
        (pd.array([1, 2, None], dtype="Int64"), "'bad' has no value at row 2"),
        ([1.0, 2.0, np.inf], "'bad' has inf at row 2"),
        ([1.0, 1e300, 2.0], r"'bad' has 1e\+300 at row 1"),
    ],
)
def test_bad_columns_of_parquet_are_refused_with_their_row(tmp_path: Path, column: Any, problem: str) -> None:
    with pytest.raises(DataError, match=rf"data\.parquet: .*{problem}"):
        read_table(write(FRAME.assign(bad=column), tmp_path / "data.parquet"), "y")


def test_missing_labels_of_parquet_are_refused_with_their_row(tmp_path: Path) -> None:
    for labels in (["a", None, "b"], [1, None, 2]):
        with pytest.raises(DataError, match="the label column 'y' has no value at row 1"):
            read_table(write(FRAME.assign(y=labels), tmp_path / "data.parquet"), "y")


def test_truncated_and_altered_parquet_is_refused_or_read(tmp_path: Path) -> None:
    path = write(FRAME, tmp_path / "data.parquet")
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"data\.parquet: not a readable Parquet file"):
            read_table(path, "y")
    pd.DataFrame({"a": [1], "y": ["label"]}).to_parquet(path, compression=None)
    path.write_bytes(path.read_bytes().replace(b"label", b"\xff" * 5))
    with pytest.raises(DataError, match="not a readable Parquet file"):
        read_table(path, "y")
    path.write_bytes(b"PAR1" + bytes(100) + b"\xff\xff\xff\x7fPAR1")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        read_table(path, "y")


@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
def test_missing_files_and_directories_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_table(tmp_path / name, "y")
    (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=name):
        read_table(tmp_path / name, "y")


def test_other_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"must end in one of \.csv, \.tsv, \.parquet, \.pq"):
        read_table(save(tmp_path, "a,y\n1,2\n", "data.xlsx"), "y")


@pytest.mark.parametrize("missing", ["pandas", "pyarrow.parquet"])
def test_the_extra_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    path = write(FRAME, tmp_path / "data.parquet")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(DataError, match=r"pip install 'extremegp\[tables\]'"):
        read_table(path, "y")


def test_the_rest_of_the_library_needs_no_pandas() -> None:
    hidden = "import sys; sys.modules.update(pandas=None, pyarrow=None); import extremegp.data, extremegp.cli"
    subprocess.run([sys.executable, "-c", hidden], check=True)


cells = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(
    rows=st.lists(st.tuples(cells, st.integers(-(2**70), 2**70), st.text(st.characters(codec="utf-8"))), min_size=1),
)
def test_what_pandas_writes_reads_back(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    frame = pd.DataFrame(rows, columns=["a", "b", "y"])
    frame["y"] = "<" + frame["y"].str.replace("\0", "").str.replace("\r", "") + ">"
    path = write(frame, tmp_path_factory.mktemp("csv") / "data.csv")
    read, y, _ = read_table(path, "y")
    np.testing.assert_array_equal(read[:, 0], frame["a"].to_numpy(np.float32))
    np.testing.assert_array_equal(read[:, 1], np.asarray([float(b) for b in frame["b"]], dtype=np.float32))
    assert y is not None
    assert y.tolist() == frame["y"].tolist()
