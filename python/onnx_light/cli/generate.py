"""Text from a model, with the state of an earlier run as the begin of the prompt."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_light.cli.cache_policy import check_formats, read_policy
from onnx_light.cli.decoder import (
    WEIGHTS,
    Decoder,
    open_prompt_cache,
    refusals_of,
    require_packages,
)
from onnx_light.cli.output import Output, format_count, format_size, format_time, in_file
from onnx_light.errors import CodedError

if TYPE_CHECKING:
    from onnx_light import CachePolicy, ModelIdentity
    from onnx_light.runtime import InferenceSession


@dataclass(frozen=True)
class Settings:
    """What the user wants; see the options of the command."""

    model: Path
    tokenizer: Path | None = None
    prompt: str | None = None
    prompt_file: str | None = None
    chat: bool = False
    system: str | None = None
    cache: Path | None = None
    read_only: bool = False
    policy: str | None = None
    weights: str = "float32"
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass
class Answer:
    """One answer and what it took.

    Attributes:
        prompt_tokens: in the whole prompt; `reused_tokens` of them were in the state already.
        tokens: the new ids.
        text: of them, up to a stop text.
        finish: ``stop`` at a token or text that ends it, ``length`` at --max-new-tokens,
            ``context`` where the model can hold no more.
        first_token_seconds: until the first token, for the most part the prompt.
        seconds: all of it.
    """

    prompt_tokens: int
    reused_tokens: int
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str = "length"
    first_token_seconds: float = 0.0
    seconds: float = 0.0


@dataclass
class Report:
    """All answers, and what happened around them.

    Attributes:
        model: the file.
        answers: one, or one for each line of a chat.
        load_seconds: until the model was ready, its prompt cache included.
        prompt_cache: the file; loaded_tokens that were in it, saved_tokens and saved_bytes after
            the last answer.
        policy: how pages are stored; None: as they came.
    """

    model: str
    prompt_cache: str | None
    policy: str | None
    loaded_tokens: int = 0
    saved_tokens: int = 0
    saved_bytes: int = 0
    load_seconds: float = 0.0
    answers: list[Answer] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class _StopText(Exception):  # noqa: N818  no error: the answer is complete
    """A stop text came."""


def run(settings: Settings, output: Output, *, streams: bool) -> Report:
    """Answers; refuses what cannot work before anything that takes long.

    Args:
        streams: whether the text goes to standard output while it is made.

    Raises:
        CodedError: options that do not go together, a model or prompt cache that cannot be used,
            a prompt longer than the context. OSError: a file cannot be read or written.
    """
    _check(settings)
    policy = None if settings.policy is None else read_policy(settings.policy)
    require_packages()
    begin = time.perf_counter()
    output.log(f"opening {settings.model}")
    decoder = Decoder(settings.model, settings.tokenizer, policy, settings.weights)
    conversation = _Conversation(settings, decoder)
    prompt = _read_prompt(settings)
    first = None if prompt is None else conversation.ask(prompt)
    identity = decoder.identity(output)
    if first is not None:
        _check_length(first, identity.context)
    report = Report(
        str(settings.model),
        None if settings.cache is None else str(settings.cache),
        None if policy is None else str(policy),
    )
    metadata = _open_cache(settings, policy, identity, report, output)
    session = decoder.session(output)
    if report.loaded_tokens:
        _load(settings.cache, session, identity)
    report.load_seconds = time.perf_counter() - begin
    asked = conversation.questions() if first is None else iter([first])
    for ids in asked:
        _check_length(ids, identity.context)
        with refusals_of(settings.model):
            answer = _answer(settings, decoder, session, ids, identity.context, output, streams)
        conversation.answered(answer.text)
        report.answers.append(answer)
        _note_answer(answer, output)
        if settings.cache is not None and not settings.read_only:
            _save(settings.cache, session, identity, metadata, report, output)
    return report


def _fail(option: str, message: str) -> CodedError:
    return CodedError("cli.usage", option, message)


def _check(settings: Settings) -> None:
    """Everything that the options alone tell."""
    if settings.prompt is not None and settings.prompt_file is not None:
        raise _fail("--prompt-file", "--prompt is given, too")
    given = settings.prompt is not None or settings.prompt_file is not None
    if not given and not settings.chat:
        raise _fail("--prompt", "a prompt is needed: --prompt, --prompt-file or --chat")
    if settings.system is not None and not settings.chat:
        raise _fail("--system", "only a chat has it: --chat")
    if settings.weights not in WEIGHTS:
        raise _fail("--weights", f"{settings.weights!r} is unknown; {' and '.join(WEIGHTS)} are")
    if not (math.isfinite(settings.temperature) and settings.temperature >= 0):
        raise _fail("--temperature", f"{settings.temperature}; 0 or more is needed")
    if not 0 < settings.top_p <= 1:
        raise _fail("--top-p", f"{settings.top_p}; a share above 0 and up to 1 is needed")
    if "" in settings.stop:
        raise _fail("--stop", "an empty text would end every answer")
    if settings.cache is None:
        if settings.read_only:
            raise _fail("--prompt-cache-ro", "--prompt-cache is needed with it")
        return
    folder = settings.cache.absolute().parent
    if not settings.read_only and not os.access(folder, os.W_OK | os.X_OK):
        what = "cannot be written" if folder.is_dir() else "is no folder"
        raise _fail("--prompt-cache", f"{folder} {what}")


def _text(data: bytes, place: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CodedError("cli.prompt", place, f"byte {error.start} is no UTF-8") from None


def _read_prompt(settings: Settings) -> str | None:
    if settings.prompt is not None:
        return _text(os.fsencode(settings.prompt), "--prompt")
    if settings.prompt_file is None:
        return None
    if settings.prompt_file == "-":
        return _text(sys.stdin.buffer.read(), "-")
    return _text(Path(settings.prompt_file).read_bytes(), settings.prompt_file)


class _Conversation:
    """From texts to the ids of the whole conversation so far."""

    def __init__(self, settings: Settings, decoder: Decoder) -> None:
        self._decoder = decoder
        self._chat = settings.chat
        self._messages: list[dict[str, str]] = []
        if settings.system is not None:
            self._messages.append({"role": "system", "content": settings.system})

    def ask(self, text: str) -> list[int]:
        """The prompt with this text as the user's last."""
        from onnx_light.models import render_chat

        if self._chat:
            self._messages.append({"role": "user", "content": text})
            text = render_chat(self._decoder.gguf, self._messages)
        ids: list[int] = self._decoder.tokenizer.encode(text, add_special_tokens=not self._chat).ids
        if not ids:
            raise CodedError("cli.prompt", "--prompt", "it has no tokens")
        return ids

    def answered(self, text: str) -> None:
        self._messages.append({"role": "assistant", "content": text})

    def questions(self) -> Iterator[list[int]]:
        """The prompt for each line of standard input that is not empty."""
        on_a_terminal = sys.stdin.isatty()
        while True:
            if on_a_terminal:
                print("> ", end="", file=sys.stderr, flush=True)
            line = sys.stdin.buffer.readline()
            if not line:
                if on_a_terminal:
                    print(file=sys.stderr)  # whatever comes next begins a line
                return
            text = _text(line, "-").strip()
            if text:
                yield self.ask(text)


