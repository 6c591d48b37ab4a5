"""Models of one operator of ai.rt, in the form that plain onnxruntime loads."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from onnx_light import PagedCache
from onnx_light.runtime import get_library_path, handle, release, value

ERRORS = (
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument,
    onnxruntime.capi.onnxruntime_pybind11_state.Fail,
    onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException,
)
CACHE_TYPE = helper.make_tensor_type_proto(TensorProto.INT64, [])


def make_session(model: onnx.ModelProto, **options: Any) -> Any:
    """A plain session that knows the operators."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    for name, setting in options.items():
        setattr(settings, name, setting)
    settings.register_custom_ops_library(get_library_path())
    return onnxruntime.InferenceSession(model.SerializeToString(), settings)


def make_model(
    node: onnx.NodeProto, inputs: dict[str, Any], outputs: dict[str, Any]
) -> onnx.ModelProto:
    """A model of one node; inputs and outputs are TypeProtos by name."""
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_value_info(name, kind) for name, kind in inputs.items()],
        [helper.make_value_info(name, kind) for name, kind in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.rt", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def tensor_type(array: Any) -> Any:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_type_proto(kind, [None] * array.ndim)


def attention_model(feeds: dict[str, Any], **attributes: Any) -> onnx.ModelProto:
    """PagedAttention for arrays Q, K, V and, where they are given, attn_mask and sinks."""
    names = ["Q", "K", "V", "past", "attn_mask", "sinks"]
    present = [name if name in feeds or name == "past" else "" for name in names]
    while not present[-1]:
        present.pop()
    node = helper.make_node(
        "PagedAttention", present, ["Y", "present"], "attention", domain="ai.rt", **attributes
    )
    inputs = {name: tensor_type(array) for name, array in feeds.items()}
    inputs["past"] = CACHE_TYPE
    return make_model(node, inputs, {"Y": tensor_type(feeds["Q"]), "present": CACHE_TYPE})


def ort_value(array: Any) -> Any:
    if array.dtype.name == "bfloat16":
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            array.view(np.uint16), TensorProto.BFLOAT16
        )
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))


def run_attention(session: Any, past: PagedCache, feeds: dict[str, Any]) -> tuple[Any, PagedCache]:
    """Y, which bfloat16 leaves out, and the present."""
    number = handle(past)
    try:
        given = {name: ort_value(array) for name, array in feeds.items()}
        given["past"] = ort_value(number)
        y, present = session.run_with_ort_values(["Y", "present"], given)
        result = None if "bfloat16" in y.data_type() else y.numpy().copy()
        return result, value(present.numpy())
    finally:
        release(number)


def random_arrays(seed: int, *shapes: tuple[int, ...], dtype: Any = np.float32) -> list[Any]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape).astype(dtype) for shape in shapes]
