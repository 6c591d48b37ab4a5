"""The error of this package: something about a model, a tokenizer or an option is wrong."""

from __future__ import annotations


class ModelError(ValueError):
    """A model file, a tokenizer or an option that cannot be used.

    Attributes:
        code: a stable word for programs, such as ``models.architecture``.
        path: where it is: a file's name, or the name of an argument.
        message: what is wrong and what would be right, without the path.
    """

    def __init__(self, code: str, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.code = code
        self.path = path
        self.message = message

    def __reduce__(self) -> tuple[type[ModelError], tuple[str, str, str]]:
        return type(self), (self.code, self.path, self.message)
