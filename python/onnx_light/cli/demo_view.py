"""The demo's report for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from onnx_light.cli import inspect
from onnx_light.cli.demo import HEADS, LAYERS, PAGE_SIZE, TOKENS, WIDTH, Fork, Report, Way
from onnx_light.cli.demo_damage import Failure
from onnx_light.cli.demo_timing import RUNS, Comparison
from onnx_light.cli.output import format_size, format_time, printable


def render(report: Report) -> Iterator[RenderableType]:
    """The parts of the report, in the order of the steps."""
    yield _title("1. A model with a KV cache inside")
    yield Text(
        f"{LAYERS} layers of {HEADS} heads x {TOKENS} tokens x {WIDTH} in float16, "
        f"in pages of {PAGE_SIZE} tokens. The first layer:"
    )
    yield Text(report.cache)
    yield from inspect.render(report.tree)
    yield _title("2. Written in every way, and read back (one run each)")
    yield _ways(report.ways)
    yield _title("3. Two continuations of one cache")
    yield _fork(report.fork)
    yield _title("4. Time beside onnx " + report.onnx_version)
    yield from _comparisons(report)
    yield _title("5. Files that are wrong")
    yield _failures(report.failures)
    verdict = ("all checks hold", "bold green") if report.ok else ("A CHECK FAILED", "bold red")
    yield Text.assemble("\n", verdict, f" ({report.seconds:.1f} s)")


def _title(text: str) -> RenderableType:
    return Rule(Text(text.rstrip(), style="bold"), align="left", characters="-", style="dim")


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
            _yes(way.equal),
        )
    return table


def _fork(fork: Fork) -> Text:
    past, first, second = fork.tokens
    return Text.assemble(
        f"past has {past} tokens; past.append(k, v) twice gives two caches of {first} and {second} "
        f"in {format_time(fork.seconds)} each.\nThey share the finished pages; written apart they "
        f"would take {format_size(sum(fork.separate_nbytes))}. The past is unchanged: ",
        _yes(fork.unchanged),
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
        _yes(bool(report.same_bytes)),
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


def _yes(good: bool) -> Text:
    return Text("yes", style="green") if good else Text("NO", style="bold red")
