# What stubgen cannot know: that no hash is meant.
(Page|PagedCache|PageError|CacheComparison|Snapshot)\.__hash__$:
    \from typing import ClassVar
    __hash__: ClassVar[None]  # type: ignore[assignment]
CachePolicy\.presets$:
    \from collections.abc import Mapping
    \from typing import ClassVar
    presets: ClassVar[Mapping[str, CachePolicy]]
