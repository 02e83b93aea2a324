"""Files, compressed or not: read in blocks of bytes or of whole lines, written all or nothing."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import secrets
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from extremegp.errors import DataError

BLOCK_BYTES = 1 << 24
"""Decompressed bytes read at a time: bounds the memory that parsing needs beside the parsed result."""

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")

# A file of one endless line (a decompression bomb) must end in an error, not in the memory running out.
_MAX_LINE_BYTES = 1 << 28

# A zstd frame can expand several thousandfold, and its decompressor returns all that a piece of input expands to.
_ZSTD_PIECE_BYTES = 1 << 13

_OPENERS: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    ".gz": lambda raw: cast(IO[bytes], gzip.GzipFile(fileobj=raw)),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
}

_COMPRESSED_MAGIC = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ\0": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}


def byte_blocks(path: str | Path, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield the decompressed content of a file in blocks; compression follows the suffix (.gz, .bz2, .xz, .zst).

    Args:
        path: the file.
        block_bytes: about how many bytes a block has.

    Raises:
        DataError: the file is missing, a directory, unreadable or empty, or its compressed stream is cut short or
            damaged.
    """
    for piece, _ in _checked_pieces(Path(path), block_bytes):
        yield piece


class TextBlock(NamedTuple):
    """Whole lines of a text file, and how far reading is after them.

    Attributes:
        lines: the lines, each ended.
        end: bytes of the decompressed file up to the end of the block.
        read: bytes of the file as it is on disk that were read.
    """

    lines: bytes
    end: int
    read: int


