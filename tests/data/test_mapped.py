from __future__ import annotations

import json
import os
import shutil
import tempfile
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix, random
from scipy.sparse.linalg import aslinearoperator

from extremegp import MultiLabelGPClassifier
from extremegp.data import (
    MappedWriter,
    encode_targets,
    make_features,
    mapped,
    mapped_writer,
    open_dataset,
    read_dataset,
    recognise_format,
)
from extremegp.data import rows as data_rows
from extremegp.data.blocks import Dataset
from extremegp.data.mapped_writer import Done
from extremegp.data.rows import mapped_blocks, take_rows
from extremegp.data.validation import check_inputs
from extremegp.engine import centres
from extremegp.engine import matrices as engine_matrices
from extremegp.engine.matrices import column_counts, csr_of, is_mapped, row_blocks
from extremegp.engine.mixing import _float64_operator
from extremegp.errors import DataError
from extremegp.estimators import scatter
from extremegp.estimators.examples import Examples, split
from extremegp.estimators.fitting import stored_in_memory
from extremegp.prediction import predictor as prediction

N, D, K = 37, 11, 5


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_matrices, "_BLOCK_ENTRIES", 13)
    for module in (mapped, mapped_writer):
        monkeypatch.setattr(module, "BLOCK_ROWS", 7)


def matrices(seed: int = 0, n_rows: int = N) -> tuple[csr_matrix, csr_matrix]:
    """Counts of features and labels; some rows have none of either."""
    rng = np.random.default_rng(seed)
    x = rng.integers(1, 9, (n_rows, D)) * (rng.random((n_rows, D)) < 0.3)
    y = rng.random((n_rows, K)) < 0.25
    return csr_matrix(x.astype(np.float32)), csr_matrix(y.astype(np.float32))


def write(folder: Path, X: Any, Y: Any, **names: Any) -> Path:
    with MappedWriter(folder) as writer:
        for start in range(0, X.shape[0], 10):
            writer.append(X[start : start + 10], Y[start : start + 10])
        writer.finish(**names)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "data", *matrices())


def same(a: csr_matrix, b: csr_matrix) -> bool:
    return (
        a.shape == b.shape
        and a.dtype == b.dtype == np.float32
        and np.array_equal(a.indptr, b.indptr)
        and np.array_equal(a.indices, b.indices)
        and a.data.tobytes() == b.data.tobytes()
    )


def test_what_is_written_in_blocks_is_mapped_back(folder: Path) -> None:
    X, Y = matrices()
    data = open_dataset(folder)
    assert same(data.X, X)
    assert same(data.Y, Y)
    for matrix in (data.X, data.Y):
        assert is_mapped(matrix)
        assert matrix.indptr.dtype == matrix.indices.dtype == np.int32
        assert not any(array.flags.writeable for array in (matrix.data, matrix.indices, matrix.indptr))
    assert data.label_names is None
    firsts = [row.indices[0] if row.nnz else -1 for row in Y]
    np.testing.assert_array_equal(data.first_labels, firsts)
    assert recognise_format(folder) == "mapped"
    assert isinstance(read := read_dataset(folder), Dataset)
    assert same(read.X, X)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["dataset.json", "first_labels.npy", *(f"{x}_{a}.npy" for x in "xy" for a in ("data", "indices", "indptr"))]
    )


def test_every_array_is_an_ordinary_npy_file(folder: Path) -> None:
    X, _ = matrices()
    np.testing.assert_array_equal(np.load(folder / "x_indptr.npy"), X.indptr)
    np.testing.assert_array_equal(np.load(folder / "x_data.npy"), X.data)


@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(1, N - 1), max_size=6))
def test_blocks_of_any_size_give_the_same_files(
    tmp_path_factory: pytest.TempPathFactory, seed: int, cuts: list[int]
) -> None:
    X, Y = matrices(seed)
    whole, parts = (tmp_path_factory.mktemp("data") for _ in range(2))
    write(whole, X, Y)
    with MappedWriter(parts) as writer:
        for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), N], strict=True):
            if stop > start:
                writer.append(X[start:stop], Y[start:stop])
        writer.finish()
    for path in whole.iterdir():
        assert path.read_bytes() == (parts / path.name).read_bytes()


