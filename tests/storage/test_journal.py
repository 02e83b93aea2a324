from __future__ import annotations

import os
import signal
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from extremegp.errors import DataError, ModelFormatError
from extremegp.storage import journal, models
from extremegp.storage.journal import Journal, calls
from extremegp.storage.models import JOURNAL, read_config, write_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path / "model", {"estimator": "x"}, {"a": torch.zeros(3)})
    return tmp_path / "model"


def read(folder: Path) -> list[dict[str, object]]:
    return [*calls(folder, read_config(folder)["sha256"])]


def test_calls_come_back_in_their_order(folder: Path):
    first = Journal(folder)
    for number in range(3):
        first.append({"call": "learn", "text": "\n\u2028 ä", "number": number / 3})
    first.close()
    again = Journal(folder)
    assert again.n_calls == 3
    again.append({"call": "last"})
    again.close()
    assert read(folder)[:3] == [{"call": "learn", "text": "\n\u2028 ä", "number": number / 3} for number in range(3)]
    assert read(folder)[3:] == [{"call": "last"}]


def test_nothing_is_written_until_there_is_a_call(folder: Path):
    Journal(folder).close()
    assert read(folder) == []
    assert not (folder / JOURNAL).exists()


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_last_line_that_was_cut_short_is_left_out(folder: Path, cut: int):
    held = Journal(folder)
    for number in range(3):
        held.append({"number": number, "padding": "x" * 50})
    held.close()
    whole = (folder / JOURNAL).read_bytes()
    (folder / JOURNAL).write_bytes(whole[:-cut])
    assert [call["number"] for call in read(folder)] == [0, 1]
    held = Journal(folder)
    held.append({"number": 9})
    held.close()
    assert [call["number"] for call in read(folder)] == [0, 1, 9]


def altered(line: int, text: bytes) -> bytes:
    lines = [b'{"format":"extremegp journal 1","model":"MODEL"}', b'{"number":0}', b'{"number":1}']
    lines[line] = text
    return b"".join(b"%08x %s\n" % (zlib.crc32(each), each) for each in lines)


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda text: text.replace(b'"number":0', b'"number":7'), "line 2"),
        (lambda text: text.replace(b"\n", b" ", 1), "line 1"),
        (lambda text: b"\n" + text, "line 1"),
        (lambda text: b"\xff\xfe garbage\n" * 3, "line 1"),
        (lambda text: altered(0, b'{"format":"extremegp journal 1","model":"other"}'), "another model"),
        (lambda text: altered(0, b'{"format":"extremegp journal 99"}'), "another"),
        (lambda text: altered(1, b"[1]"), "line"),
        (lambda text: altered(1, b"[" * 100_000), "line"),
    ],
)
def test_damage_is_told(folder: Path, damage, match: str):
    held = Journal(folder)
    held.append({"number": 0})
    held.append({"number": 1})
    held.close()
    path = folder / JOURNAL
    digest = read_config(folder)["sha256"].encode()
    path.write_bytes(damage(path.read_bytes()).replace(b"MODEL", digest))
    with pytest.raises(ModelFormatError, match=match):
        read(folder)
    with pytest.raises(ModelFormatError):
        Journal(folder)


def test_one_process_holds_it_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(journal, "_WAIT_SECONDS", 0.2)
    held = Journal(folder)
    with pytest.raises(DataError, match="another process"):
        Journal(folder)
    held.close()
    Journal(folder).close()
    with pytest.raises(DataError, match="closed"):
        held.append({})


def test_a_model_saved_in_its_place_has_none(folder: Path):
    held = Journal(folder)
    held.append({"number": 0})
    write_model(folder, {"estimator": "x"}, {"a": torch.ones(3)})
    assert {path.name for path in folder.iterdir()} == {"config.json", "tensors.safetensors"}
    held.renewed()
    held.append({"number": 1})
    held.close()
    assert read(folder) == [{"number": 1}]


def test_a_full_disk_leaves_it_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch):
    held = Journal(folder)
    held.append({"number": 0})
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:20])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DataError, match="No space"):
        held.append({"number": 1})
    monkeypatch.undo()
    held.append({"number": 2})
    held.close()
    assert [call["number"] for call in read(folder)] == [0, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_is_killed_loses_no_call_that_it_answered(folder: Path):
    rng, answered = np.random.default_rng(0), []
    for _ in range(50):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            held = Journal(folder)
            for number in range(10**6):
                held.append({"number": [len(answered), number], "padding": "x" * 2000})
                os.write(writing, b"%d\n" % number)
            os._exit(0)
        os.close(writing)
        time.sleep(float(rng.uniform(0, 0.03)))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as stream:
            numbers = stream.read().split(b"\n")[:-1]
        answered.append(len(numbers))
    found = [tuple(call["number"]) for call in read(folder)]
    assert len(set(found)) == len(found)
    for turn, n in enumerate(answered):
        # One more may have been written, and not answered.
        assert [number for at, number in found if at == turn][:n] == list(range(n))
    assert sum(answered) > 50


@pytest.mark.skipif(sys.platform != "linux", reason="needs renameat2")
def test_a_model_is_there_at_every_moment(folder: Path, monkeypatch: pytest.MonkeyPatch):
    seen = []
    remove = models.shutil.rmtree

    def looked(path: Path, **options: object) -> None:
        seen.append(read_config(folder)["estimator"])
        remove(path, **options)

    monkeypatch.setattr(models.shutil, "rmtree", looked)
    monkeypatch.setattr(Path, "rename", None)
    write_model(folder, {"estimator": "y"}, {"a": torch.ones(3)})
    assert seen == ["y"]
