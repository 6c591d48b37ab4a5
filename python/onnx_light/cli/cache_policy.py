"""The policy that the user names, and whether a prompt cache is stored by it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from onnx_light import CachePolicy, PagedCache, PageFormat
from onnx_light.errors import CodedError


def read_policy(text: str) -> CachePolicy:
    """The policy of that text.

    Raises:
        CodedError: ``quant.policy``, ``quant.format``: there is none; names the presets.
    """
    try:
        return CachePolicy.parse(text)
    except CodedError as error:
        presets = ", ".join(CachePolicy.presets)
        option = f"{error.path}: " if error.path not in ("", "format", "policy") else ""
        message = f"{option}{error.message}; presets are {presets}"
        raise CodedError(error.code, f"--policy {text!r}", message) from None


def check_formats(path: Path, caches: Mapping[str, PagedCache], policy: CachePolicy) -> None:
    """Refuses caches whose pages are stored in other ways than the policy stores them.

    A model encodes pages when they become full and no page twice, so that such a cache would stay
    a mixture.

    Raises:
        CodedError: ``cli.policy``: names the first page and the command that changes the file.
    """
    for name, cache in caches.items():
        for index, page in enumerate(cache.pages):
            plain = page.start < policy.sink_tokens or page.end > cache.end - policy.recent_tokens
            if plain or page.end - page.start < cache.page_size:
                continue
            sides = (
                ("key", page.key.format, policy.key, cache.key_width),
                ("value", page.value.format, policy.value, cache.value_width),
            )
            for side, found, wanted, width in sides:
                if wanted is None:
                    continue
                expected = _meaning(wanted, page.capacity, width)
                if isinstance(found, str) or _meaning(found, page.capacity, width) != expected:
                    place = f"{path}: {name}.pages[{index}].{side}"
                    raise _other_format(path, place, found, policy)


def _meaning(form: PageFormat, capacity: int, width: int) -> tuple[str, str | None, int]:
    """What two texts of one format have in common: a group of the whole side may be left out."""
    if form.scale not in ("channel", "token"):
        return form.name, form.scale, 0
    side = capacity if form.scale == "channel" else width
    return form.name, form.scale, min(form.group or side, side)


def _other_format(
    path: Path, place: str, found: PageFormat | str, policy: CachePolicy
) -> CodedError:
    file = shlex.quote(str(path))
    command = f"onnx-light quantize {file} {file} --policy {shlex.quote(str(policy))}"
    message = f"it is {found}, --policy asks for {policy}: change the file first, {command}"
    return CodedError("cli.policy", place, f"{message}; or leave --policy out")