def test_names_and_widths_and_the_first_feature(tmp_path: Path) -> None:
    X, Y = matrices()
    shifted = csr_matrix((X.data, X.indices + 1, X.indptr), (N, D + 1))
    with MappedWriter(tmp_path) as writer:
        writer.append(shifted, Y)
        writer.finish(D + 2, label_names=list("abcdé"), first_feature=1)
    data = open_dataset(tmp_path)
    assert data.label_names == list("abcdé")
    assert data.X.shape == (N, D + 2)
    np.testing.assert_array_equal(data.X.toarray()[:, :D], X.toarray())
    wider = open_dataset(tmp_path, n_features=100, n_labels=9)
    assert (wider.X.shape, wider.Y.shape) == ((N, 100), (N, 9))
    with pytest.raises(DataError, match="has 13 features but the model has 12"):
        open_dataset(tmp_path, n_features=12)
    with pytest.raises(DataError, match="has 5 labels but the model has 4"):
        open_dataset(tmp_path, n_labels=4)


def test_beyond_int32_row_starts_and_columns_are_both_int64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = matrices()
    monkeypatch.setattr(mapped, "_MAX_INT32", Y.nnz)
    data = open_dataset(write(tmp_path, X, Y))
    assert data.X.indices.dtype == data.X.indptr.dtype == np.int64
    assert data.Y.indices.dtype == data.Y.indptr.dtype == np.int32
    np.testing.assert_array_equal(data.X.toarray(), X.toarray())
    rows = np.array([3, 1, 30])
    np.testing.assert_array_equal(take_rows(data.X, rows).toarray(), X[rows].toarray())


def test_a_data_set_of_no_entries_at_all(tmp_path: Path) -> None:
    data = open_dataset(write(tmp_path, csr_matrix((3, 4), dtype=np.float32), csr_matrix((3, 2), dtype=np.float32)))
    assert (data.X.nnz, data.Y.nnz, data.X.shape, data.Y.shape) == (0, 0, (3, 4), (3, 2))


