"""A snapshot written again with its pages in other formats, and what that costs and saves."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from onnx_light import CachePolicy, PagedCache, snapshot
from onnx_light.cli.cache_policy import read_policy
from onnx_light.cli.output import format_size, in_file, printable
from onnx_light.errors import CodedError


@dataclass(frozen=True)
class Quantization:
    """What became of a file.

    Attributes:
        policy: how pages are stored now; a partial last page, and the first and last tokens that
            the policy keeps plain, are as they were.
        nbytes: of the old and of the new file.
        bits_per_value: of all bytes of the old and of the new file for each key and value.
        key_rms_error, value_rms_error: the root of the mean squared difference between old and new
            numbers of all layers, over the root of the mean of the old ones' squares.
    """

    policy: str
    nbytes: tuple[int, int]
    bits_per_value: tuple[float, float]
    key_rms_error: float
    value_rms_error: float

    def to_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return dataclasses.asdict(self)


def quantize_file(
    source: str, target: str, policy: str, progress: Callable[[int, int], object]
) -> Quantization:
    """Writes the new file and compares it with the old one.

    Args:
        source: a file; ``-`` is standard input.

    Raises:
        CodedError: ``cli.usage``: the target is ``-``; as `snapshot.quantize`, with the source's
            name in the path.
        OSError: as `snapshot.quantize`.
    """
    parsed = read_policy(policy)
    if target == "-":
        message = "the result goes to standard output, so the snapshot needs a file"
        raise CodedError("cli.usage", "DST", message)
    data = sys.stdin.buffer.read() if source == "-" else source
    try:
        return _quantize(data, target, parsed, progress)
    except CodedError as error:
        raise error if error.path == target else in_file(error, source) from None


def _quantize(
    source: bytes | str, target: str, policy: CachePolicy, progress: Callable[[int, int], object]
) -> Quantization:
    with snapshot.open(source) as opened:  # stays mapped, also if the target takes its place
        old = opened.caches
        old_nbytes = len(source) if isinstance(source, bytes) else os.stat(source).st_size
        report = snapshot.quantize(source, target, policy, progress=progress)
        with snapshot.open(target) as written:
            new = written.caches
            errors = [_relative_error(old, new, side) for side in ("key", "value")]
            bits = (bits_per_value(old_nbytes, old), bits_per_value(report.nbytes, new))
    return Quantization(str(policy), (old_nbytes, report.nbytes), bits, *errors)


def bits_per_value(nbytes: int, caches: Mapping[str, PagedCache]) -> float:
    """All bits of a file for each key and value in it: scales, headers and ids are in."""
    values = sum(
        cache.batch * cache.heads * len(cache) * (cache.key_width + cache.value_width)
        for cache in caches.values()
    )
    return nbytes * 8 / values if values else 0.0


def _relative_error(
    old: Mapping[str, PagedCache], new: Mapping[str, PagedCache], side: str
) -> float:
    error = scale = 0.0
    for name, cache in old.items():
        if len(cache) == 0:
            continue
        before = getattr(cache, f"{side}_array")("float32").astype(float)
        after = getattr(new[name], f"{side}_array")("float32").astype(float)
        error += float(((after - before) ** 2).sum())
        scale += float((before**2).sum())
    return math.sqrt(error / scale) if scale else 0.0


def render(source: str, target: str, result: Quantization) -> Iterator[RenderableType]:
    """Both files side by side, and the error between them."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, name in enumerate(("file", "size", "bits a value, all in", "")):
        table.add_column(name, justify="right" if number else "left")
    ratio = result.nbytes[0] / result.nbytes[1]
    for name, nbytes, bits, text in (
        (source, result.nbytes[0], result.bits_per_value[0], ""),
        (target, result.nbytes[1], result.bits_per_value[1], f"{ratio:.2f}x smaller"),
    ):
        table.add_row(printable(name), format_size(nbytes), f"{bits:.2f}", text)
    yield table
    yield (
        f"{result.policy}: relative RMS error of keys {result.key_rms_error:.2%}, "
        f"of values {result.value_rms_error:.2%}"
    )
