"""States in files need snapshots, which the package does not have yet."""

from __future__ import annotations

import importlib.util

collect_ignore = [] if importlib.util.find_spec("onnx_light.snapshot") else ["test_files.py"]
