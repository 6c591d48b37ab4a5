"""The main job on a real model: read a document, save its cache, go on in another process.

Each step yields what it found as soon as it is done; `demo_view` shows it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from onnx_light import CachePolicy, ModelIdentity, PagedCache, snapshot
from onnx_light.cli.decoder import require_packages
from onnx_light.cli.demo_answer import Answer, Forks, answer_questions
from onnx_light.cli.demo_model import find_model
from onnx_light.cli.quantize import bits_per_value
from onnx_light.errors import CodedError
from onnx_light.models import cached_model, end_tokens, from_gguf, render_chat, tokenizer_from_gguf
from onnx_light.models.generate import common_prefix
from onnx_light.models.gguf_file import GgufFile
from onnx_light.models.llama_config import read_config
from onnx_light.runtime import InferenceSession

if TYPE_CHECKING:
    from tokenizers import Tokenizer

QUESTIONS = ("How often does the light turn?", "What are the goats called?")
NEW_TOKENS = 24

# The memory of attention over a prompt grows with tokens times total tokens: this bounds it.
_CHUNK = 512
_DOCUMENT = Path(__file__).with_name("demo_document.txt")

Progress = Callable[[str, int, int], object]
"""Called with what is being done, and done and total units of it."""


@dataclass(frozen=True)
class Options:
    """What the demo is run on.

    Attributes:
        model: a GGUF file of a llama-architecture decoder with a chat template; None: the one of
            the Python package that `find_model` names.
        document: a text file in UTF-8; None: the one that comes with the package.
        questions: about the document; each is answered apart, by a fork.
    """

    model: Path | None = None
    document: Path | None = None
    questions: tuple[str, ...] = QUESTIONS


@dataclass(frozen=True)
class ModelStep:
    """The model, ready to run. Sizes in bytes, times in seconds."""

    gguf: str
    gguf_nbytes: int
    onnx_nbytes: int
    convert_seconds: float
    session_seconds: float
    layers: int
    heads: int
    width: int


@dataclass(frozen=True)
class ReadStep:
    """The document in the session: its size in words and tokens, and how long reading it took.

    `answers` are those of a session that never stopped, one for each question, `texts` their texts.
    """

    document: str
    words: int
    tokens: int
    seconds: float
    questions: list[str]
    answers: list[Answer]
    texts: list[str]


@dataclass(frozen=True)
class SaveStep:
    """The cache in a file.

    Attributes:
        equal: whether every bit of every layer is the session's when the file is opened again.
        pages: in all layers together.
        write_seconds: for the same bytes written by plain calls, with the same sync.
    """

    nbytes: int
    seconds: float
    write_seconds: float
    pages: int
    page_size: int
    equal: bool


@dataclass(frozen=True)
class Resumed:
    """What another process made of one file.

    Attributes:
        policy: how its pages are stored; empty: as they came from the model.
        nbytes: of the file; bits_per_value: of all its bytes for each key and value.
        quantize_seconds: for making this file from the first one.
        load_seconds: for the whole state in the session, every page verified.
        load_nbytes: of the process's own memory that this took; pages stay in the mapped file.
        first_seconds: from there to the first token of the first answer.
        equal_tokens: how many tokens of the answers, all together, are the ones of the process that
            never stopped, until each differs for the first time; tokens: of how many.
        divergence: of the next token's distribution from the one of the file as it came from the
            model, Kullback-Leibler, in nats, the mean over the last question and its answer.
    """

    policy: str
    nbytes: int
    bits_per_value: float
    quantize_seconds: float
    load_seconds: float
    load_nbytes: int
    first_seconds: float
    texts: list[str]
    equal_tokens: int
    tokens: int
    divergence: float

    @property
    def seconds(self) -> float:
        """From the file to the first token of an answer."""
        return self.load_seconds + self.first_seconds


@dataclass(frozen=True)
class ResumeStep:
    """What another process made of the files.

    Attributes:
        start_seconds: until Python and the model were ready.
        open_seconds: for the first file alone: index, token ids and identity; no page is touched.
        recompute_seconds: reading the document and the first token of the first answer, as
            measured in the process that never stopped.
        files: the one as it came from the model, then one for each preset of policies.
    """

    start_seconds: float
    open_seconds: float
    recompute_seconds: float
    files: list[Resumed]

    @property
    def same_tokens(self) -> bool:
        """Whether the first file gives all answers of the process that never stopped."""
        return self.files[0].equal_tokens == self.files[0].tokens


@dataclass(frozen=True)
class ForkStep:
    """Many continuations of the resumed state, all kept in the other process.

    Attributes:
        count: how many; new_tokens: that each has decoded, with other random draws.
        nbytes: of memory that they have taken all together, beyond the state that they share.
        copies_nbytes: what as many copies of the caches would take.
        seconds: for all of them.
    """

    count: int
    new_tokens: int
    nbytes: int
    copies_nbytes: int
    seconds: float


@dataclass(frozen=True)
class Refusal:
    """A file that must not be taken: what was wrong with it, and what was said.

    Attributes:
        unchanged: whether the session still held what it held before.
    """

    what: str
    code: str
    message: str
    unchanged: bool


@dataclass(frozen=True)
class RefusalStep:
    """All the files that must not be taken."""

    refusals: list[Refusal]


Step = ModelStep | ReadStep | SaveStep | ResumeStep | ForkStep | RefusalStep


def holds(step: Step) -> bool:
    """Whether everything that a step checks is true."""
    if isinstance(step, SaveStep):
        return step.equal
    if isinstance(step, ResumeStep):
        return step.same_tokens
    if isinstance(step, ForkStep):
        return step.nbytes < step.copies_nbytes
    if isinstance(step, RefusalStep):
        return all(refusal.code and refusal.unchanged for refusal in step.refusals)
    return True


def to_dict(step: Step) -> dict[str, Any]:
    """A step as plain values, its properties included."""
    result = dataclasses.asdict(step)
    if isinstance(step, ResumeStep):
        result["same_tokens"] = step.same_tokens
    return {"step": type(step).__name__.removesuffix("Step").lower(), **result}


def run(options: Options, progress: Progress) -> Iterator[Step]:
    """Does it all in a temporary folder, which is gone afterwards.

    Raises:
        CodedError: ``demo.model``: no model is there; ``cli.missing``: packages; a model, document
            or question that cannot be used; what the steps raise. OSError.
    """
    require_packages()
    gguf = find_model(options.model)
    text = _read_text(options.document or _DOCUMENT)
    if not options.questions:
        raise CodedError("demo.question", "questions", "there is none; at least one is needed")
    with tempfile.TemporaryDirectory(prefix="onnx-light-demo-") as folder:
        session, model = _load(gguf, progress)
        yield model
        tokenizer = tokenizer_from_gguf(gguf)
        prompts, shared = _prompts(gguf, tokenizer, text, options.questions)
        seconds = _read(session, prompts[0][:shared], progress)
        answers = answer_questions(session, prompts, NEW_TOKENS, end_tokens(gguf))
        read = ReadStep(
            document=str(options.document or "The Keeper's Book of Gannet Rock"),
            words=len(text.split()),
            tokens=shared,
            seconds=seconds,
            questions=list(options.questions),
            answers=answers,
            texts=_texts(tokenizer, answers),
        )
        yield read
        path = Path(folder) / "document.kvcache"
        yield _save(session, path)
        yield from _resume(gguf, tokenizer, path, prompts, read)
        yield RefusalStep(list(_refusals(session, gguf, path)))


def _read_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CodedError("demo.document", str(path), f"it is not UTF-8: {error}") from None
    if not text.strip():
        raise CodedError("demo.document", str(path), "it is empty")
    return text


def _load(gguf: Path, progress: Progress) -> tuple[InferenceSession, ModelStep]:
    begin = time.perf_counter()
    converted = cached_model(
        gguf, progress=lambda done, total: progress("converting the model", done, total)
    )
    model = from_gguf(gguf)
    convert_seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    session = InferenceSession(model)
    session_seconds = time.perf_counter() - begin
    with GgufFile(gguf) as file:
        config = read_config(file)
    step = ModelStep(
        gguf=gguf.name,
        gguf_nbytes=gguf.stat().st_size,
        onnx_nbytes=sum(file.stat().st_size for file in converted.parent.iterdir()),
        convert_seconds=convert_seconds,
        session_seconds=session_seconds,
        layers=len(session.state),
        heads=config.kv_heads,
        width=config.width,
    )
    return session, step


def _prompts(
    gguf: Path, tokenizer: Tokenizer, text: str, questions: Sequence[str]
) -> tuple[list[list[int]], int]:
    """The token ids of each conversation, and how many tokens they begin with in common."""

    def encode(question: str) -> list[int]:
        content = f"{text}\n\n{question}"
        chat = render_chat(gguf, [{"role": "user", "content": content}])
        ids: list[int] = tokenizer.encode(chat, add_special_tokens=False).ids
        return ids

    prompts = [encode(question) for question in questions]
    # One that goes on differently shows where the document ends, with a single question, too.
    others = [*prompts[1:], encode("#")]
    return prompts, min(common_prefix(prompts[0], other) for other in others)


def _read(session: InferenceSession, tokens: list[int], progress: Progress) -> float:
    """Runs the tokens; how many seconds that took."""
    begin = time.perf_counter()
    for first in range(0, len(tokens), _CHUNK):
        chunk = np.array([tokens[first : first + _CHUNK]], np.int64)
        session.run(["logits"], {"input_ids": chunk})
        progress("reading the document", min(first + _CHUNK, len(tokens)), len(tokens))
    return time.perf_counter() - begin


def _texts(tokenizer: Tokenizer, answers: list[Answer]) -> list[str]:
    return [tokenizer.decode(answer.tokens) for answer in answers]


def _save(session: InferenceSession, path: Path) -> SaveStep:
    report = session.save_state(path)
    held = _content(session)
    with snapshot.open(path) as opened:
        equal = held == (_ids(opened.tokens), dict(opened.caches))
    caches = list(held[1].values())
    return SaveStep(
        nbytes=report.nbytes,
        seconds=report.seconds,
        write_seconds=_write_seconds(path),
        pages=sum(len(cache.pages) for cache in caches),
        page_size=caches[0].page_size,
        equal=equal,
    )


def _ids(tokens: npt.NDArray[np.int64] | None) -> list[int]:
    return [] if tokens is None else tokens.tolist()


def _content(session: InferenceSession) -> tuple[list[int], dict[str, PagedCache]]:
    """All that a session holds, to be compared."""
    return _ids(session.tokens), cast("dict[str, PagedCache]", dict(session.state))


def _write_seconds(path: Path) -> float:
    """How long plain calls take for the same bytes, made durable in the same way."""
    data = path.read_bytes()
    copy = path.with_suffix(".raw")
    begin = time.perf_counter()
    with copy.open("wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())
    seconds = time.perf_counter() - begin
    copy.unlink()
    return seconds


def _resume(
    gguf: Path, tokenizer: Tokenizer, path: Path, prompts: list[list[int]], read: ReadStep
) -> tuple[ResumeStep, ForkStep]:
    paths = {"": path}
    seconds = {"": 0.0}
    for preset in CachePolicy.presets:
        paths[preset] = path.with_suffix(f".{preset}.kvcache")
        seconds[preset] = snapshot.quantize(path, paths[preset], preset).seconds
    order = {
        "model": str(gguf),
        "states": {preset: str(file) for preset, file in paths.items()},
        "prompts": prompts,
        "new_tokens": NEW_TOKENS,
        "probe": prompts[-1] + read.answers[-1].tokens,
        "known": read.tokens,
    }
    begin = time.time()
    found = _other_process(order)
    files = []
    for preset, file in paths.items():
        state = found["states"][preset]
        answers = [Answer(**answer) for answer in state["answers"]]
        with snapshot.open(file) as opened:
            bits = bits_per_value(file.stat().st_size, opened.caches)
        pairs = zip(answers, read.answers, strict=True)
        files.append(
            Resumed(
                policy=str(CachePolicy.presets[preset]) if preset else "",
                nbytes=file.stat().st_size,
                bits_per_value=bits,
                quantize_seconds=seconds[preset],
                load_seconds=state["load_seconds"],
                load_nbytes=state["load_nbytes"],
                first_seconds=answers[0].first_seconds,
                texts=_texts(tokenizer, answers),
                equal_tokens=sum(common_prefix(new.tokens, old.tokens) for new, old in pairs),
                tokens=sum(len(answer.tokens) for answer in read.answers),
                divergence=state["divergence"],
            )
        )
    resumed = ResumeStep(
        start_seconds=found["ready"] - begin,
        open_seconds=found["open_seconds"],
        recompute_seconds=read.seconds + read.answers[0].first_seconds,
        files=files,
    )
    forks = Forks(**found["forks"])
    copies = forks.count * path.stat().st_size
    return resumed, ForkStep(**dataclasses.asdict(forks), copies_nbytes=copies)


def _other_process(order: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "onnx_light.cli.demo_answer"],
        input=json.dumps(order).encode(),
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        message = f"it ended with status {done.returncode}"
        raise CodedError("demo.process", "the second process", message)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _refusals(session: InferenceSession, gguf: Path, path: Path) -> Iterator[Refusal]:
    """Wrongs are done to the file itself: nobody needs it any more."""
    other = path.with_name("other.gguf")
    yield _refusal(session, "a file of another kind: the model itself", gguf)
    with _changed_bit(shutil.copy(gguf, other), gguf.stat().st_size // 2):
        expected = ModelIdentity.from_gguf(other)
    other.unlink()
    yield _refusal(session, "a model with one other bit", path, expect=expected)
    size = path.stat().st_size
    with _changed_bit(path, size // 2):
        yield _refusal(session, "one bit flipped, in the middle", path)
    os.truncate(path, size - 1000)
    yield _refusal(session, "the last 1000 bytes missing", path)


@contextlib.contextmanager
def _changed_bit(path: Any, offset: int) -> Iterator[None]:
    def flip() -> None:
        with open(path, "r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 4]))

    flip()
    yield
    flip()


def _refusal(session: InferenceSession, what: str, path: Path, **options: Any) -> Refusal:
    before = _content(session)
    code = message = ""
    try:
        session.load_state(path, **options)
    except CodedError as error:
        code, message = error.code, str(error)
    return Refusal(what, code, message, unchanged=_content(session) == before)