def _check_length(ids: list[int], context: int) -> None:
    if context and len(ids) > context:
        message = f"it has {len(ids)} tokens, the model's context {context}"
        raise CodedError("cli.context", "--prompt", message)


def _open_cache(
    settings: Settings,
    policy: CachePolicy | None,
    identity: ModelIdentity,
    report: Report,
    output: Output,
) -> dict[str, str]:
    """Checks the prompt cache, if there is one, and returns the user's entries in it."""
    path = settings.cache
    if path is None or not (settings.read_only or path.exists()):
        return {}
    output.log(f"checking {path}")
    with open_prompt_cache(path, identity) as opened:
        if policy is not None:
            check_formats(path, opened.caches, policy)
        report.loaded_tokens = opened.end
        return opened.metadata


def _load(path: Path | None, session: InferenceSession, identity: ModelIdentity) -> None:
    try:
        session.load_state(path, expect=identity)
    except CodedError as error:
        raise in_file(error, str(path)) from None


def _answer(
    settings: Settings,
    decoder: Decoder,
    session: InferenceSession,
    ids: list[int],
    context: int,
    output: Output,
    streams: bool,
) -> Answer:
    from onnx_light.models import TextStream
    from onnx_light.models.generate import common_prefix, generate

    held = [] if session.tokens is None else session.tokens.tolist()
    answer = Answer(len(ids), common_prefix(held, ids[:-1]))
    text = TextStream(decoder.tokenizer, settings.stop)
    begin = time.perf_counter()

    def emit(piece: str) -> None:
        answer.text += piece
        if streams and piece:
            output.write(piece)

    def on_token(token: int) -> None:
        if not answer.tokens:
            answer.first_token_seconds = time.perf_counter() - begin
        answer.tokens.append(token)
        emit(text.push(token))
        if text.stopped:
            raise _StopText

    room = context - len(ids) + 1 if context else settings.max_new_tokens
    most = min(settings.max_new_tokens, room)
    try:
        # Of a prompt that is only read, the token after it is computed and dropped.
        made = generate(
            session,
            ids,
            max_new_tokens=max(most, 1),
            temperature=settings.temperature,
            top_p=settings.top_p,
            seed=settings.seed,
            stop=decoder.ends,
            on_token=on_token if most else None,
        )
        if most and len(made) < most:
            answer.finish = "stop"
        elif most < settings.max_new_tokens:
            answer.finish = "context"
    except _StopText:
        answer.finish = "stop"
    finally:
        emit(text.finish())
        if streams and answer.tokens:
            output.write("\n")
    answer.seconds = time.perf_counter() - begin
    return answer


def _note_answer(answer: Answer, output: Output) -> None:
    read = answer.prompt_tokens - answer.reused_tokens
    line = f"prompt of {format_count(answer.prompt_tokens, 'token')}: "
    line += f"{answer.reused_tokens} reused, {read} read"
    if answer.tokens:
        line += f", first token after {format_time(answer.first_token_seconds)}"
    output.note(f"{line}; {len(answer.tokens)} new in {format_time(answer.seconds)}")


def _save(
    path: Path,
    session: InferenceSession,
    identity: ModelIdentity,
    metadata: dict[str, str],
    report: Report,
    output: Output,
) -> None:
    with output.progress() as advance:
        progress = functools.partial(advance, "saving")
        saved = session.save_state(path, identity=identity, metadata=metadata, progress=progress)
    tokens = session.tokens
    report.saved_tokens = 0 if tokens is None else tokens.size
    report.saved_bytes = saved.nbytes
    count = format_count(report.saved_tokens, "token")
    output.note(f"{path}: {count}, {format_size(saved.nbytes)} saved")
