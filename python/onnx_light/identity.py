"""Which model made a cache."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from onnx_light.errors import CodedError

PREFIX = "onnx_light.identity."
"""What the metadata keys of a model's identity begin with, in models and snapshots."""

_NOT_COMPARED = ("producer", "extra")


@dataclasses.dataclass(frozen=True)
class ModelIdentity:
    """What must be equal for a cache of one model to be used by another.

    An empty field says nothing and is not compared.

    Attributes:
        architecture: such as ``llama``.
        weights: ``sha256:`` and a digest over all tensors.
        revision: of the weights, where they come from.
        adapters: those that were applied to the weights, in order.
        tokenizer: ``sha256:`` and a digest.
        rope: how positions were turned into rotations.
        key_layout: which numbers of a key are rotated together: ``half``, ``interleaved``,
            ``none``.
        context: tokens that the model was configured for; 0 says nothing.
        shard: which part of the model, where it is split.
        dtype: of the computation.
        salt: keeps caches apart that must not be mixed.
        producer: the program. Never compared.
        extra: anything else, as text by name. Never compared.
    """

    architecture: str = ""
    weights: str = ""
    revision: str = ""
    adapters: tuple[str, ...] = ()
    tokenizer: str = ""
    rope: str = ""
    key_layout: str = ""
    context: int = 0
    shard: str = ""
    dtype: str = ""
    salt: str = ""
    producer: str = ""
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check_field(field.name, getattr(self, field.name))
        object.__setattr__(self, "adapters", tuple(self.adapters))
        object.__setattr__(self, "extra", dict(self.extra))

    def __hash__(self) -> int:
        return hash(tuple(self.to_metadata().items()))

    def check(self, found: ModelIdentity) -> None:
        """Compares what both give.

        Raises:
            CodedError: ``snapshot.identity``, with the field as path, if a field differs.
        """
        for field in dataclasses.fields(self):
            name = field.name
            ours, theirs = getattr(self, name), getattr(found, name)
            if name not in _NOT_COMPARED and ours and theirs and ours != theirs:
                raise CodedError(
                    "snapshot.identity",
                    name,
                    f"the cache was made by another model: {name} is {theirs!r}, "
                    f"{ours!r} is expected",
                )

    def to_metadata(self) -> dict[str, str]:
        """The fields that say something, as text by name: numbers in decimal, the rest as JSON."""
        result = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value:
                result[field.name] = value if isinstance(value, str) else _json(value)
        return result

    @classmethod
    def from_metadata(cls, fields: Mapping[str, str]) -> ModelIdentity:
        """The identity that `to_metadata` wrote. Fields that a later version added are left out.

        Raises:
            CodedError: ``identity.value`` for a text that is no value of its field.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: _value(name, text) for name, text in fields.items() if name in known})

    @classmethod
    def from_onnx(cls, path: str | os.PathLike[str]) -> ModelIdentity:
        """The identity of an ONNX model.

        What the model's metadata say under ``onnx_light.identity.`` holds, as of a converted
        model. If `weights` is not among it, it is computed from the model's tensors, also those in
        other files, and kept in the user's cache folder.

        Raises:
            ParseError: the file is no model.
            CodedError: ``external.*`` for data in other files that is refused;
                ``identity.value``.
            OSError: a file cannot be read.
        """
        from onnx_light.models.cache_folder import kept_digests
        from onnx_light.onnx import FileLoadMode, ModelProto, ParseOptions
        from onnx_light.weights_digest import data_files, weights_digest

        model = ModelProto()
        model.ParseFromFile(path, ParseOptions(no_copy=True, file_load_mode=FileLoadMode.MMAP))
        fields = identity_fields((entry.key, entry.value) for entry in model.metadata_props)
        if "weights" not in fields:
            folder = os.path.dirname(os.fspath(path))
            fields |= kept_digests(
                [path, *data_files(model, folder)],
                {"weights"},
                lambda: {"weights": weights_digest(model, folder)},
            )
        return cls.from_metadata(fields)

    @classmethod
    def from_gguf(cls, path: str | os.PathLike[str]) -> ModelIdentity:
        """The identity of the model in a GGUF file, which needs the extra ``models``.

        Its digests are kept in the user's cache folder.

        Raises:
            CodedError: the file is no GGUF file, or of an architecture that is not supported.
            OSError: the file cannot be read.
        """
        from onnx_light.models.gguf_identity import gguf_identity

        return cls.from_metadata(gguf_identity(path))


def identity_fields(metadata: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The fields of the identity among a model's metadata, as text by name."""
    return {key.removeprefix(PREFIX): text for key, text in metadata if key.startswith(PREFIX)}


def _check_field(name: str, value: object) -> None:
    wanted, fits = "a str", isinstance(value, str)
    if name == "context":
        wanted = "an int of 0 or more"
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    elif name == "adapters":
        wanted = "a sequence of str"
        fits = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    elif name == "extra":
        wanted = "a mapping with str as keys"
        fits = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    if not fits:
        raise TypeError(f"{name}: {wanted} is needed, not {value!r}")


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _value(name: str, text: str) -> Any:
    if name not in ("context", "adapters", "extra"):
        return text
    try:
        value = json.loads(text)
        _check_field(name, value)
    except (TypeError, ValueError, RecursionError) as error:
        raise CodedError("identity.value", PREFIX + name, str(error)) from None
    return value
