"""What storing the KV cache of a real model in fewer bits does to the next token.

SmolLM2 reads a text page by page. Each policy's cache goes on by itself: the page being read is
dense, every page behind it is stored as the policy says, and attention sees it decoded. So it is
exactly what decoding token by token gives. Against a cache in float32, which reads the same pages:

    divergence  Kullback-Leibler, in nats, of the next token's distribution, the mean over all
                positions behind the first page (before, nothing is stored in fewer bits)
    agreement   how often the most probable next token is the same one
    bits        a value, all in: the bytes of the snapshot with its scales, headers and checksums

`--full` reads 1,024 tokens of each text under every policy; without it, the formats that people
choose between read 256.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import string
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from measuring import machine
from rich.console import Console
from rich.table import Table

from onnx_light import CachePolicy, PagedCache, snapshot
from onnx_light.cli.demo_model import find_model
from onnx_light.models import cached_model, tokenizer_from_gguf
from onnx_light.runtime import InferenceSession

Logits = npt.NDArray[np.float64]

PAGE = 64
_LICENSE = Path("/usr/share/common-licenses/GPL-3")

# Names and policies; the dense ones first, then from most bits to fewest.
COMMON = {
    "float16": "float16",
    "q8_0": "q8_0",
    **{name: str(policy) for name, policy in CachePolicy.presets.items()},
    "q4_0": "q4_0",
}
OTHERS = {
    "bfloat16": "bfloat16",
    "float8_e4m3fn": "float8_e4m3fn",
    "int8/token": "int8/token",
    "uint8": "key=uint8/channel value=uint8/token",
    "K u8, V q8_0": "key=uint8/channel value=q8_0",
    "K u8:32, V8:32": "key=uint8/channel:32 value=int8/token:32",
    "K u8, V4:32": "key=uint8/channel value=uint4/token:32",
    "K u8, V4:64": "key=uint8/channel value=uint4/token:64",
    "K q8_0, V q4_0": "key=q8_0 value=q4_0",
    "K8 V4": "key=int8/channel value=uint4/token:64",
    "K8:32 V8:32": "key=int8/channel:32 value=int8/token:32",
    "K4 V8": "key=uint4/channel:32 value=int8/token",
    "K4:16 V4:32": "key=uint4/channel:16 value=uint4/token:32",
    "K4:32 V4:32": "key=uint4/channel:32 value=uint4/token:32",
    "K4:64 V4:64": "key=uint4/channel:64 value=uint4/token:64",
    "int4 symmetric": "key=int4/channel:32 value=int4/token:64",
    "K8 V2:32": "key=int8/channel value=uint2/token:32",
    "K4 V2:16": "key=uint4/channel:32 value=uint2/token:16",
    "K4 V2:32": "key=uint4/channel:32 value=uint2/token:32",
    "K2:32 V2:32": "key=uint2/channel:32 value=uint2/token:32",
    "k8v4, sink": f"{CachePolicy.presets['k8v4']} sink_tokens=1",
    "int4, sink": f"{CachePolicy.presets['int4']} sink_tokens=1",
    "int4, recent 128": f"{CachePolicy.presets['int4']} recent_tokens=128",
}


@dataclasses.dataclass(frozen=True)
class Result:
    """What a policy did to one text; see the top of this file."""

    name: str
    policy: str
    text: str
    tokens: int
    bits: float
    payload_bits: float  # codes and scales alone
    divergence: float
    agreement: float


def texts() -> dict[str, str]:
    """The texts that a machine with Python has."""
    from pydoc_data.topics import topics

    found = {"Python": "\n".join(topics[name] for name in sorted(topics))}
    if _LICENSE.exists():
        found["GPL-3"] = _LICENSE.read_text()
    return found


class Reader:
    """Reads a text with the state stored under one policy."""

    def __init__(self, session: InferenceSession, policy: str) -> None:
        self._session = session
        empty = PagedCache(page_size=PAGE, policy=CachePolicy.parse(policy))
        self.caches = dict.fromkeys(session.state, empty)
        self.length = 0

    def read(self, tokens: Sequence[int]) -> Logits:
        """The log-probabilities of what follows each token, [tokens, vocabulary]."""
        if self.length == 0:
            self._session.reset()
        else:
            self._session.state = self.caches
        feed = {"input_ids": np.array([tokens]), "num_logits": np.array(len(tokens))}
        logits: Logits = self._session.run(["logits"], feed)[0][0].astype(np.float64)
        end = self.length + len(tokens)
        for name, present in self._session.state.items():
            assert isinstance(present, PagedCache)
            self.caches[name] = self.caches[name].append(
                *present.slice(self.length, end).to_arrays()
            )
        self.length = end
        logits -= logits.max(-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
        return logits


def measure(
    session: InferenceSession, text: str, tokens: Sequence[int], policies: dict[str, str]
) -> Iterator[Result]:
    """Lets all policies read the text side by side."""
    exact = Reader(session, "float32")
    readers = {name: Reader(session, policy) for name, policy in policies.items()}
    divergences: dict[str, list[float]] = {name: [] for name in policies}
    agreements: dict[str, list[float]] = {name: [] for name in policies}
    for first in range(0, len(tokens), PAGE):
        page = tokens[first : first + PAGE]
        expected = exact.read(page)
        weights = np.exp(expected)
        for name, reader in readers.items():
            found = reader.read(page)
            if first == 0:
                continue
            divergences[name] += (weights * (expected - found)).sum(-1).tolist()
            agreements[name] += (expected.argmax(-1) == found.argmax(-1)).tolist()
    for name, reader in readers.items():
        layers = reader.caches.values()
        shape = next(iter(layers))
        width = shape.key_width + shape.value_width
        values = len(layers) * shape.batch * shape.heads * len(tokens) * width
        yield Result(
            name,
            policies[name],
            text,
            len(tokens),
            len(snapshot.dumps(reader.caches, tokens=tokens)) * 8 / values,
            statistics.mean(cache.bits_per_value for cache in layers),
            statistics.mean(divergences[name]),
            statistics.mean(agreements[name]),
        )


def table(results: Sequence[Result]) -> Table:
    """One line for each policy, from most bits to fewest, with its letter in the plot."""
    names = list(dict.fromkeys(result.text for result in results))
    shown = Table("", "policy", "bits", box=None)
    for what in ("divergence", "agreement"):
        for name in names:
            shown.add_column(f"{what}, {name}", justify="right")
    for letter, policy, own in _by_policy(results):
        shown.add_row(
            letter,
            policy,
            f"{own[0].bits:.2f}",
            *[f"{result.divergence:.5f}" for result in own],
            *[f"{result.agreement:.1%}" for result in own],
        )
    return shown


def plot(results: Sequence[Result], width: int = 72, height: int = 24) -> str:
    """The mean divergence of the texts, 1e-6 or less at the bottom, against bits."""
    points = [
        (own[0].bits, math.log10(max(statistics.mean(r.divergence for r in own), 1e-6)), letter)
        for letter, _, own in _by_policy(results)
    ]
    most_bits = max(bits for bits, _, _ in points)
    low, high = (math.floor(min(y for _, y, _ in points)), math.ceil(max(y for _, y, _ in points)))
    rows = [[" "] * (width + 1) for _ in range(height + 1)]
    for bits, y, letter in points:
        row = round((high - y) / max(high - low, 1) * height)
        rows[row][round(bits / most_bits * width)] = letter
    lines = []
    for number, cells in enumerate(rows):
        power = high - number / height * (high - low)
        label = f"1e{round(power)}" if abs(power - round(power)) < (high - low) / height / 2 else ""
        lines.append(f"{label:>5} |{''.join(cells)}")
    axis = "".join(f"{most_bits * i / 8:<9.1f}" for i in range(9))
    return "\n".join([*lines, f"{'bits':>5} +{'-' * width}", f"{'':7}{axis}".rstrip()])


def _by_policy(results: Sequence[Result]) -> Iterator[tuple[str, str, list[Result]]]:
    """A letter, the name and the results of each policy, from most bits to fewest."""
    names = dict.fromkeys(item.name for item in sorted(results, key=lambda item: -item.bits))
    for letter, name in zip(string.ascii_letters, names, strict=False):
        yield letter, name, [result for result in results if result.name == name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a GGUF file (default: SmolLM2-135M)")
    parser.add_argument("--full", action="store_true", help="all policies, 1,024 tokens")
    parser.add_argument("--tokens", type=int, help="of each text")
    parser.add_argument("--policy", action="append", help="only these, may be given several times")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there, too")
    options = parser.parse_args()
    gguf = find_model(options.model)
    tokenizer = tokenizer_from_gguf(gguf)
    session = InferenceSession(str(cached_model(gguf)))
    policies = COMMON | OTHERS if options.full else COMMON
    if options.policy:
        policies = {text: text for text in options.policy}
    count = options.tokens or (1024 if options.full else 256)
    results: list[Result] = []
    for name, text in texts().items():
        tokens = tokenizer.encode(text[: 20 * count]).ids[:count]
        results += measure(session, name, tokens, policies)
    Console(width=110, highlight=False).print(table(results), plot(results), sep="\n\n")
    if options.json is not None:
        rows = [dataclasses.asdict(result) for result in results]
        data = {"machine": machine(), "page": PAGE, "results": rows}
        options.json.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
