"""A session over plain onnxruntime that keeps the state of a converted model between runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime


class StandardSession:
    """`run`, `tokens` and `truncate` as onnx_light.runtime.InferenceSession has them."""

    def __init__(self, model: bytes | str) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        self.inner = onnxruntime.InferenceSession(model, options)
        self.outputs = [output.name for output in self.inner.get_outputs()]
        self.shapes = {
            item.name: [size if isinstance(size, int) else 0 for size in item.shape]
            for item in self.inner.get_inputs()
            if item.name.startswith("past_key_values.")
        }
        self.fed: list[int] = []
        self.reset()

    def reset(self) -> None:
        self.state = {name: np.zeros(shape, np.float32) for name, shape in self.shapes.items()}
        self.tokens: list[int] = []

    def truncate(self, end: int) -> None:
        assert 0 <= end <= len(self.tokens)
        self.state = {name: value[:, :, :end] for name, value in self.state.items()}
        self.tokens = self.tokens[:end]

    def run(self, output_names: list[str], input_feed: dict[str, Any]) -> list[np.ndarray]:
        values = self.inner.run(self.outputs, {**input_feed, **self.state})
        results = dict(zip(self.outputs, values, strict=True))
        self.state = {
            name: results[name.replace("past_key_values.", "present.")] for name in self.state
        }
        ids = input_feed["input_ids"][0].tolist()
        self.fed.append(len(ids))
        self.tokens = [*self.tokens, *ids]
        return [results[name] for name in output_names]

    def logits(self, ids: Any, count: int) -> np.ndarray:
        """Logits [count, vocabulary] behind the last `count` ids."""
        feed = {"input_ids": np.array([list(ids)], np.int64), "num_logits": np.array(count)}
        return self.run(["logits"], feed)[0][0]
