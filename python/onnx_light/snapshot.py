"""Caches in files: save, open, verify.

A snapshot file holds the caches of a model's layers, the token ids they belong to, and the identity
of the model that made them. It is mapped and used where it lies: opening takes microseconds, and
nothing is copied. docs/snapshot_format.md describes the bytes.

    snapshot.save(caches, "prompt.kvcache", tokens=ids, identity=ModelIdentity.from_onnx(model))
    with snapshot.open("prompt.kvcache", expect=ModelIdentity.from_onnx(model)) as saved:
        cache = saved["layers.0"]
"""

from __future__ import annotations

import dataclasses
import io
import mmap
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from onnx_light._core import (
    CachePolicy,
    PageFormat,
    SnapshotReader,
    SnapshotWriter,
    verify_snapshot_bytes,
    verify_snapshot_file,
)
from onnx_light.cache import PagedCache
from onnx_light.errors import CodedError
from onnx_light.identity import ModelIdentity

if TYPE_CHECKING:
    from onnx_light.onnx import ModelProto

__all__ = [
    "Problem",
    "Report",
    "SaveReport",
    "Snapshot",
    "dumps",
    "open",
    "quantize",
    "save",
    "verify",
]

Caches: TypeAlias = Mapping[str, PagedCache] | Sequence[PagedCache]
Progress: TypeAlias = Callable[[int, int], object]
Policy: TypeAlias = CachePolicy | PageFormat | str
Policies: TypeAlias = Policy | Mapping[str, Policy]
Source: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | mmap.mmap | BinaryIO
_Tokens: TypeAlias = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class SaveReport:
    """What a save wrote.

    Attributes:
        nbytes: bytes of the file.
        seconds: the time it took.
        records: records in the file; more than one above 1 GiB.
    """

    nbytes: int
    seconds: float
    records: int

    def to_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return f"{self.nbytes} bytes in {_plural(self.records, 'record')}, {self.seconds:.3f} s"


@dataclasses.dataclass(frozen=True)
class Problem:
    """Something that is wrong with a file.

    Attributes:
        code: as that of errors, such as ``snapshot.corrupt``.
        message: what is wrong; begins with the byte.
        layer: the name of the cache, or empty.
        page: the index of the page in its cache; -1 if it is no page, or one that a later record
            supersedes.
        offset: the first byte, in the file, of the part that is damaged.
        path: the part, such as ``layers.1.blocks[2]``.
    """

    code: str
    message: str
    layer: str
    page: int
    offset: int
    path: str

    def to_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return f"{self.code}: {self.path}: {self.message}"


