"""The demo's report for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from onnx_light.cli import inspect
from onnx_light.cli.demo_damage import Failure
from onnx_light.cli.demo_messages import HEADS, LAYERS, PAGE_SIZE, TOKENS, WIDTH, Fork, Report, Way
from onnx_light.cli.demo_timing import RUNS, Comparison
from onnx_light.cli.demo_view import render_verdict, title, yes
from onnx_light.cli.output import format_size, format_time, printable


def render(report: Report) -> Iterator[RenderableType]:
    """The parts of the report, in the order of the steps."""
    yield title("1. A model with a KV cache inside")
    yield Text(
        f"{LAYERS} layers of {HEADS} heads x {TOKENS} tokens x {WIDTH} in float16, "
        f"in pages of {PAGE_SIZE} tokens. The first layer:"
    )
    yield Text(report.cache)
    yield from inspect.render(report.tree)
    yield title("2. Written in every way, and read back (one run each)")
    yield _ways(report.ways)
    yield title("3. Two continuations of one cache")
    yield _fork(report.fork)
    yield title(f"4. Time beside onnx {report.onnx_version}".rstrip())
    yield from _comparisons(report)
    yield title("5. Files that are wrong")
    yield _failures(report.failures)
    yield render_verdict(report.ok, report.seconds)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    return table


def _ways(ways: list[Way]) -> Table:
    table = _table("way", "bytes", "write", "read back", "every bit equal")
    for way in ways:
        table.add_row(
            way.name,
            f"{way.nbytes:,}",
            format_time(way.write_seconds),
            format_time(way.read_seconds),
            yes(way.equal),
        )
    return table


def _fork(fork: Fork) -> Text:
    past, first, second = fork.tokens
    return Text.assemble(
        f"past has {past} tokens; past.append(k, v) twice gives two caches of {first} and {second} "
        f"in {format_time(fork.seconds)} each.\nThey share the finished pages; written apart they "
        f"would take {format_size(sum(fork.separate_nbytes))}. The past is unchanged: ",
        yes(fork.unchanged),
    )


def _comparisons(report: Report) -> Iterator[RenderableType]:
    if not report.comparisons:
        yield Text("onnx is not installed: nothing to compare with (pip install onnx)", "yellow")
        return
    table = _table("task", "onnx_light", "onnx", "")
    for comparison in report.comparisons:
        table.add_row(
            comparison.task,
            format_time(comparison.seconds),
            format_time(comparison.onnx_seconds),
            _verdict(comparison),
        )
    yield table
    yield Text.assemble(
        f"Medians of {RUNS} runs in turn, after one to warm up. "
        "onnx parses our model and writes the same bytes back: ",
        yes(bool(report.same_bytes)),
    )


def _verdict(comparison: Comparison) -> Text:
    if comparison.ratio >= 1:
        return Text(f"{comparison.ratio:.1f}x faster", style="green")
    return Text(f"{1 / comparison.ratio:.1f}x slower", style="red")


def _failures(failures: list[Failure]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("input", "error"):
        table.add_column(name)
    for failure in failures:
        error = Text.assemble(
            (failure.code, "red"), " ", (failure.path, "cyan"), "\n", printable(failure.message)
        )
        table.add_row(failure.what, error if failure.refused else Text("NOT REFUSED", "bold red"))
    return table
