"""The check of a whole snapshot file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from onnx_light import snapshot
from onnx_light.cli.output import format_count, format_size, in_file, printable
from onnx_light.errors import CodedError


def verify_file(file: str, progress: Callable[[int, int], object]) -> snapshot.Report:
    """Checks a file, or standard input if that is ``-``.

    Raises:
        CodedError: what `snapshot.verify` raises, with the file's name as the path.
        OSError: the file cannot be read.
    """
    try:
        return snapshot.verify(sys.stdin.buffer.read() if file == "-" else file, progress)
    except CodedError as error:
        raise in_file(error, file) from None


def render(file: str, report: snapshot.Report) -> Iterator[RenderableType]:
    """A table of the problems, and a summary line."""
    if report.problems:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("code", "layer", "page", "offset", "problem"):
            table.add_column(name, justify="right" if name in ("page", "offset") else "left")
        for problem in report.problems:
            where = "" if problem.layer else f"{problem.path}: "
            table.add_row(
                Text(problem.code, style="red"),
                Text(printable(problem.layer) or "-", style="cyan"),
                "-" if problem.page < 0 else str(problem.page),
                str(problem.offset),
                Text(printable(where + problem.message)),
            )
        yield table
    line = f"{printable(file)}: {format_count(report.length, 'token')}, "
    line += f"{format_count(report.records, 'record')}, "
    line += f"{format_size(report.bytes_checked)} checked: "
    if report.ok:
        yield Text.assemble(line, ("no problem", "green"))
    else:
        yield Text.assemble(line, (format_count(len(report.problems), "problem"), "bold red"))