def test_bad_rows_are_refused_by_the_writer(tmp_path: Path) -> None:
    X, Y = matrices()
    with MappedWriter(tmp_path / "a") as writer:
        with pytest.raises(DataError, match="there are no rows"):
            writer.finish()
        writer.append(X, Y)
        with pytest.raises(DataError, match="37 rows but Y has 36"):
            writer.append(X, Y[1:])
        with pytest.raises(DataError, match=r"have \(10, 5\) columns"):
            writer.append(X[:, 1:], Y)
        with pytest.raises(DataError, match="label names"):
            writer.append(X[:1], [["a"]])
        with pytest.raises(DataError, match="there must be 5 names"):
            writer.finish(label_names=["a"])
        with pytest.raises(DataError, match="line breaks"):
            writer.finish(label_names=["a\n", "b", "c", "d", "e"])
        writer.finish()
    with pytest.raises(DataError, match="holds a data set already"):
        MappedWriter(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("")
    with pytest.raises(DataError, match=r"holds thesis\.tex, which is no part"):
        MappedWriter(tmp_path / "b")
    with pytest.raises(DataError, match="cannot be written"):
        MappedWriter(tmp_path / "b" / "thesis.tex" / "c")


@pytest.mark.parametrize("stopped_at", range(8))
def test_writing_goes_on_after_the_last_flush(tmp_path: Path, stopped_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = matrices()
    expected = write(tmp_path / "whole", X, Y)
    folder = tmp_path / "parts"
    with MappedWriter(folder) as writer:
        writer.append(X[:10], Y[:10])
        done = writer.flush()
        writer.append(X[20:], Y[20:])
        with pytest.raises(DataError, match=r"shorter than the progress|No such file"):
            MappedWriter(folder, done=Done(1000, 5000, 4000))
    with MappedWriter(folder, done=done) as writer:
        writer.append(X[10:], Y[10:])
        done = writer.flush()
        # The end fails after some of the arrays have their names.
        complete, calls = MappedWriter._complete, iter(range(stopped_at))

        def failing(self: MappedWriter, *arguments: Any) -> None:
            if next(calls, None) is None:
                raise OSError(28, "No space left on device")
            complete(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(MappedWriter, "_complete", failing)
            with pytest.raises(DataError, match="No space left") if stopped_at < 7 else nullcontext():
                writer.finish(D, K)
    if stopped_at < 7:
        assert not (folder / "dataset.json").exists()
        with MappedWriter(folder, done=done) as writer:
            writer.finish(D, K)
    for path in expected.iterdir():
        assert path.read_bytes() == (folder / path.name).read_bytes()


def rewrite(folder: Path, name: str, change: Any) -> None:
    np.save(folder / name, change(np.load(folder / name)))


def config(folder: Path, **values: Any) -> None:
    path = folder / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def put(at: int, value: Any) -> Any:
    def change(array: Any) -> Any:
        array[at] = value
        return array

    return change


def swapped(array: Any) -> Any:
    """The first two columns of a row that has two."""
    row = np.flatnonzero(np.diff(matrices()[0].indptr) > 1)[0]
    at = matrices()[0].indptr[row]
    array[[at, at + 1]] = array[[at + 1, at]]
    return array


@pytest.mark.parametrize(
    ("name", "damage", "problem"),
    [
        ("x_data.npy", lambda path: path.unlink(), "No such file"),
        ("x_data.npy", lambda path: os.truncate(path, path.stat().st_size - 1), "is not an array of"),
        ("x_data.npy", lambda path: os.truncate(path, 40), "is not an array of"),
        ("x_data.npy", lambda path: path.write_bytes(b""), "is not an array of"),
        ("x_data.npy", lambda path: path.write_bytes(b"\x93NUMPY\x01\0\x76\0" + b"{" * 118), "is not an array of"),
        ("x_data.npy", lambda path: path.write_bytes(b"\x93NUMPY\x07\0" + bytes(200)), "is not an array of"),
        (
            "x_data.npy",
            lambda path: rewrite(path.parent, path.name, lambda a: a.astype(np.float64)),
            "is not an array of",
        ),
        ("x_data.npy", lambda path: rewrite(path.parent, path.name, lambda a: a.astype(object)), "is not an array of"),
        ("x_data.npy", lambda path: rewrite(path.parent, path.name, lambda a: a[:-1]), "is not an array of"),
        ("x_data.npy", lambda path: rewrite(path.parent, path.name, lambda a: a[:, None]), "is not an array of"),
        ("x_data.npy", lambda path: rewrite(path.parent, path.name, put(40, np.nan)), "finite number .*at entry 40"),
        ("x_data.npy", lambda path: rewrite(path.parent, path.name, put(41, np.inf)), "finite number .*at entry 41"),
        ("x_data.npy", lambda path: rewrite(path.parent, path.name, put(42, 0)), "other than 0, at entry 42"),
        ("y_data.npy", lambda path: rewrite(path.parent, path.name, put(20, 2)), "not 1, at entry 20"),
        ("x_indices.npy", lambda path: rewrite(path.parent, path.name, put(60, D)), "outside 0 to 10, at entry 60"),
        ("x_indices.npy", lambda path: rewrite(path.parent, path.name, put(61, -1)), "outside 0 to 10, at entry 61"),
        (
            "y_indices.npy",
            lambda path: rewrite(path.parent, path.name, put(9, 2**31 - 1)),
            "outside 0 to 4, at entry 9",
        ),
        ("x_indices.npy", lambda path: rewrite(path.parent, path.name, swapped), "do not increase within a row"),
        ("x_indptr.npy", lambda path: rewrite(path.parent, path.name, put(20, 0)), "row starts"),
        ("x_indptr.npy", lambda path: rewrite(path.parent, path.name, put(0, 1)), "row starts"),
        ("x_indptr.npy", lambda path: rewrite(path.parent, path.name, put(-1, 1)), "row starts"),
        ("x_indptr.npy", lambda path: rewrite(path.parent, path.name, put(7, -5)), "row starts"),
        ("first_labels.npy", lambda path: rewrite(path.parent, path.name, put(8, K)), "label that its row has not"),
        ("first_labels.npy", lambda path: rewrite(path.parent, path.name, put(30, -2)), "label that its row has not"),
        ("dataset.json", lambda path: path.unlink(), "there is no dataset.json"),
        ("dataset.json", lambda path: path.write_text("{}"), "is not what describes"),
        ("dataset.json", lambda path: path.write_text("[" * 50_000), "is not what describes"),
        ("dataset.json", lambda path: config(path.parent, format_version=99), "version 99"),
        (
            "dataset.json",
            lambda path: config(path.parent, n_rows=2**61),
            "sizes that no data set has|is not an array of",
        ),
        ("dataset.json", lambda path: config(path.parent, n_rows=10**400), "sizes that no data set has"),
        ("dataset.json", lambda path: config(path.parent, n_features=2**31), "sizes that no data set has"),
        ("dataset.json", lambda path: config(path.parent, n_labels=True), "sizes that no data set has"),
        ("dataset.json", lambda path: config(path.parent, x_nnz=-1), "sizes that no data set has"),
        ("dataset.json", lambda path: config(path.parent, label_names="../.."), "sizes that no data set has"),
        ("dataset.json", lambda path: config(path.parent, n_labels=K - 1), "outside 0 to 3"),
        ("dataset.json", lambda path: config(path.parent, label_names=True), "labels.txt: cannot be read"),
    ],
)
def test_a_damaged_folder_is_one_error_that_names_the_file(folder: Path, name: str, damage: Any, problem: str) -> None:
    damage(folder / name)
    with pytest.raises(DataError, match=problem) as caught:
        open_dataset(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["x_data.npy", "dataset.json"])
def test_links_and_devices_are_not_followed(folder: Path, name: str) -> None:
    path = folder / name
    path.rename(folder.parent / name)
    path.symlink_to(folder.parent / name)
    with pytest.raises(DataError, match="is not a plain file"):
        open_dataset(folder)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match="is not a plain file"):
        open_dataset(folder)


def test_label_names_are_as_many_as_labels(tmp_path: Path) -> None:
    folder = write(tmp_path, *matrices(), label_names=list("abcde"))
    for text in ("a\nb\n", "a\nb\nc\nd\nd\n"):
        (folder / "labels.txt").write_text(text)
        with pytest.raises(DataError, match="different names"):
            open_dataset(folder)
    (folder / "labels.txt").write_bytes(b"\xff")
    with pytest.raises(DataError, match="UTF-8"):
        open_dataset(folder)


def test_folders_without_a_data_set(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        open_dataset(tmp_path / "absent")
    (tmp_path / "progress.json").write_text("{}")
    with pytest.raises(DataError, match="unfinished"):
        open_dataset(tmp_path)


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=30), n_entries=st.integers(1, 30))
def test_blocks_of_rows_cover_all_rows_in_order(lengths: list[int], n_entries: int) -> None:
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    blocks = [*row_blocks(indptr, n_entries)]
    assert [row for rows in blocks for row in range(rows.start, rows.stop)] == [*range(len(lengths))]
    for rows in blocks:
        assert rows.stop - rows.start == 1 or indptr[rows.stop] - indptr[rows.start] <= n_entries


@pytest.mark.parametrize("kind", ["raw", "unit", "tfidf"])
def test_features_of_mapped_data_are_those_in_memory_to_the_bit(folder: Path, kind: Any) -> None:
    X, _ = matrices()
    data = open_dataset(folder)
    expected = make_features(kind).fit(X)
    features = make_features(kind).fit(data.X)
    given, wanted = features.transform(data.X), expected.transform(X)
    assert same(given, wanted)
    assert is_mapped(given)
    assert np.shares_memory(given.indices, data.X.indices)
    for name, array in expected.to_state()[1].items():
        np.testing.assert_array_equal(features.to_state()[1][name], array)


@pytest.mark.parametrize("kind", ["unit", "tfidf"])
def test_stored_zeros_of_mapped_data_stay_zero(kind: Any) -> None:
    X, _ = matrices()
    data = X.data.copy()
    data[::3] = 0
    given = csr_of(mapped_blocks([data], np.float32), X.indices, X.indptr, X.shape)
    expected = csr_matrix((data, X.indices, X.indptr), X.shape)
    features = make_features(kind)
    np.testing.assert_array_equal(
        features.fit(given).transform(given).toarray(), features.fit(expected).transform(expected).toarray()
    )


def test_checks_of_mapped_data_copy_nothing_and_still_refuse(folder: Path) -> None:
    data = open_dataset(folder)
    assert check_inputs(data.X) is data.X
    assert encode_targets(data.Y)[0] is data.Y
    with pytest.raises(DataError, match="expecting 12 features"):
        check_inputs(data.X, 12)
    values = data.X.data.copy()
    values[50] = np.nan
    bad = csr_of(mapped_blocks([values], np.float32), data.X.indices, data.X.indptr, data.X.shape)
    row = int(np.searchsorted(data.X.indptr, 50, side="right")) - 1
    with pytest.raises(DataError, match=f"NaN at row {row}, column {data.X.indices[50]} "):
        check_inputs(bad)
    with pytest.raises(DataError, match="indices must be < 11"):
        check_inputs(csr_of(data.X.data, data.X.indices + D, data.X.indptr, data.X.shape))
    with pytest.raises(DataError, match="only 0 and 1"):
        encode_targets(data.X)
    with pytest.raises(DataError, match="tf-idf weighs counts"):
        make_features("tfidf").fit(make_features("unit").fit(data.X).transform(data.X))


def test_columns_of_mapped_data_out_of_order_are_put_in_order(folder: Path) -> None:
    data = open_dataset(folder)
    bad = csr_of(data.X.data, swapped(data.X.indices.copy()), data.X.indptr, data.X.shape)
    bad.has_sorted_indices = bad.has_canonical_format = False
    assert check_inputs(bad).has_canonical_format


def test_a_full_folder_of_temporary_files_is_one_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Any, array: Any) -> None:
        raise OSError(28, "No space left on device")

    X = open_dataset(folder).X
    monkeypatch.setattr(data_rows, "write_all", full)
    with pytest.raises(DataError, match=r"No space left on device; free space there, or set TMPDIR"):
        make_features("unit").fit(X).transform(X)