@dataclasses.dataclass(frozen=True)
class Report:
    """What a check of a file found.

    Attributes:
        length: tokens that the file holds.
        records: records in the file.
        problems: all that was found, in the order of the file.
        bytes_checked: bytes that were looked at.
    """

    length: int
    records: int
    problems: tuple[Problem, ...]
    bytes_checked: int

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, and ``ok``."""
        return {"ok": self.ok, **dataclasses.asdict(self)}

    def __str__(self) -> str:
        what = (
            f"{_plural(self.length, 'token')} in {_plural(self.records, 'record')}, "
            f"{_plural(self.bytes_checked, 'byte')} checked: "
        )
        if self.ok:
            return what + "ok"
        return "\n".join([what + _plural(len(self.problems), "problem"), *map(str, self.problems)])


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _report(found: dict[str, Any]) -> Report:
    problems = tuple(
        Problem(code, message, layer, page, offset, path)
        for code, path, message, layer, page, offset in found.pop("problems")
    )
    return Report(problems=problems, **found)


# -------------------------------------------------------------------------------------------------
# Writing


def _token_array(tokens: npt.ArrayLike | None) -> _Tokens | None:
    if tokens is None:
        return None
    array = np.asarray(tokens)
    if array.ndim not in (1, 2):
        raise CodedError(
            "snapshot.tokens",
            "tokens",
            f"shape {list(array.shape)}, must be [length] or [batch, length]",
        )
    if array.size == 0:
        return np.zeros(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"tokens: ids are integers, not {array.dtype}")
    if array.dtype.kind == "u" and int(array.max()) > np.iinfo(np.int64).max:
        raise CodedError("snapshot.tokens", "tokens", "an id above 2^63 - 1")
    return np.ascontiguousarray(array, np.int64)


def _writer(
    caches: Caches,
    tokens: npt.ArrayLike | None,
    identity: ModelIdentity | None,
    metadata: Mapping[str, str] | None,
    policy: Policies | None,
) -> SnapshotWriter:
    if isinstance(caches, Mapping):
        named = list(caches.items())
    elif isinstance(caches, PagedCache):
        raise TypeError("caches: a mapping or a sequence of PagedCache is needed, not one of them")
    else:
        named = [(f"layers.{i}", cache) for i, cache in enumerate(caches)]
    for name, cache in named:
        if not isinstance(name, str):
            raise TypeError(f"caches[{name!r}]: a name is text, not {type(name).__name__}")
        if not isinstance(cache, PagedCache):
            raise TypeError(f"caches[{name!r}]: a PagedCache is needed, not {type(cache).__name__}")
    fields = {} if identity is None else _identity("identity", identity).to_metadata()
    entries = dict(metadata or {})
    for key, text in entries.items():
        if not (isinstance(key, str) and isinstance(text, str)):
            raise TypeError(f"metadata[{key!r}]: text by name is needed, not {text!r}")
    return SnapshotWriter(
        _quantized(named, policy),
        _token_array(tokens),
        list(fields.items()),
        list(entries.items()),
    )


def _identity(argument: str, value: object) -> ModelIdentity:
    if not isinstance(value, ModelIdentity):
        raise TypeError(f"{argument}: a ModelIdentity is needed, not {type(value).__name__}")
    return value


def _quantized(
    named: list[tuple[str, PagedCache]], policy: Policies | None
) -> list[tuple[str, PagedCache]]:
    """The caches as if they had grown with their policies, on all cores."""
    if policy is None:
        return named
    policies = policy if isinstance(policy, Mapping) else dict.fromkeys(dict(named), policy)
    parsed = {name: _parsed(value) for name, value in policies.items()}
    for name in parsed:
        if name not in dict(named):
            raise CodedError(
                "snapshot.policy", f"policy[{name!r}]", "there is no cache of that name"
            )

    def quantized(name: str, cache: PagedCache) -> tuple[str, PagedCache]:
        try:
            return name, cache.quantize(parsed[name]) if name in parsed else cache
        except CodedError as error:
            path = f"{name}.{error.path}" if error.path else name
            raise CodedError(error.code, path, error.message) from error

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        return list(threads.map(quantized, *zip(*named, strict=True)))


def _parsed(policy: Policy) -> CachePolicy:
    if isinstance(policy, str):
        return CachePolicy.parse(policy)
    if isinstance(policy, PageFormat):
        return CachePolicy(key=policy, value=policy)
    return policy


def save(
    caches: Caches,
    path: str | os.PathLike[str],
    *,
    tokens: npt.ArrayLike | None = None,
    identity: ModelIdentity | None = None,
    metadata: Mapping[str, str] | None = None,
    policy: Policies | None = None,
    overwrite: bool = True,
    sync: bool = True,
    progress: Progress | None = None,
) -> SaveReport:
    """Writes caches to a file, which appears whole or not at all.

    Pages are written from where they lie. Equal content gives equal bytes.

    Args:
        caches: by name, or a sequence whose caches are named ``layers.0``, ``layers.1``, ... All
            end at one position.
        path: the file.
        tokens: the ids of the positions 0 to the end, integers [length] or [batch, length].
        identity: the model that made the caches.
        metadata: text by name. Names that begin with ``onnx_light.`` are reserved.
        policy: how pages are stored: one policy, format or text of either for all caches, or one
            by name for some of them; others, and all without it, are saved in the form they have.
        overwrite: whether a file that exists is replaced.
        sync: whether the file is on the disk when this returns.
        progress: called with the bytes written so far and all bytes, now and then.

    Raises:
        CodedError: ``snapshot.end``, ``snapshot.tokens``, ``snapshot.metadata``,
            ``snapshot.name``, ``snapshot.too_large``, ``snapshot.policy``, ``snapshot.format``;
            what `PagedCache.quantize` raises, with the cache's name in the path.
        FileExistsError: there is a file and `overwrite` is false.
        OSError: the file cannot be written; one that was there is untouched.
    """
    began = time.perf_counter()
    writer = _writer(caches, tokens, identity, metadata, policy)
    writer.write(os.fsencode(path), overwrite, sync, progress)
    return SaveReport(writer.size, time.perf_counter() - began, writer.records)


def dumps(
    caches: Caches,
    *,
    tokens: npt.ArrayLike | None = None,
    identity: ModelIdentity | None = None,
    metadata: Mapping[str, str] | None = None,
    policy: Policies | None = None,
    progress: Progress | None = None,
) -> bytes:
    """The bytes of the file that `save` writes."""
    return _writer(caches, tokens, identity, metadata, policy).to_bytes(progress)


def quantize(
    source: Source,
    target: str | os.PathLike[str],
    policy: Policies,
    *,
    overwrite: bool = True,
    sync: bool = True,
    progress: Progress | None = None,
) -> SaveReport:
    """Writes a snapshot again with its pages in other formats; no model is needed.

    Token ids, identity and metadata stay. Pages that are encoded already are decoded first, unless
    they have the wanted format.

    Args:
        source: what `open` takes; it may be the file that `target` names.
        target, policy, overwrite, sync, progress: as `save` takes them.

    Raises:
        CodedError, OSError: as `open` and `save`; the target is untouched then.
    """
    with open(source) as opened:
        return save(
            dict(opened.caches),
            target,
            tokens=opened.tokens,
            identity=opened.identity,
            metadata=opened.metadata,
            policy=policy,
            overwrite=overwrite,
            sync=sync,
            progress=progress,
        )


# -------------------------------------------------------------------------------------------------
# Reading


class _Caches(Mapping[str, PagedCache]):
    """The caches of a snapshot by name; each is read when it is asked for."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._places = {name: i for i, name in enumerate(snapshot._open_reader.names)}

    def __getitem__(self, name: str) -> PagedCache:
        return self._snapshot._open_reader.cache(self._places[name])

    def __contains__(self, name: object) -> bool:  # reads no cache
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return f"<caches {', '.join(self._places)}>"


