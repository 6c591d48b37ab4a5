"""What commands print: results on standard output, everything else on standard error."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import Progress, TaskID
from rich.text import Text

from onnx_light.errors import CodedError

# Where output goes to a file or a pipe there is no terminal whose width would count.
_PIPE_WIDTH = 120
_UNITS = ("kB", "MB", "GB", "TB")


class Output:
    """Both streams, and how much the user wants to hear.

    Colours and widths are those of the terminal; a pipe or NO_COLOR gets plain text.

    Args:
        verbosity: -1 says nothing but errors, answers and JSON, 0 is usual, 1 says what is done.
    """

    def __init__(self, verbosity: int = 0) -> None:
        self.verbosity = verbosity
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # names in files may not fit the locale
                stream.reconfigure(errors="backslashreplace")
        self._out = _console(sys.stdout.isatty())
        self._err = _console(sys.stderr.isatty(), stderr=True)

    def show(self, *renderables: RenderableType) -> None:
        """Prints a part of the result for people."""
        if self.verbosity >= 0:
            for renderable in renderables:
                self._out.print(renderable)

    def show_json(self, data: Any) -> None:
        """Prints the whole result for programs."""
        sys.stdout.write(json.dumps(data, indent=2) + "\n")
        sys.stdout.flush()

    def write(self, text: str) -> None:
        """Prints a piece of an answer at once; on a terminal its control characters as escapes."""
        if sys.stdout.isatty():
            text = "".join(c if c in "\n\t" else printable(c) for c in text)
        sys.stdout.write(text)
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Says something about the result on standard error."""
        if self.verbosity >= 0:
            self._err.print(Text(text, style="dim"))

    def log(self, text: str) -> None:
        """Says what is being done, if the user asked to know."""
        if self.verbosity > 0:
            self._err.print(Text(text, style="dim"))

    @contextlib.contextmanager
    def progress(self) -> Iterator[Callable[[str, int, int], None]]:
        """A bar on a terminal while something long is done, nothing elsewhere.

        Yields:
            What is to be called with the text, done and total units; a bar goes when it is done.
        """
        shown = self.verbosity >= 0 and self._err.is_terminal
        with Progress(console=self._err, transient=True, disable=not shown) as bars:
            tasks: dict[str, TaskID] = {}

            def advance(text: str, done: int, total: int) -> None:
                if text not in tasks:
                    if done >= total:
                        return  # it was done before anybody could have seen a bar
                    tasks[text] = bars.add_task(text, total=total)
                bars.update(tasks[text], completed=done, total=total, visible=done < total)

            yield advance

    def error(self, error: BaseException) -> None:
        """Says in one line what went wrong."""
        self._err.print(Text.assemble(("onnx-light: ", "bold red"), describe(error)))


class _Console(Console):
    def on_broken_pipe(self) -> None:  # rich would exit with a status that means damage here
        raise BrokenPipeError


def _console(is_terminal: bool, stderr: bool = False) -> Console:
    width = None if is_terminal else _PIPE_WIDTH
    return _Console(
        stderr=stderr,
        width=width,
        highlight=False,
        soft_wrap=stderr,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )


def drop_output() -> None:
    """Lets standard output go nowhere: whoever read it has seen enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def in_file(error: CodedError, file: str | os.PathLike[str]) -> CodedError:
    """The error with the name of the file that it is about at the begin of its path."""
    name = os.fspath(file)
    if error.path == name or error.path.startswith(f"{name}: "):
        return error
    return CodedError(error.code, f"{name}: {error.path}" if error.path else name, error.message)


def describe(error: BaseException) -> str:
    """An error in one line, with its stable code where it has one."""
    if isinstance(error, CodedError):
        return f"{printable(str(error))} [{error.code}]"
    if isinstance(error, OSError) and error.strerror:
        place = f"{printable(str(error.filename))}: " if error.filename is not None else ""
        return place + error.strerror
    return printable(str(error)) or type(error).__name__


def printable(text: str, limit: int = 0) -> str:
    """Text from a file, fit for a terminal: control characters as escapes, cut to `limit`."""
    if limit and len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def format_count(number: int, what: str) -> str:
    """A number of things: ``1 page``, ``2 pages``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def format_size(nbytes: float) -> str:
    """A number of bytes as people read it: ``17 B``, ``1.25 MB``; 1 kB is 1000 bytes."""
    if nbytes < 1000:
        return f"{nbytes:.0f} B"
    size = float(nbytes)
    for unit in _UNITS:
        size /= 1000
        if size < 999.5 or unit == _UNITS[-1]:
            break
    return f"{size:.{max(0, 2 - len(str(int(size))) + 1)}f} {unit}"


def format_time(seconds: float) -> str:
    """A duration with three digits, in microseconds, milliseconds or seconds."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 999.5:
            value = seconds * factor
            return f"{value:.{max(0, 2 - len(str(int(value))) + 1)}f} {unit}"
    return f"{seconds:.2f} s"
