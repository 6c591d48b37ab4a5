"""From what the caller gives to a session of onnxruntime and the graph behind it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_light.errors import CodedError
from onnx_light.onnx import GraphProto, ModelProto, ParseOptions, TensorProto
from onnx_light.onnx.tensors import to_array
from onnx_light.runtime.ort import BFLOAT16, onnxruntime, to_ort_value

# Initializers from this size on go to onnxruntime as they lie in memory. Smaller ones stay in the
# message, where its optimizers read them.
_LARGE = 64 * 1024
_ORT_FORMAT = b"ORTM"  # at byte 4
_ERRORS_ONLY = 3
_OPERATOR_DOMAIN = "ai.rt"


@dataclass(frozen=True)
class Model:
    """A model that is ready to run.

    Attributes:
        session: the onnxruntime.InferenceSession.
        graph: the model's graph, without its payloads if it came from a file; None for
            onnxruntime's own file format, which has none.
        path: the model's file, if it came from one.
        weights: OrtValues whose memory the session reads.
    """

    session: Any
    graph: GraphProto | None
    path: Path | None
    weights: tuple[Any, ...] = ()


def load_model(
    source: Any, sess_options: Any, providers: Any, provider_options: Any, **kwargs: Any
) -> Model:
    """Makes the session; arguments as those of onnxruntime.InferenceSession.

    Raises:
        CodedError: ``runtime.unsupported``: structured values; ``runtime.options``: options that
            carry the weights of another session. ParseError: not a model.
        Exception: whatever onnxruntime raises.
    """
    runtime = onnxruntime()
    path: Path | None = None
    weights: tuple[Any, ...] = ()
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        proto = _read(path)
    elif isinstance(source, bytes):
        proto = _parse(source)
    elif hasattr(source, "SerializeToString"):
        proto = source if isinstance(source, ModelProto) else _parse(source.SerializeToString())
        if proto is None:
            raise TypeError(f"a {type(source).__name__} is no ModelProto")
        _refuse_structured_values(proto)
        sess_options = sess_options or _options_for(proto)
        source, weights = _hand_over_weights(proto, sess_options)
    else:
        raise TypeError(
            f"a path, bytes or a ModelProto is needed, not {type(source).__module__}."
            f"{type(source).__qualname__}"
        )
    if proto is not None:
        _refuse_structured_values(proto)
        sess_options = sess_options or _options_for(proto)
    session = runtime.InferenceSession(source, sess_options, providers, provider_options, **kwargs)
    return Model(session, proto.graph if proto is not None else None, path, weights)


def _options_for(model: ModelProto) -> Any:
    """Options that do not warn of inputs with defaults, of which each would be named otherwise."""
    options = onnxruntime().SessionOptions()
    inputs = {value.name for value in model.graph.input}
    if any(tensor.name in inputs for tensor in model.graph.initializer):
        options.log_severity_level = _ERRORS_ONLY
    return options


def _read(path: Path) -> ModelProto | None:
    with open(path, "rb") as file:
        if file.read(8)[4:] == _ORT_FORMAT:
            return None
    return read_file(path, ParseOptions(skip_raw_data=True))


def read_file(path: Path, options: ParseOptions) -> ModelProto:
    """The message in a file. Nothing of it stays mapped: the file may change afterwards."""
    model = ModelProto()
    model.ParseFromFile(str(path), options)
    return model


def _parse(data: bytes) -> ModelProto | None:
    if data[4:8] == _ORT_FORMAT:
        return None
    model = ModelProto()
    model.ParseFromString(data, ParseOptions(no_copy=True))
    return model


def _refuse_structured_values(model: ModelProto) -> None:
    graph = model.graph
    for field in ("paged_cache_initializer", "encoded_initializer"):
        if len(getattr(graph, field)):
            _refuse(f"graph.{field}", "structured initializers are not supported yet")
    for index, value in enumerate(graph.input):
        if value.type.HasField("struct_type"):
            _refuse(f"graph.input[{index}].type", f"{value.name}: a structured value")
    for entry in model.opset_import:
        if entry.domain == _OPERATOR_DOMAIN:
            _refuse("opset_import", f"operators of {_OPERATOR_DOMAIN} are not supported yet")


def _refuse(path: str, message: str) -> None:
    raise CodedError(
        "runtime.unsupported", path, f"{message}; convert with attention='standard', for example"
    )


def _hand_over_weights(model: ModelProto, sess_options: Any) -> tuple[bytes, tuple[Any, ...]]:
    """The model without its large initializers, which go into the options instead, uncopied."""
    slim = ModelProto()
    slim.CopyFrom(model)  # shares the payloads
    names, values = [], []
    for tensor in slim.graph.initializer:
        value = _borrow(tensor)
        if value is None:
            continue
        names.append(tensor.name)
        values.append(value)
        _make_external(tensor)
    if names:
        try:
            sess_options.add_external_initializers(names, values)
        except RuntimeError as error:
            raise CodedError(
                "runtime.options",
                "sess_options",
                "these options carry the weights of another session already; "
                "make a SessionOptions for each",
            ) from error
    return slim.SerializeToString(), tuple(values)


def _borrow(tensor: TensorProto) -> Any:
    """An OrtValue over the payload, or None if that is small or onnxruntime cannot borrow it."""
    if not tensor.HasField("raw_data") or len(tensor.payload("raw_data")) < _LARGE:
        return None
    array = to_array(tensor)
    if array.dtype != BFLOAT16 and array.dtype.kind not in "biuf":
        return None
    return to_ort_value(array)


def _make_external(tensor: TensorProto) -> None:
    """Says that the payload is elsewhere; onnxruntime replaces only initializers that say so."""
    length = len(tensor.payload("raw_data"))
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", "sess_options"), ("offset", "0"), ("length", str(length))):
        tensor.external_data.add(key=key, value=text)
