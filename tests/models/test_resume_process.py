"""A saved state goes on in a new process with the very bits of a session that never stopped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from gguf_samples import SMALL, write_model

from onnx_light import snapshot
from onnx_light.models import from_gguf
from onnx_light.runtime import InferenceSession

# Around a page's end (64 tokens), whole pages, and many of them.
LENGTHS = [1, 63, 64, 65, 256, 1000]
MORE = [3, 1, 4]  # how many tokens go on, one run each

GO_ON = """
import sys
import numpy as np
from onnx_light.models import from_gguf
from onnx_light.runtime import InferenceSession

model, attention, folder, *lengths = sys.argv[1:]
for length in lengths:
    session = InferenceSession(from_gguf(model, attention=attention))
    session.load_state(f"{folder}/{length}.kvcache")
    results = {"tokens": session.tokens}
    for run, ids in np.load(f"{folder}/more.npz").items():
        feed = {"input_ids": ids, "num_logits": np.array(ids.size)}
        [results[run]] = session.run(["logits"], feed)
    np.savez(f"{folder}/{length}.npz", **results)
"""


@pytest.mark.parametrize("attention", ["standard", "paged"])
def test_small_model(attention: Literal["standard", "paged"], tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", SMALL | {"context": 1200})
    resume_everywhere(path, attention, SMALL["vocabulary"], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("attention", ["standard", "paged"])
def test_real_model(smollm: Path, attention: Literal["standard", "paged"], tmp_path: Path) -> None:
    resume_everywhere(smollm, attention, 40_000, tmp_path)


def resume_everywhere(
    path: Path, attention: Literal["standard", "paged"], vocabulary: int, folder: Path
) -> None:
    """Saves after each of LENGTHS, then goes on here and in another process, in the same runs."""
    ids = np.random.default_rng(7).integers(0, vocabulary, (1, LENGTHS[-1] + sum(MORE)))
    more = np.split(ids[:, LENGTHS[-1] :], np.cumsum(MORE)[:-1], axis=1)
    named: dict[str, Any] = {f"run {n}": run for n, run in enumerate(more)}
    np.savez(folder / "more.npz", **named)
    session = InferenceSession(from_gguf(path, attention=attention))
    expected: dict[int, list[Any]] = {}
    for start, length in zip([0, *LENGTHS], LENGTHS, strict=False):
        session.run(["logits"], {"input_ids": ids[:, start:length]})
        session.save_state(folder / f"{length}.kvcache")
        goes_on = session.fork()
        expected[length] = [
            goes_on.run(["logits"], {"input_ids": run, "num_logits": np.array(run.size)})[0]
            for run in more
        ]
    arguments = [str(path), attention, str(folder), *map(str, LENGTHS)]
    subprocess.run([sys.executable, "-c", GO_ON, *arguments], check=True)
    for length in LENGTHS:
        with snapshot.open(folder / f"{length}.kvcache", verify="full") as file:
            assert len(file) == length
        results = np.load(folder / f"{length}.npz")
        assert results["tokens"].tolist() == ids[0, :length].tolist()
        for n, logits in enumerate(expected[length]):
            assert results[f"run {n}"].tobytes() == logits.tobytes(), (length, n)
