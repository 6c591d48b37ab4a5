"""External data: payloads that lie in other files beside the file of the message."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import re
import stat
from collections.abc import Iterator
from typing import IO, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from onnx_light.errors import CodedError
from onnx_light.onnx_py._onnxpyprotoop import (
    EncodedValueProto,
    TensorProto,
    _commit_files,
    _MessageFile,
)

PayloadMessage = TensorProto | EncodedValueProto
_Path = str | os.PathLike[str]

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LONGEST_PATH = 4095  # PATH_MAX, less the NUL byte that ends it
_PIECE = 1 << 20
_FILE_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Reference(NamedTuple):
    """A range of bytes of a file; no length means up to its end."""

    location: str
    offset: int
    length: int | None


def is_external(payload: PayloadMessage) -> bool:
    """Whether the payload lies in another file."""
    return payload.data_location == TensorProto.EXTERNAL


def reference(payload: PayloadMessage) -> Reference:
    """The place that the entries of external_data name.

    Of several entries with one key the last counts; entries with unknown keys mean nothing.

    Raises:
        CodedError: ``external.location`` if there is none, ``external.path`` as check_location(),
            ``external.number`` for an offset or length that is no plain decimal number.
    """
    entries = {entry.key: _text(entry.value) for entry in payload.external_data}
    location = entries.get("location", "")
    if not location:
        raise CodedError("external.location", "external_data", "there is no location")
    if location.startswith("#"):
        raise CodedError(
            "external.location", "external_data", f"{_quote(location)} is memory of another program"
        )
    check_location(location)
    length = _number("length", entries["length"]) if "length" in entries else None
    return Reference(location, _number("offset", entries.get("offset", "0")), length)


def _text(value: str | bytes) -> str:
    """An entry's value: bytes where it is no UTF-8, as names of files need not be."""
    return os.fsdecode(value) if isinstance(value, bytes) else value


def _number(key: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,40}", text) or int(text) >= 2**64:
        raise CodedError(
            "external.number",
            "external_data",
            f"{key} must be a decimal number below 2^64, is {_quote(text)}",
        )
    return int(text)


def _quote(text: str) -> str:
    """Untrusted text, fit for a message."""
    return ascii(text if len(text) <= 200 else text[:200] + "...")


def check_location(location: str, path: str = "external_data") -> list[str]:
    """The components of a relative POSIX path of a file that cannot leave its folder.

    Raises:
        CodedError: ``external.path``.
    """
    components = location.split("/")
    problem = ""
    if not location:
        problem = "is empty"
    elif "\0" in location:
        problem = "has a NUL byte"
    elif len(os.fsencode(location)) > _LONGEST_PATH:
        problem = f"has over {_LONGEST_PATH} bytes, which no path has"
    elif location.startswith("/"):
        problem = "is absolute; it must be relative to the folder of the model"
    elif ".." in components:
        problem = 'has a ".." component'
    elif components[-1] in ("", "."):
        problem = "names a folder, not a file"
    if problem:
        raise CodedError("external.path", path, f"location {_quote(location)} {problem}")
    return [component for component in components if component not in ("", ".")]


def read(
    payload: PayloadMessage, base_dir: _Path, size: int | None = None
) -> npt.NDArray[np.uint8]:
    """The bytes of an external payload.

    Args:
        payload: a payload that is external.
        base_dir: the folder that its location is relative to; empty is the current one.
        size: the number of bytes that it must have, if known.

    Raises:
        CodedError: as reference(); ``external.link``, ``external.not_regular``, or
            ``external.range`` for bytes outside the file; ``tensor.size`` for another size.
        OSError: the file cannot be opened or read.
    """
    with _open(payload, base_dir, size) as (file, offset, length):
        data = np.empty(length, np.uint8)
        file.seek(offset)
        if file.readinto(data.data) != length:
            raise CodedError("external.range", "external_data", "the file became shorter")
    data.flags.writeable = False
    return data


def pieces(
    payload: PayloadMessage, base_dir: _Path, *, trusted_links: bool = False
) -> Iterator[bytes]:
    """The bytes of an external payload, some at a time.

    Args:
        payload: a payload that is external.
        base_dir: the folder that its location is relative to; empty is the current one.
        trusted_links: whether the way may lead through links, and the file have other names.

    Raises:
        As read().
    """
    with _open(payload, base_dir, None, trusted_links) as (file, offset, length):
        file.seek(offset)
        while length:
            piece = file.read(min(length, _PIECE))
            if not piece:
                raise CodedError("external.range", "external_data", "the file became shorter")
            length -= len(piece)
            yield piece


@contextlib.contextmanager
def _open(
    payload: PayloadMessage, base_dir: _Path, size: int | None, trusted_links: bool = False
) -> Iterator[tuple[io.BufferedReader, int, int]]:
    """The open file of a payload, its offset and length."""
    place = reference(payload)
    folder = _open_folder(base_dir, place.location, trusted_links)
    try:
        file = _open_regular(folder, place.location, trusted_links)
    finally:
        os.close(folder)
    with file:
        offset, length = _range(place, os.fstat(file.fileno()).st_size)
        if size is not None and length != size:
            raise CodedError(
                "tensor.size", "external_data", f"{length} bytes, but the dims need {size}"
            )
        yield file, offset, length


