"""The demo's steps for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from onnx_light.cli.demo import (
    ForkStep,
    ModelStep,
    ReadStep,
    RefusalStep,
    ResumeStep,
    SaveStep,
    Step,
)
from onnx_light.cli.output import format_size, format_time, printable

_SHOWN = 90


def render(step: Step) -> Iterator[RenderableType]:
    """One step, under its title."""
    if isinstance(step, ModelStep):
        yield from _model(step)
    elif isinstance(step, ReadStep):
        yield from _read(step)
    elif isinstance(step, SaveStep):
        yield from _save(step)
    elif isinstance(step, ResumeStep):
        yield from _resume(step)
    elif isinstance(step, ForkStep):
        yield from _forks(step)
    else:
        yield from _refusals(step)


def render_verdict(ok: bool, seconds: float) -> RenderableType:
    """The last line."""
    verdict = ("all checks hold", "bold green") if ok else ("A CHECK FAILED", "bold red")
    return Text.assemble("\n", verdict, f" ({seconds:.1f} s)")


def title(text: str) -> RenderableType:
    """The line above a step."""
    return Rule(Text(text, style="bold"), align="left", characters="-", style="dim")


def yes(good: bool) -> Text:
    """What a check found."""
    return Text("yes", style="green") if good else Text("NO", style="bold red")


def _facts(*rows: tuple[str, str | Text]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, text in rows:
        table.add_row(name, text)
    return table


def _model(step: ModelStep) -> Iterator[RenderableType]:
    yield title("1. A language model from its GGUF file, in ONNX Runtime")
    yield _facts(
        ("model", f"{printable(step.gguf)}, {format_size(step.gguf_nbytes)}"),
        (
            "as ONNX",
            f"{format_size(step.onnx_nbytes)} in float32, from the file or the user's cache folder "
            f"in {format_time(step.convert_seconds)}",
        ),
        ("session", f"ready in {format_time(step.session_seconds)}"),
        ("its KV cache", f"{step.layers} layers, keys and values of {step.heads} x {step.width}"),
    )


def _read(step: ReadStep) -> Iterator[RenderableType]:
    yield title("2. It reads a document and answers questions about it")
    speed = f"{step.tokens / step.seconds:.0f} tokens a second"
    yield _facts(
        ("document", f"{printable(step.document)}: {step.words:,} words, {step.tokens:,} tokens"),
        ("reading", f"{format_time(step.seconds)}, {speed}"),
        *_answers(step.questions, step.texts),
    )


def _answers(questions: list[str], texts: list[str]) -> Iterator[tuple[str, str]]:
    for question, text in zip(questions, texts, strict=True):
        yield "question", _line(question)
        yield "answer", _line(text)


def _line(text: str) -> str:
    return printable(" ".join(text.split()), _SHOWN)


def _save(step: SaveStep) -> Iterator[RenderableType]:
    yield title("3. Its cache goes into one file")
    speed = f"{step.nbytes / step.seconds / 1e9:.2f} GB/s"
    yield _facts(
        ("file", f"document.kvcache, {format_size(step.nbytes)}, {step.pages:,} pages"),
        (
            "saving",
            f"{format_time(step.seconds)}, {speed}, with the checksums, on the disk; "
            f"the same bytes by plain calls: {format_time(step.write_seconds)}",
        ),
        ("every bit kept", yes(step.equal)),
    )


def _resume(step: ResumeStep) -> Iterator[RenderableType]:
    yield title("4. Another process opens the file and goes on")
    first = step.files[0]
    yield _facts(
        ("process", f"Python and the model ready in {format_time(step.start_seconds)}"),
        ("opening", f"{format_time(step.open_seconds)}: mapped, no page is touched"),
        ("the state", f"in the session in {format_time(first.load_seconds)}, every page verified"),
        (
            "its memory",
            f"{_memory(first.load_nbytes)} taken: attention reads the pages in the mapped file",
        ),
        *(("answer", _line(text)) for text in first.texts),
        ("same tokens", yes(step.same_tokens)),
    )
    yield _comparison(step)
    yield Text(
        "first token: from nothing, or from the file, to the first token of an answer; equal: "
        "tokens of the\nanswers until they differ; divergence: of the next token's distribution, "
        "in nats",
        style="dim",
    )


def _memory(nbytes: int) -> str:
    """The system counts in pages and with delay: less than 1 MB says nothing."""
    return format_size(nbytes) if nbytes >= 1_000_000 else "under 1 MB"


def _comparison(step: ResumeStep) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    names = ("", "file", "bits a value", "first token", "", "equal", "divergence")
    for i, name in enumerate(names):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    again = format_time(step.recompute_seconds)
    table.add_row("document read again", "", "", again, "1x", "", "")
    for file in step.files:
        ratio = f"{step.recompute_seconds / file.seconds:.0f}x sooner"
        table.add_row(
            file.policy or "cache from the file",
            format_size(file.nbytes),
            f"{file.bits_per_value:.2f}",
            format_time(file.seconds),
            Text(ratio, style="bold green"),
            f"{file.equal_tokens}/{file.tokens}",
            f"{file.divergence:.5f}" if file.policy else "0",
        )
    return table


def _forks(step: ForkStep) -> Iterator[RenderableType]:
    yield title(f"5. {step.count} continuations of that one document, side by side")
    yield _facts(
        (
            "forks",
            f"{step.count}, each goes on by {step.new_tokens} tokens of its own, "
            f"{format_time(step.seconds)} for all",
        ),
        (
            "memory of all",
            f"{format_size(step.nbytes)} beyond the document, "
            f"{format_size(step.nbytes / step.count)} each: an open page in each layer",
        ),
        (f"{step.count} copies", f"would take {format_size(step.copies_nbytes)}"),
    )


def _refusals(step: RefusalStep) -> Iterator[RenderableType]:
    yield title("6. Files that must not be taken")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("file", "what the session says", "state kept"):
        table.add_column(name)
    for refusal in step.refusals:
        said = Text.assemble((refusal.code, "red"), "\n", printable(refusal.message))
        refused = said if refusal.code else Text("NOT REFUSED", "bold red")
        table.add_row(refusal.what, refused, yes(refusal.unchanged))
    yield table
