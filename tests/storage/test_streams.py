from __future__ import annotations

import bz2
import gzip
import lzma
import sys
from pathlib import Path

import pytest
import zstandard

from extremegp.errors import DataError
from extremegp.storage.streams import atomic_writer, base_suffix, line_blocks, text_blocks

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
CONTENT = b"".join(b"line %d of some text\n" % i for i in range(5000))


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("block_bytes", [1, 100, 1 << 20])
def test_blocks_join_to_the_content_and_hold_whole_lines(tmp_path: Path, suffix: str, block_bytes: int) -> None:
    content = CONTENT if block_bytes > 1 else CONTENT[:400] + b"\n"
    path = tmp_path / f"file.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](content))
    blocks = list(line_blocks(path, block_bytes))
    assert b"".join(blocks) == content
    assert all(block.endswith(b"\n") for block in blocks)


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix])
def test_concatenated_compressed_streams_are_read_to_the_end(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"file.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](b"one\n") + COMPRESS[suffix](b"two\n"))
    assert b"".join(line_blocks(path)) == b"one\ntwo\n"


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix])
def test_a_truncated_compressed_file_is_refused(tmp_path: Path, suffix: str) -> None:
    whole = COMPRESS[suffix](CONTENT)
    path = tmp_path / f"file.txt{suffix}"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cut short"):
        list(line_blocks(path))


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix])
def test_a_damaged_compressed_file_is_refused(tmp_path: Path, suffix: str) -> None:
    damaged = bytearray(COMPRESS[suffix](CONTENT))
    for i in range(len(damaged) // 2, len(damaged) // 2 + 20):
        damaged[i] ^= 0xFF
    path = tmp_path / f"file.txt{suffix}"
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=r"damaged|cut short"):
        list(line_blocks(path))


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix])
def test_plain_text_under_a_compressed_name_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"file.txt{suffix}"
    path.write_bytes(b"1 1 1\n0 0:1\n")
    with pytest.raises(DataError, match="damaged"):
        list(line_blocks(path))


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix])
def test_compressed_data_under_a_plain_name_is_refused_with_its_suffix(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(COMPRESS[suffix](CONTENT))
    with pytest.raises(DataError, match=rf"does not end in \{suffix}"):
        list(line_blocks(path))


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "empty"), (b"a\0b\n", "not a text file"), ("text\n".encode("utf-16"), "not a text file")],
)
def test_what_is_not_text_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=problem) as caught:
        list(line_blocks(path))
    assert str(path) in str(caught.value)


def test_an_empty_compressed_file_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(DataError, match="empty"):
        list(line_blocks(path))


def test_missing_files_and_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        list(line_blocks(tmp_path / "absent.txt"))
    with pytest.raises(DataError, match="directory"):
        list(line_blocks(tmp_path))


def test_an_endless_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extremegp.storage.streams._MAX_LINE_BYTES", 1000)
    path = tmp_path / "file.txt"
    path.write_bytes(b"1" * 5000)
    with pytest.raises(DataError, match="longer than 1000 bytes"):
        list(line_blocks(path, 100))


@pytest.mark.parametrize("block_bytes", [1, 2, 100])
def test_windows_line_ends_and_byte_order_mark_vanish(tmp_path: Path, block_bytes: int) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree\r")
    block_bytes = max(block_bytes, 3)
    assert b"".join(line_blocks(path, block_bytes)) == b"one\ntwo\nthree\n"


def test_zstandard_missing_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(DataError, match="pip install zstandard"):
        list(line_blocks(tmp_path / "file.zst"))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_written_content_reads_back_and_nothing_else_stays(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"file.txt{suffix}"
    for _ in range(2):
        with atomic_writer(path) as stream:
            stream.write(CONTENT)
    assert b"".join(line_blocks(path)) == CONTENT
    assert path.read_bytes()[:2] == COMPRESS[suffix](CONTENT)[:2]
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(b"old\n")

    def write_half() -> None:
        with atomic_writer(path) as stream:
            stream.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_bytes() == b"old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_an_unwritable_place_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "absent" / "file.txt", tmp_path / "folder", tmp_path / "file" / "below.txt"):
        with pytest.raises(DataError, match="cannot be written"), atomic_writer(path) as stream:
            stream.write(b"text")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder"]


def test_base_suffix_looks_below_the_compression() -> None:
    assert base_suffix("a/train.JSONL.gz") == ".jsonl"
    assert base_suffix("train.txt") == ".txt"
    assert base_suffix("train.xz") == ""


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_blocks_go_on_from_the_end_of_any_other(tmp_path: Path, suffix: str, end: bytes) -> None:
    path = tmp_path / f"file.txt{suffix}"
    content = b"\xef\xbb\xbfone\r\ntwo\n\xef\xbb\xbfthree\r\n\nfive" + end
    with atomic_writer(path) as stream:
        stream.write(content)
    for block_bytes in (1, 3, 7, 100):
        blocks = [*text_blocks(path, block_bytes)]
        assert blocks[-1].end == len(content)
        assert blocks[-1].read == path.stat().st_size
        for i, block in enumerate(blocks):
            assert content[: block.end].endswith(b"\n") or block.end == len(content)
            later = b"".join(other.lines for other in text_blocks(path, block_bytes, offset=block.end))
            assert later == b"".join(other.lines for other in blocks[i + 1 :])
