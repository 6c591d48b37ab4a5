"""What the errors of this package have in common."""

from __future__ import annotations


class CodedError(ValueError):
    """Something is wrong with a value: an argument, a message, a file.

    Attributes:
        code: a stable word for programs, such as ``cache.shape`` or ``external.path``.
        path: where it is: a field's path, a file's name, an argument's name, or empty.
        message: what is wrong and what would be right, without the path.
    """

    code: str
    path: str
    message: str

    def __init__(self, code: str, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.code = code
        self.path = path
        self.message = message

    def __reduce__(self) -> tuple[type[CodedError], tuple[str, str, str]]:
        return type(self), (self.code, self.path, self.message)


class ParseError(CodedError):
    """Bytes that are no well-formed message.

    Attributes:
        offset: the first byte of the input that does not belong to one.
    """

    offset: int

    def __init__(self, code: str, path: str, message: str, offset: int = 0) -> None:
        super().__init__(code, path, message)
        self.offset = offset

    def __reduce__(self) -> tuple[type[CodedError], tuple[str, str, str, int]]:  # type: ignore[override]
        return type(self), (self.code, self.path, self.message, self.offset)