def line_blocks(path: str | Path, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The lines of `text_blocks`, which is the same for readers that need not know where they are."""
    return (block.lines for block in text_blocks(path, block_bytes))


def text_blocks(path: str | Path, block_bytes: int = BLOCK_BYTES, *, offset: int = 0) -> Iterator[TextBlock]:
    r"""Yield the decompressed content of a text file as blocks of whole lines.

    Compression follows the suffix (.gz, .bz2, .xz, .zst). Windows line ends become ``\n``, a UTF-8 byte-order mark is
    dropped, and the last line is ended with ``\n`` if the file does not end it.

    Args:
        path: the file.
        block_bytes: about how many bytes a block has.
        offset: where to start: 0, or the `end` of an earlier block.

    Raises:
        DataError: the file is missing, a directory, unreadable, empty, binary, or its compressed stream is cut short
            or damaged.
    """
    path = Path(path)
    pending, end, read = b"", offset, 0
    for piece, read in _checked_pieces(path, block_bytes, offset):
        if not end:
            end = len(piece)
            piece = piece.removeprefix(b"\xef\xbb\xbf")
        else:
            end += len(piece)
        if b"\0" in piece:
            raise DataError("not a text file: it holds NUL bytes (binary or UTF-16); save it as UTF-8 text", path=path)
        cut = piece.rfind(b"\n") + 1
        if cut:
            lines, pending = pending + piece[:cut], piece[cut:]
            yield TextBlock(lines.replace(b"\r\n", b"\n"), end - len(pending), read)
        else:
            pending += piece
        if len(pending) > _MAX_LINE_BYTES:
            raise DataError(f"a line is longer than {_MAX_LINE_BYTES} bytes; is this the right file?", path=path)
    if pending:
        yield TextBlock(pending.removesuffix(b"\r") + b"\n", end, read)


def utf8(line: bytes) -> str:
    """A line of text.

    Raises:
        DataError: it is not UTF-8.
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 text (byte {error.start} of the line); convert the file to UTF-8"
        raise DataError(problem) from error


def as_stream(blocks: Iterator[bytes]) -> IO[bytes]:
    """What `byte_blocks` or `line_blocks` yields as a stream to read from."""
    return io.BufferedReader(_BlockStream(blocks))


class _BlockStream(io.RawIOBase):
    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        n_bytes = min(len(buffer), len(self._rest))
        buffer[:n_bytes] = self._rest[:n_bytes]
        self._rest = self._rest[n_bytes:]
        return n_bytes


@contextmanager
def atomic_writer(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a binary stream whose content replaces `path` only once all of it is on disk.

    Compression follows the suffix as in `line_blocks`. If the body raises, `path` is left as it was and nothing else
    stays behind.

    Raises:
        DataError: the file cannot be written there.
    """
    path = Path(path)
    temporary = path.parent / f".{secrets.token_hex(8)}.tmp"
    with writing(path), open(temporary, "xb") as raw:
        try:
            with _compressor(raw, path) as stream:
                yield stream
            raw.flush()
            os.fsync(raw.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink()
            raise


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """The system's errors as those of a file or folder that cannot be written."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror or error}", path=path) from error


def write_all(file: Any, array: NDArray[Any]) -> None:
    """Write an array's bytes to an unbuffered file, which may take them in parts, as where a disk fills up."""
    rest = memoryview(np.asarray(array).reshape(-1).view(np.uint8).data)
    while rest:
        rest = rest[file.write(rest) :]


def sync_folder(folder: Path) -> None:
    """Bring the names of a folder's files to the disk, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def compressed_suffix(start: bytes) -> str:
    """The suffix of the compression that a file starts like, or none."""
    return next((suffix for magic, suffix in _COMPRESSED_MAGIC.items() if start.startswith(magic)), "")


def base_suffix(path: str | Path) -> str:
    """The suffix that names the format, in lower case: ``.jsonl`` for ``train.jsonl.gz``."""
    path = Path(path)
    if path.suffix.lower() in COMPRESSED_SUFFIXES:
        path = path.with_suffix("")
    return path.suffix.lower()


def _checked_pieces(path: Path, block_bytes: int, offset: int = 0) -> Iterator[tuple[bytes, int]]:
    pieces = _decompressed(path, block_bytes, offset)
    if offset:
        yield from pieces
        return
    start = next(pieces, None)
    if start is None:
        raise DataError("the file is empty", path=path)
    if suffix := compressed_suffix(start[0]):
        raise DataError(f"compressed data under a name that does not end in {suffix}; rename the file", path=path)
    yield from chain([start], pieces)


def _decompressed(path: Path, block_bytes: int, offset: int) -> Iterator[tuple[bytes, int]]:
    """The content from some offset on, in pieces, each with how much of the file itself was read so far."""
    suffix = path.suffix.lower()
    broken: tuple[type[Exception], ...] = (gzip.BadGzipFile, lzma.LZMAError, zlib.error)
    if suffix == ".zst":
        broken = (*broken, _zstandard(path).ZstdError)
    try:
        with reading(path), open(path, "rb") as raw:
            if suffix == ".zst":
                for piece in _zstd_pieces(raw, path):
                    skipped = min(offset, len(piece))
                    offset -= skipped
                    if len(piece) > skipped:
                        yield piece[skipped:], raw.tell()
                return
            opener = _OPENERS.get(suffix)
            stream = raw if opener is None else opener(raw)
            if offset:
                stream.seek(offset)
            position = raw.tell if raw.seekable() else lambda: 0
            while piece := stream.read(block_bytes):
                yield piece, position()
    except EOFError as error:
        raise DataError("the compressed file is cut short; copy or download it again", path=path) from error
    except broken as error:
        raise DataError(f"the compressed file is damaged ({error}); copy or download it again", path=path) from error
    except OSError as error:
        # The bz2 module reports damage as an OSError that the system did not number.
        if error.errno is None:
            problem = f"the compressed file is damaged ({error}); copy or download it again"
        else:
            problem = f"cannot be read: {error.strerror}"
        raise DataError(problem, path=path) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """The commonest errors of opening a file as errors of data."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError("no such file; check the path", path=path) from error
    except IsADirectoryError as error:
        raise DataError("is a directory; name a file in it", path=path) from error


def _zstd_pieces(raw: IO[bytes], path: Path) -> Iterator[bytes]:
    decompressor = _zstandard(path).ZstdDecompressor()
    frame = None
    while data := raw.read(_ZSTD_PIECE_BYTES):
        while data:
            frame = frame or decompressor.decompressobj()
            if piece := frame.decompress(data):
                yield piece
            data = b""
            if frame.eof:
                data, frame = frame.unused_data, None
    # The stream reader of the library ends silently here, hence the frames by hand.
    if frame is not None:
        raise EOFError


def _compressor(raw: IO[bytes], path: Path) -> AbstractContextManager[IO[bytes]]:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        # No name and no time in the header: the same content gives the same bytes.
        return cast(IO[bytes], gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0))
    if suffix == ".bz2":
        return bz2.BZ2File(raw, "wb")
    if suffix == ".xz":
        return lzma.LZMAFile(raw, "wb")
    if suffix == ".zst":
        return cast(IO[bytes], _zstandard(path).ZstdCompressor(write_checksum=True).stream_writer(raw, closefd=False))
    return nullcontext(raw)


def _zstandard(path: Path) -> ModuleType:
    try:
        import zstandard
    except ImportError as error:
        raise DataError(".zst files need the zstandard package: pip install zstandard", path=path) from error
    return zstandard
