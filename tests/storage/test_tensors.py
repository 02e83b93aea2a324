from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch

from extremegp.errors import DataError, ModelFormatError
from extremegp.storage.tensors import copy_state, read_tensors, write_tensors

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, 2], dtype=torch.int64), "c": torch.tensor(3.0)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "tensors.safetensors"
    write_tensors(file, TENSORS, {"n": 1, "name": "ä"})
    return file


def test_tensors_and_header_come_back(path: Path):
    tensors, header = read_tensors(path)
    assert header == {"n": 1, "name": "ä"}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(tensors[name], tensor)
        assert tensors[name].dtype == tensor.dtype


def test_views_and_parameters_are_written_as_they_read(tmp_path: Path):
    view = torch.arange(6.0).reshape(2, 3).T.requires_grad_()
    write_tensors(tmp_path / "t", {"view": view}, {})
    assert torch.equal(read_tensors(tmp_path / "t")[0]["view"], view.detach())


def test_nothing_else_stays_in_the_folder(path: Path):
    write_tensors(path, TENSORS, {})
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_folder_that_does_not_exist_cannot_be_written_to(tmp_path: Path):
    with pytest.raises(DataError, match="cannot be written"):
        write_tensors(tmp_path / "missing" / "t", TENSORS, {})


def _safetensors(header: dict[str, object], body: bytes = b"") -> bytes:
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + body


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 64,
        b"not a tensor file at all",
        struct.pack("<Q", 2**62) + b"{}",
        _safetensors({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}),
        _safetensors({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}}, b"1234"),
        _safetensors({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
        _safetensors({}),
        _safetensors({"__metadata__": {"other": "1"}}),
        _safetensors({"__metadata__": {"json": "{"}}),
        _safetensors({"__metadata__": {"json": "[1]"}}),
        _safetensors({"__metadata__": {"json": "[" * 100_000}}),
    ],
    ids=range(12),
)
def test_what_is_no_tensor_file_of_ours_is_refused(tmp_path: Path, content: bytes):
    file = tmp_path / "bad"
    file.write_bytes(content)
    with pytest.raises(ModelFormatError, match="bad"):
        read_tensors(file)


def test_a_file_cut_anywhere_is_refused(path: Path):
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(ModelFormatError):
            read_tensors(path)


@pytest.mark.parametrize("name", ["missing", "."])
def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path, name: str):
    with pytest.raises(ModelFormatError, match="no such file"):
        read_tensors(tmp_path / name)


def _module(device: str | None = None) -> torch.nn.Linear:
    return torch.nn.Linear(2, 3, device=device)


@pytest.mark.parametrize("device", [None, "meta"])
def test_state_is_copied_into_a_module(device: str | None):
    module, source = _module(device), _module()
    copy_state(module, source.state_dict(), source="s")
    x = torch.randn(4, 2)
    assert torch.equal(module(x), source(x))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": None}, "'weight' is missing or unexpected"),
        ({"extra": torch.zeros(1)}, "'extra' is missing or unexpected"),
        ({"weight": torch.zeros(2, 3)}, r"\(2, 3\), expected torch.float32 \(3, 2\)"),
        ({"weight": torch.zeros(3, 2, dtype=torch.float64)}, "float64"),
        ({"bias": torch.tensor([0.0, float("nan"), 0.0])}, "NaN or infinity"),
        ({"bias": torch.tensor([0.0, float("inf"), 0.0])}, "NaN or infinity"),
    ],
)
def test_state_that_does_not_fit_is_refused_and_nothing_is_copied(change: dict[str, torch.Tensor], message: str):
    module = _module()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = {name: tensor for name, tensor in ({**_module().state_dict(), **change}).items() if tensor is not None}
    with pytest.raises(ModelFormatError, match=message):
        copy_state(module, state, source="s")
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
