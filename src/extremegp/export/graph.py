"""ONNX graphs of models that are steps of arithmetic."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from extremegp.__about__ import __version__
from extremegp.errors import SettingsError
from extremegp.export.portable import PortableModel

_OPSET, _IR_VERSION = 17, 8


def to_onnx(portable: PortableModel) -> Any:
    """An ONNX model of the same steps: of "x" (N x D, float32), with the results "mean" and, of labels, "probability".

    The arithmetic is in float64, as runtimes on CPUs have it.

    Args:
        portable: the steps.

    Returns:
        A `ModelProto`; the names of the labels are in its metadata, as JSON under "labels".

    Raises:
        SettingsError: the extra `onnx` is not installed.
    """
    try:
        import onnx
    except ImportError as error:
        raise SettingsError("ONNX graphs need onnx: pip install 'extremegp[onnx]'") from error
    from onnx import TensorProto, helper, numpy_helper

    nodes = [helper.make_node("Cast", ["input"], ["x"], to=TensorProto.DOUBLE)]
    constants = dict(portable.constants)
    axes = "axes of rows"
    tensors = [numpy_helper.from_array(np.array([1]), axes)]
    for operation, result, arguments in portable.steps:
        if operation == "SumRows":
            nodes.append(helper.make_node("ReduceSum", [*arguments, axes], [result], keepdims=1))
        elif operation == "Columns":
            limits = [f"{result} {which}" for which in ("start", "stop")]
            for name, constant in zip(limits, arguments[1:], strict=True):
                tensors.append(numpy_helper.from_array(constants[constant].astype(np.int64).reshape(1), name))
            nodes.append(helper.make_node("Slice", [arguments[0], *limits, axes], [result]))
        elif operation == "Erf":
            # Runtimes have it of float32 alone, which is enough of what lies between -1 and 1.
            nodes.append(helper.make_node("Cast", [*arguments], [f"{result} of"], to=TensorProto.FLOAT))
            nodes.append(helper.make_node("Erf", [f"{result} of"], [f"{result} found"]))
            nodes.append(helper.make_node("Cast", [f"{result} found"], [result], to=TensorProto.DOUBLE))
        else:
            nodes.append(helper.make_node(operation, [*arguments], [result]))
    tensors += [numpy_helper.from_array(value, name) for name, value in constants.items()]
    results = []
    for name in ("mean", "probability") if portable.has_probabilities else ("mean",):
        nodes.append(helper.make_node("Cast", [name], [f"{name} out"], to=TensorProto.FLOAT))
        results.append(helper.make_tensor_value_info(f"{name} out", TensorProto.FLOAT, ["N", len(portable.names)]))
    graph = helper.make_graph(
        nodes,
        "extremegp",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", portable.n_features])],
        results,
        tensors,
    )
    model = helper.make_model(
        graph,
        producer_name="extremegp",
        producer_version=__version__,
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
    )
    helper.set_model_props(model, {"labels": json.dumps(portable.names)})
    onnx.checker.check_model(model)
    return model
