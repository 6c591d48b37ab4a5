"""attend() over the grid of group sizes, widths, page sizes, lengths, windows and formats."""

import itertools

import numpy as np
import pytest
from attention_oracle import Array, check

from onnx_light import PagedCache

FORMATS = (
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "key=int8/channel value=int8/token",
    "key=uint8/channel:32 value=uint8/channel",
    "key=uint4/channel:32 value=uint4/token:64",
    "key=int4/token value=int4/channel",
    "key=uint2/token value=int2/channel:16",
    "key=int8/tensor value=uint4/tensor",
    "key=q8_0 value=q4_0",
)
GROUPS = (1, 2, 3, 5, 8, 12)
WIDTHS = (1, 3, 8, 15, 16, 17, 32, 64, 80, 96, 128, 192, 256, 576)
PAGE_SIZES = (1, 16, 48, 64, 100, 512)
QUERIES = (1, 2, 5, 20)
WINDOWS = (-1, 0, 1, 15, 16, 63, 64, 65, 511, 512, 10**15)


def lengths(page_size: int) -> list[int]:
    """Both sides of where a page, a tile (64) and a part (512) end."""
    ends = {page_size, 2 * page_size, 64, 512}
    return sorted({1} | {max(1, end + near) for end in ends for near in (-1, 0, 1)})


def rows(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(cases: list[tuple[int, int, int, int]]) -> None:
    """Formats, windows and numbers of queries go round, so that each meets each in many cases."""
    for number, (group, width, page_size, tokens) in enumerate(cases):
        policy = FORMATS[number % len(FORMATS)]
        if "q8_0" in policy and width % 32:
            policy = "key=int8/channel value=uint8/token"
        value_width = WIDTHS[number * 5 % len(WIDTHS)] if "q4_0" not in policy else 64
        cache = PagedCache.from_arrays(
            rows(number, 1, 2, tokens, width),
            rows(number + 1, 1, 2, tokens, value_width),
            page_size=page_size,
            policy=policy,
        )
        queries, left = QUERIES[number % len(QUERIES)], WINDOWS[number % len(WINDOWS)]
        what = f"{policy} group {group} {width}x{value_width} page {page_size} tokens {tokens}"
        check(cache, rows(7, 1, 2 * group, queries, width), what, left_window_size=left)


ALL = [
    (group, width, page_size, tokens)
    for group, width, page_size in itertools.product(GROUPS, WIDTHS, PAGE_SIZES)
    for tokens in lengths(page_size)
]


def test_a_part_of_the_grid() -> None:
    run(ALL[::31])


@pytest.mark.long
@pytest.mark.parametrize("group", GROUPS)
def test_the_grid(group: int) -> None:
    run([case for case in ALL if case[0] == group])


@pytest.mark.parametrize("policy", FORMATS)
def test_layouts_agree(policy: str) -> None:
    """The same decoded values in pages of other sizes, dense: both are within the bound."""
    cache = PagedCache.from_arrays(
        rows(1, 1, 3, 600, 64), rows(2, 1, 3, 600, 64), page_size=64, policy=policy
    )
    query = rows(3, 1, 9, 1, 64)
    check(cache, query, policy)
    values = cache.to_arrays("float32")
    for page_size in (7, 16, 600, 1000):
        check(PagedCache.from_arrays(*values, page_size=page_size), query, f"{policy} {page_size}")


@pytest.mark.parametrize("policy", FORMATS)
def test_bits_are_those_of_one_thread(policy: str) -> None:
    """Threads decide how many heads are worked on together: 5 heads are never shared out evenly."""
    for tokens, batch in ((100, 1), (1100, 1), (70, 13)):
        cache = PagedCache.from_arrays(
            rows(4, batch, 5, tokens, 64), rows(5, batch, 5, tokens, 64), policy=policy
        )
        query = rows(6, batch, 10, 1, 64)
        one = cache.attend(query, num_threads=1)
        for threads in (2, 3, 4, 8):
            assert cache.attend(query, num_threads=threads).tobytes() == one.tobytes()
        alone = [cache.gather([i]).attend(query[i : i + 1]) for i in range(batch)]
        assert np.allclose(np.concatenate(alone), one, atol=1e-5)