def _range(place: Reference, file_size: int) -> tuple[int, int]:
    rest = file_size - place.offset
    length = max(rest, 0) if place.length is None else place.length
    if length > rest:
        raise CodedError(
            "external.range",
            "external_data",
            f"{length} bytes at offset {place.offset} are not within {_quote(place.location)}, "
            f"which has {file_size} bytes",
        )
    return place.offset, length


def refer(payload: PayloadMessage, place: Reference) -> None:
    """Replaces the bytes of a payload by the place where they lie."""
    payload.ClearField("raw_data")
    payload.ClearField("external_data")
    payload.data_location = TensorProto.EXTERNAL
    for key, value in place._asdict().items():
        payload.external_data.add(key=key, value=str(value))


class NewFiles:
    """Files that take their names together, when all of them are on the disk.

    Without commit() they vanish when the block ends, and old files of their names stay as they are.
    Readers of old files keep what they have in any case.

    Args:
        base_dir: the folder that locations are relative to; empty is the current one.
    """

    def __init__(self, base_dir: _Path) -> None:
        self._base_dir = base_dir
        self._folders: dict[str, int] = {}
        self._written: list[tuple[int, bytes, bytes]] = []  # folder, temporary name, name

    def __enter__(self) -> Self:
        return self

    @contextlib.contextmanager
    def write(self, location: str) -> Iterator[IO[bytes]]:
        """The file at a location that readers accept, for writing until the block ends.

        Raises:
            CodedError: ``external.path``, ``external.link``.
            OSError: the file cannot be written.
        """
        folder = self._folder(location)
        temporary = os.fsencode(f".onnx_light.{os.urandom(8).hex()}.tmp")
        self._written.append((folder, temporary, os.fsencode(check_location(location)[-1])))
        # No step of Python's, where Ctrl-C could come, lies between the descriptor and its owner.
        opener = functools.partial(os.open, mode=0o666, dir_fd=folder)
        with open(temporary, "xb", opener=opener) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def _folder(self, location: str) -> int:
        name = "/".join(check_location(location)[:-1])
        if name not in self._folders:
            self._folders[name] = _open_folder(self._base_dir, location)
        return self._folders[name]

    def commit(self, message: _MessageFile | None = None) -> None:
        """Gives all files their names, in the order of writing, the message's last.

        Nothing comes between two names but a kill or a failed rename.

        Raises:
            OSError: a file could not be renamed, and the later ones were not; or, when all have
                their names, a folder could not be synced.
        """
        _commit_files(self._written, message)
        self._written.clear()

    def __exit__(self, *_: object) -> None:
        # What goes wrong here would only hide the error that led here, or deny a success.
        for folder, temporary, _name in self._written:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
        self._written.clear()
        for folder in self._folders.values():
            with contextlib.suppress(OSError):
                os.close(folder)
        self._folders.clear()


def _open_folder(base_dir: _Path, location: str, trusted_links: bool = False) -> int:
    """The folder of the file at `location`; links on the way from base_dir must be trusted."""
    flags = _FOLDER_FLAGS | (0 if trusted_links else os.O_NOFOLLOW)
    folder = os.open(os.fspath(base_dir) or ".", _FOLDER_FLAGS)
    for name in check_location(location)[:-1]:
        outer = folder
        try:
            folder = os.open(name, flags, dir_fd=outer)
        except OSError as error:
            if not trusted_links and _is_link(name, outer):
                raise _link_error(location) from None
            raise OSError(error.errno, error.strerror, location) from None
        finally:
            os.close(outer)
    return folder


def _open_regular(folder: int, location: str, trusted_links: bool) -> io.BufferedReader:
    flags = _FILE_FLAGS | (0 if trusted_links else os.O_NOFOLLOW)
    try:
        fd = os.open(check_location(location)[-1], flags, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP and not trusted_links:
            raise _link_error(location) from None
        if error.errno == errno.ENXIO:
            raise _not_regular(location) from None
        raise OSError(error.errno, error.strerror, location) from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise _not_regular(location)
    if status.st_nlink > 1 and not trusted_links:
        os.close(fd)
        raise CodedError(
            "external.link",
            "external_data",
            f"{_quote(location)} has {status.st_nlink} hard links: others may own it",
        )
    return os.fdopen(fd, "rb")


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode)
    except OSError:
        return False


def _link_error(location: str) -> CodedError:
    return CodedError(
        "external.link", "external_data", f"{_quote(location)} leads through a symbolic link"
    )


def _not_regular(location: str) -> CodedError:
    return CodedError(
        "external.not_regular", "external_data", f"{_quote(location)} is not a regular file"
    )
