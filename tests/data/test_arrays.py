from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from extremegp.data import read_array, read_inputs, read_npz
from extremegp.errors import DataError
from extremegp.storage.streams import byte_blocks

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
IDX_CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}
IMAGES = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)


def idx(array: np.ndarray, code: int | None = None) -> bytes:
    """The format as its author describes it: two zeros, the type, the dimensions, their sizes, the content."""
    code = IDX_CODES[array.dtype.str[1:]] if code is None else code
    header = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def npy(array: np.ndarray, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, **options)
    return stream.getvalue()


def npy_with_header(header: str, content: bytes) -> bytes:
    line = header.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(line)) + line + content


def save(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("dtype", IDX_CODES)
def test_idx_of_every_type_and_compression_reads_back(tmp_path: Path, suffix: str, dtype: str) -> None:
    array = np.asarray([[0, 1, 100], [-5, 2, 3]]).astype(dtype)
    read = read_array(save(tmp_path, f"labels-idx2-ubyte{suffix}", COMPRESS[suffix](idx(array))))
    np.testing.assert_array_equal(read, array)
    assert read.dtype == np.dtype(dtype)
    assert read.dtype.isnative


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize(
    "array",
    [
        np.asarray([[1.5, -2], [0, 3]]),
        np.asarray([[1.5, -2, 0], [0, 3, 1]], order="F"),
        np.asarray([1, 2, 3], dtype=">i4"),
        np.asarray(["a", "\U0001f600"]),
        np.asarray([True, False]),
    ],
    ids=["floats", "Fortran order", "big-endian", "strings", "bools"],
)
def test_npy_reads_back(tmp_path: Path, suffix: str, version: tuple[int, int], array: np.ndarray) -> None:
    read = read_array(save(tmp_path, f"array.npy{suffix}", COMPRESS[suffix](npy(array, version=version))))
    np.testing.assert_array_equal(read, array)
    assert read.dtype.isnative
    assert isinstance(read, np.memmap) == (suffix == "" and array.dtype.isnative)


@given(array=arrays(st.sampled_from(["<f4", ">f8", "u1", "?"]), array_shapes(min_dims=1, max_dims=3)))
def test_compressed_npy_gives_what_numpy_gives(tmp_path_factory: pytest.TempPathFactory, array: np.ndarray) -> None:
    path = save(tmp_path_factory.mktemp("npy"), "array.npy.gz", gzip.compress(npy(array)))
    np.testing.assert_array_equal(read_array(path), array)


def test_images_become_rows_of_their_grey_values(tmp_path: Path) -> None:
    for name, content in (("images.gz", gzip.compress(idx(IMAGES))), ("images.npy", npy(IMAGES))):
        X = read_inputs(save(tmp_path, name, content))
        assert X.dtype == np.float32
        np.testing.assert_array_equal(X, np.arange(24).reshape(4, 6))


def test_an_uncompressed_float32_npy_is_not_copied(tmp_path: Path) -> None:
    X = read_inputs(save(tmp_path, "X.npy", npy(np.ones((5, 3), dtype=np.float32))))
    assert not X.flags.owndata
    assert not X.flags.writeable


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.asarray([1, 2]), "shape \\(2,\\).*is it the labels"),
        (np.asarray([[1, np.nan]]), "the array contains NaN at row 0, column 1"),
        (np.asarray([[1, 1e300]]), "too large for float32"),
        (np.asarray([["a", "b"]]), r"X\.npy: "),
        (np.asarray([[1j]]), r"X\.npy: "),
    ],
)
def test_inputs_that_are_no_finite_matrix_are_refused_with_their_file(
    tmp_path: Path, array: np.ndarray, problem: str
) -> None:
    with pytest.raises(DataError, match=rf"X\.npy: .*{problem}|{problem}"):
        read_inputs(save(tmp_path, "X.npy", npy(array)))


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    content = npy(np.asarray([Bomb()], dtype=object))
    np.savez(tmp_path / "objects.npz", X=np.ones((1, 1)), y=np.asarray([Bomb()], dtype=object))
    for name, data in (("objects.npy", content), ("objects.npy.gz", gzip.compress(content))):
        with pytest.raises(DataError, match="pickled Python objects"):
            read_array(save(tmp_path, name, data))
    with pytest.raises(DataError, match="pickled Python objects"):
        read_npz(tmp_path / "objects.npz", "X", "y")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (idx(IMAGES)[:-1], "states 24 bytes.*only 23 follow"),
        (idx(IMAGES) + b"\0", "goes on after"),
        (idx(IMAGES)[:9], "within its header"),
        (b"\0\0\x08\x03" + b"\x7f\xff\xff\xff" * 3 + b"\1" * 100, "only 100 follow"),
        (b"\0\0\x0e\x20" + b"\xff\xff\xff\xff" * 32 + b"\1" * 100, "only 100 follow"),
        (b"\0\0\x08\x02" + b"\0\0\0\0\xff\xff\xff\xff", "empty"),
        (b"\0\0\x08\x00\1", "neither"),
        (b"\0\0\x0a\x01\0\0\0\1\1", "neither"),
        (b"\0\0\x08\xff" + b"\0\0\0\1" * 255 + b"\1", "neither"),
        (b"text\n", "neither"),
        (b"\0", "neither"),
        (npy(IMAGES)[:-1], "only 23 follow|shorter than its header"),
        (npy(IMAGES)[:40], "damaged .npy header"),
        (npy(IMAGES) + b"\0", "goes on after"),
        (npy(IMAGES)[:6], "version 1 or 2"),
        (b"\x93NUMPY\x09\x00" + npy(IMAGES)[8:], "version 1 or 2"),
        (
            npy_with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000,)}", b"\1"),
            "1 follow|short",
        ),
        (
            npy_with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (9" + "9" * 40 + ",)}", b"\1"),
            "1 follow|short",
        ),
        (npy_with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (-1, -1)}", b"\1"), "which no array has"),
        (npy_with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (1.5,)}", b"\1"), "damaged"),
        (npy_with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (0, 5)}", b""), "empty"),
        (npy_with_header("{'descr': '<U0', 'fortran_order': False, 'shape': (5,)}", b""), "empty"),
        (npy_with_header("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,)}", b"\0" * 4), "records"),
        (npy_with_header("{'descr': '<U1', 'fortran_order': False, 'shape': (1,)}", b"\xff" * 4), "not Unicode"),
        (npy_with_header("__import__('os').abort()", b""), "damaged"),
        (npy_with_header("(" * 5000, b""), "damaged"),
    ],
)
def test_truncated_and_altered_arrays_are_refused_with_their_file(
    tmp_path: Path, suffix: str, content: bytes, problem: str
) -> None:
    path = save(tmp_path, f"array{suffix}", COMPRESS[suffix](content))
    with pytest.raises(DataError, match=problem) as caught:
        read_array(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_decompression_bomb_is_left_where_its_header_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(path: Path) -> Any:
        for block in byte_blocks(path, 1 << 16):
            read.append(len(block))
            yield block

    monkeypatch.setattr("extremegp.data.arrays.byte_blocks", counted)
    path = save(tmp_path, "bomb.gz", gzip.compress(idx(IMAGES) + bytes(1 << 24)))
    with pytest.raises(DataError, match="goes on after"):
        read_array(path)
    assert sum(read) < 1 << 18


def test_a_missing_file_a_folder_and_a_wrong_name_are_refused(tmp_path: Path) -> None:
    for read in (read_array, read_npz):
        with pytest.raises(DataError, match="no such file"):
            read(tmp_path / "absent")
        with pytest.raises(DataError, match="directory"):
            read(tmp_path)
    with pytest.raises(DataError, match=r"does not end in \.gz"):
        read_array(save(tmp_path, "images", gzip.compress(idx(IMAGES))))


Y = np.asarray([3, 1, 2, 3])


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_npz_reads_the_named_arrays(tmp_path: Path, write: Any) -> None:
    path = tmp_path / "data.npz"
    write(path, x_train=IMAGES, y_train=Y, x_test=IMAGES[:1], y_test=Y[:1])
    X, y = read_npz(path, "x_train", "y_train")
    assert X.dtype == np.float32
    np.testing.assert_array_equal(X, IMAGES.reshape(4, 6))
    np.testing.assert_array_equal(y, Y)
    alone, nothing = read_npz(path, "x_test", labels=False)
    assert nothing is None
    assert alone.shape == (1, 6)


@pytest.mark.parametrize(
    "names",
    [("X", "y"), ("x", "labels"), ("data", "target"), ("features", "targets"), ("first", "second"), ("y", "x")],
)
def test_npz_of_two_arrays_needs_no_keys_where_dimensions_tell(tmp_path: Path, names: tuple[str, str]) -> None:
    np.savez(tmp_path / "data.npz", **{names[1]: Y, names[0]: IMAGES})
    X, y = read_npz(tmp_path / "data.npz")
    assert X.shape == (4, 6)
    np.testing.assert_array_equal(y, Y)


def test_npz_keys_are_guessed_by_name_among_more_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", X=IMAGES, y=Y[:, None], names=np.asarray(["a"]))
    X, y = read_npz(tmp_path / "data.npz")
    assert (X.shape, y.shape) == ((4, 6), (4, 1))
    np.savez(tmp_path / "one.npz", whatever=IMAGES)
    assert read_npz(tmp_path / "one.npz", labels=False)[0].shape == (4, 6)


def test_npz_that_does_not_tell_its_arrays_lists_them(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x_train=IMAGES, y_train=Y, x_test=IMAGES, y_test=Y)
    listed = "the arrays in it are: x_train, y_train, x_test, y_test"
    with pytest.raises(DataError, match=f"which array has the inputs; name it by x_key.*{listed}"):
        read_npz(path)
    with pytest.raises(DataError, match=f"which array has the labels; name it by y_key.*{listed}"):
        read_npz(path, "x_train")
    with pytest.raises(DataError, match=f"has no array 'y'; {listed}"):
        read_npz(path, "x_train", "y")
    with pytest.raises(DataError, match="cannot be both"):
        read_npz(path, "x_train", "x_train")
    np.savez(path, a=Y, b=Y)
    with pytest.raises(DataError, match=r"which array has the inputs.*a, b"):
        read_npz(path)
    np.savez(path, X=IMAGES, x=IMAGES, y=Y)
    with pytest.raises(DataError, match="which array has the inputs"):
        read_npz(path)


def test_npz_arrays_must_fit(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, X=IMAGES, y=Y[:3])
    with pytest.raises(DataError, match=r"'X' has 4 rows, but 'y' has the shape \(3,\)"):
        read_npz(path)
    np.savez(path, X=Y, y=Y)
    with pytest.raises(DataError, match="the array 'X' has the shape"):
        read_npz(path)


def npz(folder: Path, entries: dict[str, bytes], **options: Any) -> Path:
    path = folder / "data.npz"
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def test_npz_whose_sizes_contradict_each_other_is_refused(tmp_path: Path) -> None:
    huge = npy_with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (1000000, 1000000)}", b"\1")
    y = npy(Y)
    path = npz(tmp_path, {"X.npy": huge, "y.npy": y})
    with pytest.raises(DataError, match="has 1 bytes of numbers, but its header states 1000000000000"):
        read_npz(path, "X", "y")
    with pytest.raises(DataError, match=r"not a \.npy array"):
        read_npz(npz(tmp_path, {"X.npy": b"text", "y.npy": y}), "X", "y")


