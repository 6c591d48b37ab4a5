"""The chat template of a GGUF file: its text, and a conversation written out with it."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from onnx_light.models.errors import ModelError
from onnx_light.models.gguf_file import GgufFile

_KEY = "tokenizer.chat_template"


def chat_template(path: str | os.PathLike[str]) -> str:
    """The Jinja text of the model's chat template, as it stands in the file.

    Raises:
        ModelError: the file has none, or is no readable GGUF file.
        OSError: the file cannot be read.
    """
    with GgufFile(path) as file:
        template = file.metadata.get(_KEY)
        if not isinstance(template, str) or not template:
            raise ModelError("models.chat_template", file.path, f"it has no {_KEY}")
        return template


def _special_texts(file: GgufFile) -> dict[str, str]:
    """`bos_token` and `eos_token`, which templates use; empty where the file has none."""
    texts: dict[str, str] = {}
    tokens = file.metadata.get("tokenizer.ggml.tokens") or []
    for side in ("bos", "eos"):
        number = file.metadata.get(f"tokenizer.ggml.{side}_token_id")
        if isinstance(number, int) and 0 <= number < len(tokens):
            texts[f"{side}_token"] = tokens[number]
        else:
            texts[f"{side}_token"] = ""
    return texts


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter escapes for HTML, which would change the prompt.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def render_chat(
    path: str | os.PathLike[str],
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    template: str | None = None,
    **variables: Any,
) -> str:
    """A conversation as the text that the model was trained on.

    It contains the special tokens: encode it with ``add_special_tokens=False``.

    The template comes from a file that may not be trusted: it runs in Jinja's immutable sandbox.

    Args:
        path: the GGUF file, for its template and special tokens.
        messages: mappings with `role` and `content`, and what the template knows beside them.
        add_generation_prompt: end where the model's answer begins.
        template: used in place of the file's own.
        variables: more names for the template, such as `tools`.

    Raises:
        ModelError: no template, or it fails or refuses the messages.
        OSError: the file cannot be read.
    """
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    text = chat_template(path) if template is None else template
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = _now
    with GgufFile(path) as file:
        names: dict[str, Any] = dict(_special_texts(file))
    names.update(variables, messages=messages, add_generation_prompt=add_generation_prompt)
    try:
        return environment.from_string(text).render(names)
    except Exception as error:  # a template is a program of the file: it can raise anything
        message = f"the chat template failed: {error}"
        raise ModelError("models.chat_template", os.fspath(path), message) from error
