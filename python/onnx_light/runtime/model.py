"""From what the caller gives to a session of onnxruntime and the graph behind it."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from onnx_light.errors import CodedError
from onnx_light.identity import ModelIdentity, identity_fields
from onnx_light.onnx import GraphProto, ModelProto, ParseOptions, TensorProto
from onnx_light.onnx.tensors import to_array
from onnx_light.runtime.handles import get_library_path
from onnx_light.runtime.lowering import Lowered, has_structured_values, lower_model
from onnx_light.runtime.ort import BFLOAT16, onnxruntime, to_ort_value
from onnx_light.weights_digest import weights_digest

# Initializers from this size on go to onnxruntime as they lie in memory. Smaller ones stay in the
# message, where its optimizers read them.
_LARGE = 64 * 1024
_ORT_FORMAT = b"ORTM"  # at byte 4
_SNAPSHOT = b"onnx_light.kvcache\r\n\x1a\n"  # in its first 64 bytes
_ERRORS_ONLY = 3
_FOLDER_ENTRY = "session.model_external_initializers_file_folder_path"


@dataclass(frozen=True)
class Model:
    """A model that is ready to run.

    Attributes:
        session: the onnxruntime.InferenceSession.
        proto: the message, without its payloads if it came from a file; None for onnxruntime's own
            file format, which has none. Nobody else changes it.
        path: the model's file, if it came from one.
        stamp: what tells that file from a later one of the same name.
        folder: where its data in other files lie.
        weights: OrtValues whose memory the session reads.
        lowered: what the session runs in place of `proto`, if that has structured values.
    """

    session: Any
    proto: ModelProto | None
    path: Path | None
    stamp: object = None
    folder: str = ""
    weights: tuple[Any, ...] = ()
    lowered: Lowered | None = None

    @property
    def graph(self) -> GraphProto | None:
        """The model's graph; None as `proto`."""
        return None if self.proto is None else self.proto.graph

    @functools.cached_property
    def identity(self) -> ModelIdentity:
        """Which model it is: what `ModelIdentity.from_onnx` says.

        Computed when it is asked for; where the metadata do not give a digest of the weights, they
        are read.

        Raises:
            CodedError: ``identity.value``; ``external.*``; ``runtime.identity``: the file is
                another one now, or in a format without tensors that could be read.
            OSError: a file cannot be read.
        """
        metadata = self.session.get_modelmeta().custom_metadata_map
        fields = identity_fields(metadata.items())
        if "weights" not in fields:
            fields["weights"] = self._weights_digest()
        return ModelIdentity.from_metadata(fields)

    @functools.cached_property
    def context(self) -> int:
        """How many tokens the model takes, where its metadata say so, else 0.

        Raises:
            CodedError: ``identity.value``: they say something else than a number.
        """
        fields = identity_fields(self.session.get_modelmeta().custom_metadata_map.items())
        known = {name: text for name, text in fields.items() if name == "context"}
        return ModelIdentity.from_metadata(known).context

    def _weights_digest(self) -> str:
        if self.proto is None:
            self._refuse_identity("onnxruntime's own format does not show the weights")
        elif self.path is None:
            return weights_digest(self.proto, self.folder)
        elif _stamp(self.path) != self.stamp:
            self._refuse_identity("the file is another one than the session was made from")
        return ModelIdentity.from_onnx(self.path).weights

    def _refuse_identity(self, why: str) -> NoReturn:
        message = f"{why}; say which model it is with identity= or expect="
        raise CodedError("runtime.identity", str(self.path or ""), message)


def load_model(
    source: Any, sess_options: Any, providers: Any, provider_options: Any, **kwargs: Any
) -> Model:
    """Makes the session; arguments as those of onnxruntime.InferenceSession.

    Raises:
        CodedError: what `lower` finds; ``runtime.options``: options that carry the weights of
            another session; ``runtime.model``: a GGUF file or a snapshot. ParseError: not a model.
        Exception: whatever onnxruntime raises.
    """
    runtime = onnxruntime()
    path: Path | None = None
    stamp: object = None
    folder = _folder_of(sess_options)
    weights: tuple[Any, ...] = ()
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        _refuse_other_files(path)
        stamp = _stamp(path)
        folder = str(path.parent)
        proto = _read(path)
    elif isinstance(source, bytes):
        proto = _parse(source)
    elif hasattr(source, "SerializeToString"):
        proto = _copy(source)
        if proto is None:
            raise TypeError(f"a {type(source).__name__} is no ModelProto")
        if not has_structured_values(proto):
            sess_options = sess_options or _options_for(proto)
            source, weights = _hand_over_weights(proto, sess_options)
    else:
        raise TypeError(
            f"a path, bytes or a ModelProto is needed, not {type(source).__module__}."
            f"{type(source).__qualname__}"
        )
    lowered: Lowered | None = None
    if proto is not None:
        sess_options = sess_options or _options_for(proto)
        if has_structured_values(proto):
            whole = read_file(path, ParseOptions()) if path is not None else _copy(proto)
            lowered = lower_model(whole or proto, folder)
            _prepare_options(sess_options, folder)
            source, weights = _hand_over_weights(lowered.model, sess_options)
    session = runtime.InferenceSession(source, sess_options, providers, provider_options, **kwargs)
    return Model(session, proto, path, stamp, folder, weights, lowered)


def _stamp(path: Path) -> object:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev


def _folder_of(sess_options: Any) -> str:
    """Where the caller says that data of a model without a path lie; empty: here."""
    if sess_options is None:
        return ""
    try:
        return str(sess_options.get_session_config_entry(_FOLDER_ENTRY))
    except RuntimeError:  # there is no such entry
        return ""


def _copy(message: Any) -> ModelProto | None:
    """A message of ours, which nobody changes; payloads are shared."""
    if not isinstance(message, ModelProto):
        return _parse(message.SerializeToString())
    model = ModelProto()
    model.CopyFrom(message)
    return model


def _options_for(model: ModelProto) -> Any:
    """Options that do not warn of inputs with defaults, of which each would be named otherwise."""
    options = onnxruntime().SessionOptions()
    inputs = {value.name for value in model.graph.input}
    if any(tensor.name in inputs for tensor in model.graph.initializer):
        options.log_severity_level = _ERRORS_ONLY
    return options


def _refuse_other_files(path: Path) -> None:
    """Files that a user might take for a model; a snapshot even parses as one."""
    with open(path, "rb") as file:
        begin = file.read(64)
    what = ""
    if begin.startswith(b"GGUF"):
        what = "a GGUF file; models.from_gguf makes a model of it"
    elif _SNAPSHOT in begin:
        what = "a snapshot; load_state of the session of its model takes it"
    if what:
        raise CodedError("runtime.model", str(path), what)


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


def _prepare_options(sess_options: Any, folder: str) -> None:
    """For a lowered model, which goes to onnxruntime as bytes and needs our operators."""
    sess_options.register_custom_ops_library(get_library_path())
    if folder:
        sess_options.add_session_config_entry(_FOLDER_ENTRY, folder)


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