def test_temporary_files_have_no_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = sorted(tmp_path.iterdir())
    X = open_dataset(folder).X
    values = make_features("unit").fit(X).transform(X)
    assert sorted(tmp_path.iterdir()) == before
    assert np.isfinite(values.data).all()


def test_rows_of_mapped_data_stay_on_disk(folder: Path) -> None:
    X, Y = matrices()
    data = open_dataset(folder)
    rows = np.random.default_rng(1).permutation(N)[:20]
    taken = take_rows(data.X, rows)
    assert is_mapped(taken)
    assert same(taken, X[rows])
    of_memory = split(Examples(X, Y), fraction=0.3, patience=None, rng=np.random.default_rng(2))
    of_files = split(Examples(data.X, data.Y), fraction=0.3, patience=None, rng=np.random.default_rng(2))
    for a, b in zip([*of_memory[0][:2], *of_memory[1][:2]], [*of_files[0][:2], *of_files[1][:2]], strict=True):
        assert same(a, b)
        assert is_mapped(b)
    assert (stored_in_memory(X), stored_in_memory(data.X), stored_in_memory(X.toarray())) == (X.nnz, 0, N * D)


def test_counts_of_columns(folder: Path) -> None:
    X, _ = matrices()
    np.testing.assert_array_equal(column_counts(open_dataset(folder).X), (X.toarray() != 0).sum(axis=0))
    wide = random(50, 5000, density=0.001, format="csr", dtype=np.float32, random_state=0)
    np.testing.assert_array_equal(column_counts(wide), (wide.toarray() != 0).sum(axis=0))


