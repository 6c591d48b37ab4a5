# What stubgen cannot know: that no hash is meant.
__hash__$:
    \from typing import ClassVar
    __hash__: ClassVar[None]  # type: ignore[assignment]
