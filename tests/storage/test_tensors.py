from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch

from extremegp.errors import DataError, ModelFormatError
from extremegp.storage.tensors import all_finite, copy_state, read_tensors, write_tensors

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


@pytest.mark.parametrize("mapped", [(), ("",)])
def test_a_file_cut_anywhere_is_refused(path: Path, mapped: tuple[str, ...]):
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(ModelFormatError):
            read_tensors(path, mapped=mapped)


def test_mapped_tensors_are_those_that_are_read(tmp_path: Path):
    numbers = torch.randn(3, 5)
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
    several = {str(dtype): (10 * numbers).abs().to(dtype) for dtype in dtypes}
    several |= {"bool": numbers > 0, "nothing": torch.zeros(0, 4), "number": torch.tensor(2.5)}
    write_tensors(tmp_path / "t", several, {"n": 1})
    mapped, header = read_tensors(tmp_path / "t", mapped=("",))
    assert header == {"n": 1}
    for name, tensor in several.items():
        assert mapped[name].dtype == tensor.dtype
        assert mapped[name].shape == tensor.shape
        assert torch.equal(mapped[name], tensor)


def test_what_is_written_to_mapped_tensors_stays_in_the_process(path: Path):
    content = path.read_bytes()
    tensors, _ = read_tensors(path, mapped=("a",))
    tensors["a"].add_(1)
    assert torch.equal(tensors["a"], TENSORS["a"] + 1)
    assert path.read_bytes() == content
    tensors.release()
    # Only what is not mapped is held by the process alone.
    assert torch.equal(tensors["a"], TENSORS["a"])
    assert torch.equal(tensors["b"], TENSORS["b"])


def test_mapped_tensors_outlive_the_name_of_their_file(path: Path):
    tensors, _ = read_tensors(path, mapped=("",))
    write_tensors(path, {name: tensor + 1 for name, tensor in TENSORS.items()}, {})
    path.unlink()
    tensors.release()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())


def test_numbers_that_lie_at_odd_places_are_read(tmp_path: Path):
    header = {"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    header["b"] = {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]}
    body = b"\x07" + struct.pack("<2f", 1.5, -2.0)
    (tmp_path / "t").write_bytes(_safetensors({"__metadata__": {"json": "{}"}, **header}, body))
    tensors, _ = read_tensors(tmp_path / "t", mapped=("",))
    assert tensors["a"].tolist() == [7]
    assert tensors["b"].tolist() == [1.5, -2.0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 500, -1])
def test_one_number_that_is_not_finite_is_found(value: float, place: int):
    tensor = torch.ones(1001)
    assert all_finite(tensor)
    tensor[place] = value
    assert not all_finite(tensor)


@pytest.mark.parametrize("tensor", [torch.zeros(0), torch.tensor([1, 2]), torch.tensor([True])])
def test_what_can_only_be_finite_is(tensor: torch.Tensor):
    assert all_finite(tensor)


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