def test_products_in_blocks_are_those_of_the_whole(folder: Path) -> None:
    y = open_dataset(folder).Y
    operator, whole = _float64_operator(y), aslinearoperator(matrices()[1].astype(np.float64))
    rng = np.random.default_rng(0)
    for shape in ((), (3,)):
        v, u = rng.normal(size=(K, *shape)), rng.normal(size=(N, *shape))
        np.testing.assert_allclose(operator @ v, whole @ v, rtol=1e-14)
        np.testing.assert_allclose(operator.T @ u, whole.T @ u, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("settings", [{}, {"validation_fraction": 0.3}, {"loadings_start": "spectral"}])
def test_training_on_mapped_data_is_training_in_memory_to_the_bit(folder: Path, settings: dict[str, Any]) -> None:
    X, Y = matrices()
    data = open_dataset(folder)

    def fitted(x: Any, y: Any) -> MultiLabelGPClassifier:
        options: dict[str, Any] = {"n_inducing": 6, "epochs": 3, "features": "tfidf", "mean_function": "zero"}
        return MultiLabelGPClassifier(**options | settings, random_state=0, verbose=False).fit(x, y)

    of_memory, of_files = fitted(X, Y), fitted(data.X, data.Y)
    for (name, a), b in zip(of_memory.model_.state_dict().items(), of_files.model_.state_dict().values(), strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes(), name
    np.testing.assert_array_equal(of_memory.label_counts_, of_files.label_counts_)
    np.testing.assert_array_equal(of_memory.predict_proba(X), of_files.predict_proba(data.X))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_matrices, "_BLOCK_ENTRIES", 1 << 14)
    for module in (mapped, mapped_writer):
        monkeypatch.setattr(module, "BLOCK_ROWS", 1 << 12)
    peaks = []
    for n_blocks in (10, 80):
        folder = tmp_path / str(n_blocks)
        rng = np.random.default_rng(0)
        X = csr_matrix(rng.integers(1, 5, (500, 200)).astype(np.float32))
        Y = csr_matrix((rng.random((500, 20)) < 0.2).astype(np.float32))
        tracemalloc.start()
        with MappedWriter(folder) as writer:
            for _ in range(n_blocks):
                writer.append(X, Y)
            writer.finish()
        data = open_dataset(folder)
        for kind in ("raw", "unit", "tfidf"):
            features = make_features(kind).fit(data.X)  # type: ignore[arg-type]
            take_rows(features.transform(data.X), np.arange(data.X.shape[0]))
        encode_targets(data.Y)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        size = sum(path.stat().st_size for path in folder.iterdir())
        shutil.rmtree(folder)
    # What grows are numbers per row, such as where it starts: of 200 entries a row takes 1600 bytes on disk.
    assert (peaks[1] - peaks[0]) / (70 * 500) < 40
    assert size / (80 * 500) > 1600


@pytest.mark.slow
def test_training_takes_memory_for_a_batch_and_not_for_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_matrices, "_BLOCK_ENTRIES", 1 << 14)
    for module in (mapped, mapped_writer):
        monkeypatch.setattr(module, "BLOCK_ROWS", 1 << 12)
    monkeypatch.setattr(centres, "_START_ROWS", 1000)
    monkeypatch.setattr(scatter, "_NOISE_ROWS", 1000)
    monkeypatch.setattr(prediction, "_BLOCK_ELEMENTS", 1 << 17)
    peaks = []
    for n_blocks in (12, 12, 48):
        folder = tmp_path / str(len(peaks))
        X = csr_matrix(np.random.default_rng(0).integers(1, 5, (500, 200)).astype(np.float32))
        Y = csr_matrix((np.random.default_rng(1).random((500, 20)) < 0.2).astype(np.float32))
        write(folder, scipy.sparse.vstack([X] * n_blocks), scipy.sparse.vstack([Y] * n_blocks))
        data = open_dataset(folder)
        tracemalloc.start()
        MultiLabelGPClassifier(
            **{"n_inducing": 10, "epochs": 1, "batch_size": 100, "mean_function": "zero", "n_latent": 3},
            **{"validation_fraction": 0.2, "random_state": 0, "verbose": False},
        ).fit(data.X, data.Y)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # NumPy's part of it, which is all that could hold the data; the first run has what is imported late.
    assert (peaks[2] - peaks[1]) / (36 * 500) < 100
