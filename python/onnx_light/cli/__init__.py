"""The command ``onnx-light``.

It needs the extra ``cli`` (typer and rich); everything else in the package works without.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> None:
    """Runs the command with the arguments of the process, and exits with its status."""
    _open_standard_streams()
    try:
        from onnx_light.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        _fail(f"{error.name} is missing: pip install 'onnx_light[cli]'")
    except KeyboardInterrupt:  # the commands themselves answer it; loading them takes a while
        sys.exit(130)
    try:
        app(prog_name="onnx-light")
    except OSError as error:  # the help could not be written
        _fail(error.strerror or str(error))


def _open_standard_streams() -> None:
    """Streams that the caller closed are there and go nowhere.

    Otherwise the next file that is opened would get their number, and what a library says on
    standard error would be written into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _fail(message: str) -> NoReturn:
    print(f"onnx-light: {message}", file=sys.stderr)
    sys.exit(2)