def test_a_zip_bomb_is_refused_before_it_is_expanded(tmp_path: Path) -> None:
    X = np.zeros((1000, 10), dtype=np.uint8)
    path = npz(tmp_path, {"X.npy": npy(X), "y.npy": npy(np.zeros(1000))}, compression=zipfile.ZIP_DEFLATED)
    assert read_npz(path)[0].shape == (1000, 10)
    content = bytearray(path.read_bytes())
    # The sizes in the central directory are those that count: an uncompressed size of 4 GB for the first entry.
    central = content.index(b"PK\1\2")
    content[central + 24 : central + 28] = struct.pack("<I", 0xFFFFFFF0)
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot hold; the file is damaged or made to exhaust memory"):
        read_npz(path)


def test_every_truncation_and_flipped_byte_of_an_npz_is_refused_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez_compressed(path, X=IMAGES, y=Y)
    whole = path.read_bytes()
    for length in range(1, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"data\.npz"):
            read_npz(path, "X", "y")
    refused = 0
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :])
        try:
            X, y = read_npz(path, "X", "y")
        except DataError:
            refused += 1
        else:
            np.testing.assert_array_equal(X, IMAGES.reshape(4, 6))
            np.testing.assert_array_equal(y, Y)
    assert refused > len(whole) / 2


def test_fashion_mnist_reads_whole(shared_data: Path) -> None:
    folder = shared_data / "fashion-mnist"
    if not folder.is_dir():
        pytest.skip(f"needs the real dataset, and there is no folder {folder}")
    X = read_inputs(folder / "t10k-images-idx3-ubyte.gz")
    y = read_array(folder / "t10k-labels-idx1-ubyte.gz")
    assert X.shape == (10000, 784)
    assert (X.min(), X.max()) == (0, 255)
    assert np.bincount(y).tolist() == [1000] * 10
    raw = gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes())[16:]
    np.testing.assert_array_equal(X, np.frombuffer(raw, np.uint8).reshape(10000, 784))


def test_mnist_reads_whole(shared_data: Path) -> None:
    path = shared_data / "mnist" / "mnist.npz"
    if not path.is_file():
        pytest.skip(f"needs the real dataset, and there is no file {path}")
    X, y = read_npz(path, "x_test", "y_test")
    with np.load(path) as source:
        np.testing.assert_array_equal(X, source["x_test"].reshape(10000, 784))
        np.testing.assert_array_equal(y, source["y_test"])
    with pytest.raises(DataError, match="x_key"):
        read_npz(path)