class Snapshot:
    """A snapshot file that is open, made by `open`. A context manager.

    Caches are verified when they are first asked for, and stay valid when the snapshot is closed.
    Any number of threads may use it.
    """

    def __init__(self, reader: SnapshotReader) -> None:
        """Not for users: see `open`."""
        self._reader: SnapshotReader | None = reader
        self._caches = _Caches(self)
        self._identity = ModelIdentity.from_metadata(dict(reader.identity))

    @property
    def _open_reader(self) -> SnapshotReader:
        if self._reader is None:
            raise ValueError("the snapshot is closed")
        return self._reader

    @property
    def caches(self) -> Mapping[str, PagedCache]:
        """The caches by name, in the file's order; each is read when it is asked for.

        Raises:
            CodedError: ``snapshot.corrupt``, with the page as path, when a damaged cache is asked
                for.
        """
        return self._caches

    def __getitem__(self, key: str | int) -> PagedCache:
        """The cache with that name or index; errors as those of `caches`, KeyError, IndexError."""
        if isinstance(key, str):
            return self._caches[key]
        names = self._open_reader.names
        return self._open_reader.cache(range(len(names))[key])

    def __contains__(self, name: object) -> bool:
        """Whether there is a cache of that name."""
        return name in self._caches

    @property
    def tokens(self) -> _Tokens | None:
        """The ids of the positions 0 to the end, int64 [length] or [batch, length], read-only.

        None if the file has none.

        Raises:
            CodedError: ``snapshot.corrupt``.
        """
        return self._open_reader.tokens()

    @property
    def identity(self) -> ModelIdentity:
        """The model that made the caches, as far as the file says."""
        return self._identity

    @property
    def metadata(self) -> dict[str, str]:
        """The user's own entries."""
        return dict(self._open_reader.metadata)

    @property
    def start(self) -> int:
        """The first position that some cache keeps."""
        return self._open_reader.start

    @property
    def end(self) -> int:
        """The position where all caches end."""
        return self._open_reader.end

    def __len__(self) -> int:
        """Tokens: end - start."""
        return self.end - self.start

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values."""
        return self._open_reader.nbytes

    @property
    def records(self) -> int:
        """Records in the file."""
        return self._open_reader.records

    @property
    def model(self) -> ModelProto:
        """The file as one model: all records folded, without the fields of the format.

        A new message each time; large payloads are shared with the file.

        Raises:
            CodedError: ``snapshot.corrupt``.
        """
        return self._open_reader.model()

    def slice(self, start: int, end: int) -> Snapshot:
        """The tokens [start, end) of all caches, as a snapshot of its own.

        Raises:
            CodedError: ``snapshot.position`` unless start and end lie in this one.
        """
        return Snapshot(self._open_reader.slice(start, end))

    def verify(self, progress: Progress | None = None) -> Report:
        """Checks every byte, whether or not it has been verified.

        Args:
            progress: called with the bytes checked so far and all bytes, now and then.
        """
        return _report(self._open_reader.verify(progress))

    def close(self) -> None:
        """Lets go of the file. Caches and arrays that came from it keep what they need."""
        self._reader = None

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._reader is None:
            return "<Snapshot, closed>"
        return (
            f"<Snapshot of {_plural(len(self._caches), 'cache')}, positions "
            f"[{self.start}, {self.end}), {_plural(self.nbytes, 'byte')}>"
        )


def _buffer(source: Any) -> tuple[bytes | mmap.mmap | memoryview, str]:
    """The bytes of a source that is no path, and its name for errors."""
    try:
        return memoryview(source), ""
    except TypeError:
        if not hasattr(source, "read"):
            raise TypeError(
                "a path, a bytes-like object or a file is needed, not " + type(source).__name__
            ) from None
    name = getattr(source, "name", "")
    name = name if isinstance(name, str) else ""
    mapped = _mapped(source)
    if mapped is not None:
        return mapped, name
    position = source.tell()
    source.seek(0)
    data = source.read()
    source.seek(position)
    return data, name


def _mapped(file: Any) -> mmap.mmap | None:
    """The file of a file object that shows the file's own bytes; nothing for any other.

    Those of gzip, for instance, have a file behind them, too, but show other bytes.
    """
    raw = getattr(file, "raw", file)
    if not isinstance(file, io.BufferedIOBase | io.FileIO) or not isinstance(raw, io.FileIO):
        return None
    file.flush()
    status = os.fstat(raw.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        return None
    return mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ)


def open(
    source: Source,
    *,
    expect: ModelIdentity | None = None,
    verify: Literal["lazy", "full"] = "lazy",
    recover: bool = False,
) -> Snapshot:
    """Opens a snapshot, without reading a page.

    Args:
        source: a path, whose file is mapped; a bytes-like object, used where it lies if it is
            read-only; or a seekable file object.
        expect: the model that is to use the caches. A field that both it and the file give must
            agree.
        verify: ``lazy``: each cache when it is first asked for, and the tokens; ``full``:
            everything now.
        recover: whether a file whose last append did not finish is opened up to there.

    Raises:
        CodedError: ``snapshot.corrupt``, ``snapshot.torn``, ``snapshot.rewritten`` by another
            program, ``snapshot.version``, ``snapshot.features``, ``snapshot.kind`` for a file that
            is none, ``snapshot.identity`` for one of another model.
        OSError: the file cannot be read.
    """
    if verify not in ("lazy", "full"):
        raise ValueError(f"verify: 'lazy' or 'full', not {verify!r}")
    if expect is not None:
        _identity("expect", expect)
    if isinstance(source, str | os.PathLike):
        reader = SnapshotReader.open_file(os.fsencode(source), verify == "full", recover)
    else:
        data, name = _buffer(source)
        reader = SnapshotReader.open_bytes(data, name, verify == "full", recover)
    snapshot = Snapshot(reader)
    if expect is not None:
        expect.check(snapshot.identity)
    return snapshot


def verify(source: Source, progress: Progress | None = None) -> Report:
    """Checks every byte of a file.

    Args:
        source: what `open` takes.
        progress: called with the bytes checked so far and all bytes, now and then.

    Returns:
        All problems, ``snapshot.corrupt`` and ``snapshot.torn``.

    Raises:
        CodedError: ``snapshot.kind``, ``snapshot.rewritten``, ``snapshot.version``,
            ``snapshot.features``: nothing that can be checked.
        OSError: the file cannot be read.
    """
    if isinstance(source, str | os.PathLike):
        return _report(verify_snapshot_file(os.fsencode(source), progress))
    data, name = _buffer(source)
    return _report(verify_snapshot_bytes(data, name, progress))
