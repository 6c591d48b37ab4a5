"""A language model as the command line uses it: tokenizer, session and prompt cache."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_light import CachePolicy, ModelIdentity, snapshot
from onnx_light.cli.output import Output, in_file
from onnx_light.errors import CodedError

if TYPE_CHECKING:
    from onnx_light.runtime import InferenceSession

_PACKAGES = ("onnxruntime", "gguf", "tokenizers", "jinja2")
WEIGHTS = ("float32", "native")


def require_packages() -> None:
    """Raises a CodedError ``cli.missing`` that names what is not installed."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        is_are = "is" if len(missing) == 1 else "are"
        message = f"{', '.join(missing)} {is_are} missing: pip install 'onnx_light[models]'"
        raise CodedError("cli.missing", "", message)


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


class Decoder:
    """A model and its tokenizer, read without anything that takes long.

    Attributes:
        gguf: the file of tokenizer and chat template.
        tokenizer: made from it.
        ends: ids that end an answer.
    """

    def __init__(
        self,
        model: Path,
        tokenizer: Path | None,
        policy: CachePolicy | None = None,
        weights: str = WEIGHTS[0],
    ) -> None:
        """Reads the headers.

        Args:
            model: a GGUF file, or an ONNX decoder if `tokenizer` is given.
            tokenizer: a GGUF file.
            policy: how the pages of its caches are stored; for a GGUF file only.
            weights: one of WEIGHTS; for a GGUF file only.

        Raises:
            CodedError: a file that is not what it should be. OSError: it cannot be read.
        """
        from onnx_light import models

        self._model = model
        self._is_gguf = _is_gguf(model)
        if not self._is_gguf and tokenizer is None:
            message = "no GGUF file; beside an ONNX model --tokenizer GGUF is needed"
            raise CodedError("cli.model", str(model), message)
        if not self._is_gguf and policy is not None:
            message = f"{model} says itself how its caches are stored; a GGUF file does not"
            raise CodedError("cli.policy", "--policy", message)
        if not self._is_gguf and weights != WEIGHTS[0]:
            message = f"{model} has its weights as they are; a GGUF file is converted"
            raise CodedError("cli.weights", "--weights", message)
        self._policy = policy
        self._weights = weights
        self.gguf = tokenizer or model
        self.tokenizer = models.tokenizer_from_gguf(self.gguf)
        self.ends = models.end_tokens(self.gguf)

    def identity(self, output: Output) -> ModelIdentity:
        """Which model it is; reads all of it the first time."""
        from onnx_light.models import gguf_identity

        if not self._is_gguf:
            with refusals_of(self._model):
                return ModelIdentity.from_onnx(self._model)
        with output.progress() as advance:
            progress = functools.partial(advance, "reading the model")
            return ModelIdentity.from_metadata(gguf_identity(self._model, progress=progress))

    def session(self, output: Output) -> InferenceSession:
        """Makes the session; converts a GGUF file the first time."""
        from onnx_light.models import from_gguf
        from onnx_light.runtime import InferenceSession

        output.log(f"loading {self._model}")
        if not self._is_gguf:
            with refusals_of(self._model):
                return _with_state(self._model, InferenceSession(str(self._model)))
        with output.progress() as advance:
            progress = functools.partial(advance, "converting the model")
            model = from_gguf(
                self._model, policy=self._policy, weights=self._weights, progress=progress
            )
        return InferenceSession(model)


@contextlib.contextmanager
def refusals_of(model: Path) -> Iterator[None]:
    """Makes what onnxruntime says of a model an error in one line that names the file.

    Raises:
        CodedError: ``cli.model``; whatever else comes, as it is, but for the name of the file.
    """
    try:
        yield
    except CodedError as error:
        raise in_file(error, model) from None
    except Exception as error:
        # Its own errors have no base of their own; those of a run are plain RuntimeErrors.
        if not (type(error) is RuntimeError or type(error).__module__.startswith("onnxruntime")):
            raise
        raise CodedError("cli.model", str(model), " ".join(str(error).split())) from error


def _with_state(model: Path, session: InferenceSession) -> InferenceSession:
    """The session, if it is of a decoder.

    Raises:
        CodedError: ``cli.model``: what is missing.
    """
    for kind, name, found in (
        ("input", "input_ids", session.get_inputs()),
        ("output", "logits", session.get_outputs()),
    ):
        if all(item.name != name for item in found):
            message = f"it has no {kind} {name}; a decoder with input_ids and logits is needed"
            raise CodedError("cli.model", str(model), message)
    if not session.state:
        message = "it keeps no keys and values between runs; a decoder with a KV cache is needed"
        raise CodedError("cli.model", str(model), message)
    return session


def open_prompt_cache(path: Path, identity: ModelIdentity) -> snapshot.Snapshot:
    """Opens and checks a prompt cache: every byte, the model, and that it says its tokens.

    Raises:
        CodedError: it is damaged, of another model, no snapshot, or cannot serve as a prompt.
        OSError: the file cannot be read.
    """
    try:
        opened = snapshot.open(path, expect=identity, verify="full")
        tokens = opened.tokens
    except CodedError as error:
        raise in_file(error, path) from None
    if tokens is None:
        message = "it has no token ids, so that no prompt can be compared with it"
        raise CodedError("cli.prompt_cache", str(path), message)
    if tokens.ndim == 2 and len(tokens) != 1:
        message = f"it holds {len(tokens)} sequences; a prompt is one"
        raise CodedError("cli.prompt_cache", str(path), message)
    return opened
