"""Which model a session runs, as its metadata say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onnx_light.errors import CodedError

if TYPE_CHECKING:
    from onnx_light import ModelIdentity

_PREFIX = "onnx_light.identity."


def model_identity(metadata: Mapping[str, str]) -> ModelIdentity | None:
    """The identity in a model's metadata_props; None if there is none.

    Raises:
        CodedError: ``runtime.identity``: a field that is not one, or cannot be read.
    """
    from onnx_light import ModelIdentity

    fields: dict[str, Any] = {
        key.removeprefix(_PREFIX): text for key, text in metadata.items() if key.startswith(_PREFIX)
    }
    if not fields:
        return None
    for field, text in fields.items():
        try:
            if field == "context":
                fields[field] = int(text)
            elif field in ("adapters", "extra"):
                value = json.loads(text)
                fields[field] = tuple(value) if field == "adapters" else dict(value)
        except (TypeError, ValueError) as error:
            raise CodedError("runtime.identity", _PREFIX + field, str(error)) from error
    try:
        return ModelIdentity(**fields)
    except TypeError as error:
        raise CodedError("runtime.identity", "metadata_props", str(error)) from error
