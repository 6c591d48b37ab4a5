"""The command ``onnx-light``.

It needs the extra ``cli`` (typer and rich); everything else in the package works without.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command with the arguments of the process, and exits with its status."""
    try:
        from onnx_light.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(
            f"onnx-light: {error.name} is missing: pip install 'onnx_light[cli]'", file=sys.stderr
        )
        sys.exit(2)
    except KeyboardInterrupt:  # the commands themselves answer it; loading them takes a while
        sys.exit(130)
    app(prog_name="onnx-light")
