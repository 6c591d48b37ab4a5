"""The user's cache folder: converted models by content, and digests of large files.

`$ONNX_LIGHT_CACHE`, else `$XDG_CACHE_HOME/onnx_light`, else `~/.cache/onnx_light`. Everything in it
can be deleted at any time; nothing in it is ever changed after it was published.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

# A file that was written this recently may be written again without a new modification time.
_SETTLED_NS = 2_000_000_000


def cache_folder() -> Path:
    """The folder, which may not exist yet."""
    own = os.environ.get("ONNX_LIGHT_CACHE")
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "onnx_light"


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock of that name; the system lets go of it when the process ends."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def published_folder(kind: str, key: str, fill: Callable[[Path], None]) -> Path:
    """The folder `kind`/`key` of the cache; if it is not there yet, `fill` makes its files.

    It appears all at once, complete and on the disk. Of several processes that want it, one fills
    it and the others wait. What a killed process left is removed.

    Raises:
        OSError: the folder cannot be written; whatever `fill` raises.
    """
    parent = cache_folder() / kind
    target = parent / key
    if target.is_dir():
        return target
    parent.mkdir(parents=True, exist_ok=True)
    with _locked(parent / f"{key}.lock"):
        if target.is_dir():
            return target
        unfinished = parent / f"{key}.unfinished"
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir()
        try:
            fill(unfinished)
            for file in unfinished.iterdir():
                _sync(file)
            _sync(unfinished)
            unfinished.rename(target)
        except BaseException:
            shutil.rmtree(unfinished)
            raise
        _sync(parent)
    return target


def _store(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _load(path: Path, names: set[str]) -> dict[str, str] | None:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # not there, or damaged: made again
    if not isinstance(values, dict) or set(values) != names:
        return None
    return values if all(isinstance(value, str) for value in values.values()) else None


def _places(paths: Sequence[str | os.PathLike[str]]) -> list[tuple[str, int, int, int]]:
    """What tells a file that has not changed: path, size, modification time and inode."""
    places = []
    for path in paths:
        status = os.stat(path)
        place = (os.path.realpath(path), status.st_size, status.st_mtime_ns, status.st_ino)
        places.append(place)
    return places


def kept_digests(
    paths: Sequence[str | os.PathLike[str]],
    names: set[str],
    compute: Callable[[], dict[str, str]],
) -> dict[str, str]:
    """What `compute` says about some files, kept by path, size, modification time and inode.

    Args:
        paths: all files that the result depends on.
        names: the keys of the result; a kept result with others is made again.
    """
    before = _places(paths)
    key = hashlib.sha256(json.dumps([sorted(names), *before]).encode()).hexdigest()
    kept = cache_folder() / "digests" / f"{key}.json"
    values = _load(kept, names)
    if values is not None:
        return values
    values = compute()
    newest = max(modified for _, _, modified, _ in before)
    if _places(paths) == before and time.time_ns() - newest > _SETTLED_NS:
        # Without a place to keep it the answer is the same, only slower the next time.
        with contextlib.suppress(OSError):
            _store(kept, json.dumps(values))
    return values
