"""The operators of ai.rt in plain onnxruntime, one at a time."""

import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_light._core import held_values
from operator_models import (
    CACHE_TYPE,
    ERRORS,
    attention_model,
    make_model,
    make_session,
    random_arrays,
    run_attention,
    tensor_type,
)

from attention import attention_oracle
from attention.attention_oracle import attend
from onnx_light import PagedCache
from onnx_light.errors import CodedError
from onnx_light.runtime import handle, release, value

HEADS, KV_HEADS, WIDTH, VALUE_WIDTH = 6, 2, 24, 40


def arrays(tokens: int, seed: int = 0, dtype: Any = np.float32, new: int | None = None) -> Any:
    count = tokens if new is None else new
    q, k, v = random_arrays(
        seed,
        (2, HEADS, tokens, WIDTH),
        (2, KV_HEADS, count, WIDTH),
        (2, KV_HEADS, count, VALUE_WIDTH),
        dtype=dtype,
    )
    return {"Q": q, "K": k, "V": v}


def check(session: Any, past: PagedCache, feeds: dict[str, Any], **options: Any) -> PagedCache:
    """Runs, compares Y with float64 on the past's values and the new rows, gives the present."""
    y, present = run_attention(session, past, feeds)
    key, new_value = feeds["K"], feeds["V"]
    keys, values = key, new_value
    if len(past):
        keys = np.concatenate([past.key_array("float32"), key], axis=2)
        values = np.concatenate([past.value_array("float32"), new_value], axis=2)
    given = {name: feeds[name] for name in ("attn_mask", "sinks") if name in feeds}
    expected, bound = attend(feeds["Q"], keys, values, **given, **options)
    if y is not None:
        assert y.dtype == feeds["Q"].dtype
        assert np.all(np.abs(y.astype(np.float64) - expected) <= bound)
    assert present.start == past.start
    assert len(present) == len(past) + key.shape[2]
    return present


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_attention_appends_and_attends(dtype: Any) -> None:
    feeds = arrays(3, dtype=dtype)
    session = make_session(attention_model(feeds))
    cache = PagedCache()
    for step in range(8):
        feeds = arrays(3 if step != 4 else 20, step, dtype)
        before = cache
        cache = check(session, cache, feeds)
        assert cache == (before if len(before) else PagedCache(16)).append(feeds["K"], feeds["V"])
    assert cache.page_size == 16
    assert [page.end - page.start for page in cache.pages] == [16, 16, 9]
    assert cache.key_array().dtype == dtype


def joined(array: Any) -> Any:
    """[batch, tokens, heads * width]"""
    batch, heads, tokens, width = array.shape
    return array.transpose(0, 2, 1, 3).reshape(batch, tokens, heads * width)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_three_dims_with_the_numbers_of_heads(dtype: Any) -> None:
    sizes = {"q_num_heads": HEADS, "kv_num_heads": KV_HEADS}
    feeds = arrays(3, dtype=dtype)
    session = make_session(attention_model({name: joined(a) for name, a in feeds.items()}, **sizes))
    cache = PagedCache(16)
    for tokens in (3, 1, 20, 1):
        feeds = arrays(tokens, tokens, dtype)
        y, present = run_attention(session, cache, {name: joined(a) for name, a in feeds.items()})
        cache = cache.append(feeds["K"], feeds["V"])
        assert present == cache
        expected, bound = attend(
            feeds["Q"], cache.key_array("float32"), cache.value_array("float32")
        )
        assert y.dtype == dtype
        assert y.shape == (2, tokens, HEADS * VALUE_WIDTH)
        assert (
            np.abs(y - joined(expected)) <= joined(np.broadcast_to(bound, expected.shape))
        ).all()


@pytest.mark.parametrize(
    ("code", "sizes", "part"),
    [
        ("runtime.attribute", {"q_num_heads": HEADS}, "kv_num_heads"),
        ("runtime.attribute", {"kv_num_heads": KV_HEADS}, "q_num_heads"),
        ("runtime.input", {"q_num_heads": 5, "kv_num_heads": KV_HEADS}, "Q"),
        ("runtime.input", {"q_num_heads": HEADS, "kv_num_heads": 7}, "K"),
    ],
)
def test_three_dims_that_do_not_go_together(code: str, sizes: dict[str, int], part: str) -> None:
    feeds = {name: joined(array) for name, array in arrays(2).items()}
    session = make_session(attention_model(feeds, **sizes))
    with pytest.raises(ERRORS, match=rf"Status Message: \[{code}\] {part}: "):
        run_attention(session, PagedCache(), feeds)


def test_three_and_four_dims() -> None:
    feeds = arrays(2)
    feeds["K"] = joined(feeds["K"])
    session = make_session(attention_model(feeds, q_num_heads=HEADS, kv_num_heads=KV_HEADS))
    with pytest.raises(ERRORS, match=r"\[runtime.input\] K: 3 dims, but Q has 4"):
        run_attention(session, PagedCache(), feeds)


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({}, ("attn_mask",)),
        ({}, ("sinks",)),
        ({}, ("attn_mask", "sinks")),
        ({"is_causal": 0}, ()),
        ({"left_window_size": 5}, ()),
        ({"left_window_size": 0}, ("sinks",)),
        ({"scale": 0.3}, ()),
        ({"softcap": 2.5}, ("attn_mask",)),
    ],
)
def test_attributes_and_optional_inputs(options: dict[str, Any], given: Any) -> None:
    past = PagedCache.from_arrays(*(arrays(37, 7)[name] for name in "KV"), page_size=16)
    feeds = arrays(5, 8)
    mask, sinks = random_arrays(9, (HEADS, 5, 42), (HEADS,))
    for kind in ("float", "bool"):
        if "attn_mask" in given:
            feeds["attn_mask"] = mask if kind == "float" else mask > 0.5
        if "sinks" in given:
            feeds["sinks"] = sinks
        session = make_session(attention_model(feeds, **options))
        wanted = dict(options)
        if "is_causal" in wanted:
            wanted["is_causal"] = bool(wanted["is_causal"])
        check(session, past, feeds, **wanted)


def test_an_empty_tensor_stands_for_an_absent_input() -> None:
    feeds = arrays(4) | {
        "attn_mask": np.zeros((0,), np.float32),
        "sinks": random_arrays(1, (6,))[0],
    }
    session = make_session(attention_model(feeds))
    y, _ = run_attention(session, PagedCache(), feeds)
    expected, bound = attend(feeds["Q"], feeds["K"], feeds["V"], sinks=feeds["sinks"])
    assert np.all(np.abs(y - expected) <= bound)


def test_queries_without_new_keys_and_the_other_way_round() -> None:
    past = PagedCache.from_arrays(*(arrays(9, 1)[name] for name in "KV"))
    feeds = arrays(4, 2, new=0)
    session = make_session(attention_model(feeds))
    assert check(session, past, feeds) == past
    y, present = run_attention(session, PagedCache(), feeds)
    assert y.shape == (2, HEADS, 4, VALUE_WIDTH)
    assert not y.any()
    assert len(present) == 0
    feeds = arrays(0, 3, new=7)
    y, present = run_attention(session, past, feeds)
    assert y.shape == (2, HEADS, 0, VALUE_WIDTH)
    assert present == past.append(feeds["K"], feeds["V"])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("softcap", [0.0, 3.0])
def test_where_the_standard_operator_says_the_same(causal: bool, softcap: float) -> None:
    """ONNX's reference of Attention-23: with a past where all is seen, without one where not."""
    feeds = arrays(7)
    past = PagedCache(16)
    given = {name: array.astype(np.float64) for name, array in feeds.items()}
    if not causal:
        before = arrays(20, seed=1)
        past = past.append(before["K"], before["V"])
        given |= {"past_key": before["K"], "past_value": before["V"]}
    options = {"is_causal": int(causal), "softcap": softcap}
    names = ["Q", "K", "V", "", "past_key", "past_value"]
    inputs = [name if name in given else "" for name in names]
    node = helper.make_node("Attention", inputs if not causal else inputs[:3], ["Y"], **options)
    double = helper.make_tensor_type_proto(TensorProto.DOUBLE, None)
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_value_info(name, double) for name in given],
        [helper.make_value_info("Y", double)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    [expected] = ReferenceEvaluator(model).run(None, given)
    y, _ = run_attention(make_session(attention_model(feeds, **options)), past, feeds)
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("policy", ["int8", "key=uint4/channel value=int8/token recent_tokens=20"])
def test_rows_are_seen_as_stored_and_encoded_afterwards(policy: str) -> None:
    feeds = arrays(1)
    session = make_session(attention_model(feeds, policy=policy, block_size=8))
    cache = PagedCache()
    for step in range(50):
        feeds = arrays(1 if step else 11, step)
        cache = check(session, cache, feeds)  # with the new rows as they are
    expected = PagedCache(8, policy)
    for step in range(50):
        feeds = arrays(1 if step else 11, step)
        expected = expected.append(feeds["K"], feeds["V"])
    assert cache == expected
    assert str(cache.policy) == str(expected.policy)
    assert "int8" in repr(cache)


def test_the_policy_of_the_past_holds_where_the_operator_names_none() -> None:
    feeds = arrays(20)
    session = make_session(attention_model(feeds))
    past = PagedCache(4, "int8")
    _, present = run_attention(session, past, feeds)
    assert present.policy == past.policy
    assert present.page_size == 16  # of the operator, for an empty past
    _, later = run_attention(session, present, arrays(20, 1))
    assert [str(page.key.format).split("/")[0] for page in later.pages] == ["int8"] * 2 + [
        "float32"
    ]


def test_old_values_stay_what_they_were() -> None:
    feeds = arrays(1)
    session = make_session(attention_model(feeds))
    past = PagedCache.from_arrays(*(arrays(17, 1)[name] for name in "KV"))
    kept = past.to_arrays()
    forks = []
    for seed in range(5):
        forks.append(run_attention(session, past, arrays(1, seed))[1])
    for seed, fork in enumerate(forks):
        new = arrays(1, seed)
        assert fork == past.append(new["K"], new["V"])
    for before, after in zip(kept, past.to_arrays(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_threads_of_the_session_give_the_same_bits() -> None:
    past = PagedCache.from_arrays(*(arrays(3000, 1)[name] for name in "KV"))
    feeds = arrays(2, 2)
    results = []
    for threads in (1, 2, 5):
        session = make_session(attention_model(feeds), intra_op_num_threads=threads)
        results.append(run_attention(session, past, feeds)[0])
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    np.testing.assert_array_equal(
        results[0], past.append(feeds["K"], feeds["V"]).attend(feeds["Q"])
    )


def test_a_session_serves_many_threads() -> None:
    feeds = arrays(1)
    session = make_session(attention_model(feeds))
    start = PagedCache.from_arrays(*(arrays(30, 1)[name] for name in "KV"))

    def work(seed: int) -> PagedCache:
        cache = start
        for step in range(40):
            _, cache = run_attention(session, cache, arrays(1, 100 * seed + step))
        return cache

    before = held_values()
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(work, range(8)))
    for seed, result in enumerate(results):
        expected = start
        for step in range(40):
            new = arrays(1, 100 * seed + step)
            expected = expected.append(new["K"], new["V"])
        assert result == expected
    assert held_values() == before


def length_session() -> Any:
    node = helper.make_node("PagedCacheLength", ["cache"], ["length"], domain="ai.rt")
    return make_session(make_model(node, {"cache": CACHE_TYPE}, {"length": CACHE_TYPE}))


def test_length_is_the_end_position() -> None:
    session = length_session()
    keys, values = (arrays(40)[name] for name in "KV")
    full = PagedCache.from_arrays(keys, values, page_size=16)
    for cache, expected in (
        (PagedCache(), 0),
        (full, 40),
        (full.drop_before(20), 40),
        (full.truncate(33), 33),
        (PagedCache.from_arrays(keys, values, start=1000), 1040),
    ):
        number = handle(cache)
        (length,) = session.run(None, {"cache": number})
        assert length.dtype == np.int64
        assert length.shape == ()
        assert length == expected
        release(number)


# QuantizePagedCache

PAGE = (2, KV_HEADS, 16, WIDTH)


def quantize_model(feeds: dict[str, Any]) -> Any:
    names = ["cache", "block_indices", "key_scale", "key_zero_point"]
    names += ["value_scale", "value_zero_point"]
    node = helper.make_node("QuantizePagedCache", names, ["quantized"], "quantize", domain="ai.rt")
    inputs = {"cache": CACHE_TYPE} | {name: tensor_type(feeds[name]) for name in names[1:]}
    return make_model(node, inputs, {"quantized": CACHE_TYPE})


def quantize(cache: PagedCache, indices: Any, key: Any, values: Any) -> PagedCache:
    feeds = {"block_indices": np.array(indices, np.int64)}
    feeds |= {"key_scale": key[0], "key_zero_point": key[1]}
    feeds |= {"value_scale": values[0], "value_zero_point": values[1]}
    session = make_session(quantize_model(feeds))
    number = handle(cache)
    try:
        return value(session.run(None, feeds | {"cache": number})[0])
    finally:
        release(number)


def reconstructed(rows: Any, scale: Any, zero_point: Any) -> Any:
    """What the codes say, in numpy: each parameter covers a block of every dim."""
    low, high = np.iinfo(zero_point.dtype).min, np.iinfo(zero_point.dtype).max
    factor, zero = scale.astype(np.float32), zero_point.astype(np.float32)
    for axis, dim in enumerate(rows.shape if scale.ndim else ()):
        block = -(-dim // scale.shape[axis])
        factor = np.repeat(factor, block, axis).take(range(dim), axis)
        zero = np.repeat(zero, block, axis).take(range(dim), axis)
    codes = np.clip(np.rint(rows / factor) + zero, low, high)
    return ((codes - zero) * factor).astype(np.float32)


SHAPES = [
    (),
    (1, 1, 1, 1),
    (1, 1, 1, WIDTH),
    (1, KV_HEADS, 1, WIDTH),
    (2, KV_HEADS, 16, 1),
    (1, 1, 4, 1),
    (1, KV_HEADS, 3, 5),
    (2, 1, 1, 3),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantize_with_given_parameters(shape: tuple[int, ...], dtype: Any) -> None:
    keys, values = random_arrays(3, (2, KV_HEADS, 40, WIDTH), (2, KV_HEADS, 40, WIDTH))
    cache = PagedCache.from_arrays(keys, values, page_size=16)
    query = arrays(3)["Q"]
    generator = np.random.default_rng(4)
    for scale_type in (np.float32, np.float16):
        scale = generator.uniform(0.01, 0.05, shape).astype(scale_type)
        zero = generator.integers(0, 60, shape).astype(dtype)
        quantized = quantize(
            cache,
            [1, 0],
            (scale, zero),
            (np.array(scale_type(0.02)), np.array(7, dtype)),
        )
        assert len(quantized) == 40
        attention_oracle.check(quantized, query)
        for page in range(2):
            rows = slice(16 * page, 16 * page + 16)
            np.testing.assert_array_equal(
                quantized.key_array("float32")[:, :, rows],
                reconstructed(keys[:, :, rows], scale, zero),
            )
            np.testing.assert_array_equal(
                quantized.value_array("float32")[:, :, rows],
                reconstructed(values[:, :, rows], np.array(scale_type(0.02)), np.array(7, dtype)),
            )
        np.testing.assert_array_equal(quantized.key_array("float32")[:, :, 32:], keys[:, :, 32:])
        back = quantize(
            quantized,
            [0],
            (scale, np.zeros(shape, np.float32)),
            (scale, np.zeros(shape, np.float32)),
        )
        assert next(str(page.key.format).split("/")[0] for page in back.pages) == "float32"
        np.testing.assert_array_equal(back.key_array("float32"), quantized.key_array("float32"))


@pytest.mark.parametrize(
    ("code", "indices", "scale", "zero"),
    [
        ("cache.page_index", [0, 0], np.float32(1), np.int8(0)),
        ("cache.page_index", [-1], np.float32(1), np.int8(0)),
        ("cache.page_index", [3], np.float32(1), np.int8(0)),
        ("quant.scale", [0], np.float32(-1), np.int8(0)),
        ("quant.scale", [0], np.float32("nan"), np.int8(0)),
        ("quant.scale", [0], np.ones(3, np.float32), np.zeros(3, np.int8)),
        ("quant.scale", [0], np.ones((1, 1, 1, 23), np.float32), np.zeros((1, 1, 1, 23), np.int8)),
        ("quant.zero_point", [0], np.ones((1, 1, 1, 1), np.float32), np.int8(0)),
        ("runtime.input", [0], np.float32(1), np.int32(0)),
        ("runtime.input", [0], np.float64(1), np.int8(0)),
    ],
)
def test_quantize_refuses(code: str, indices: Any, scale: Any, zero: Any) -> None:
    cache = PagedCache.from_arrays(*random_arrays(3, (2, KV_HEADS, 40, WIDTH)) * 2, page_size=16)
    good = np.array(1, np.float32), np.array(0, np.int8)
    before = held_values()
    with pytest.raises(ERRORS, match=rf"Name:'quantize' Status Message: \[{code}\]"):
        quantize(cache, indices, (np.array(scale), np.array(zero)), good)
    assert held_values() == before


# Errors


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("cache.shape", {"K": (2, 3, 4, WIDTH)}),
        ("cache.shape", {"V": (2, KV_HEADS, 5, VALUE_WIDTH)}),
        ("attention.shape", {"Q": (2, 5, 4, WIDTH)}),
        ("attention.shape", {"attn_mask": (3, 4)}),
        ("attention.shape", {"sinks": (5,)}),
        ("runtime.max_tokens", {"K": (2, KV_HEADS, 4095, WIDTH), "V": (2, KV_HEADS, 4095, 40)}),
    ],
)
def test_failures_have_our_code_and_the_name_of_the_node(code: str, changes: Any) -> None:
    past = PagedCache.from_arrays(*(arrays(2, 1)[name] for name in "KV"))
    feeds = arrays(4) | {name: np.ones(shape, np.float32) for name, shape in changes.items()}
    session = make_session(attention_model(feeds))
    before = held_values()
    with pytest.raises(ERRORS, match=rf"Name:'attention' Status Message: \[{code}\]"):
        run_attention(session, past, feeds)
    assert held_values() == before
    for name in changes:
        feeds[name] = arrays(4).get(name, np.zeros(0, np.float32))
    if "attn_mask" not in changes and "sinks" not in changes:
        check(session, past, feeds)  # the session goes on


@pytest.mark.parametrize(
    ("code", "attributes"),
    [
        ("runtime.attribute", {"block_size": 0}),
        ("runtime.attribute", {"max_tokens": -1}),
        ("runtime.attribute", {"q_num_heads": -1}),
        ("quant.policy", {"policy": "no such thing"}),
    ],
)
def test_wrong_attributes_are_refused_when_the_session_is_made(code: str, attributes: Any) -> None:
    with pytest.raises(ERRORS, match=rf"\[{code}\]"):
        make_session(attention_model(arrays(1), **attributes))


def test_max_tokens_zero_is_no_limit() -> None:
    feeds = arrays(1, new=5000)
    _, present = run_attention(
        make_session(attention_model(feeds, max_tokens=0)), PagedCache(), feeds
    )
    assert len(present) == 5000


def test_numbers_that_are_no_handles() -> None:
    session = length_session()
    number = handle(PagedCache())
    old = int(number)
    release(number)
    for wrong in (0, 1, -1, old, 2**62):
        with pytest.raises(ERRORS, match=r"\[runtime.handle\]"):
            session.run(None, {"cache": np.array(wrong, np.int64)})
        with pytest.raises(CodedError, match="handle") as caught:
            value(wrong)
        assert caught.value.code == "runtime.handle"
    for wrong_kind in (np.zeros(2, np.int64), np.zeros((), np.float32), 1.5):
        with pytest.raises(CodedError) as caught:
            release(wrong_kind)
        assert caught.value.code == "runtime.handle"


def test_thousands_of_runs_and_failures_leave_nothing() -> None:
    feeds = arrays(1)
    session = make_session(attention_model(feeds))
    wrong = feeds | {"K": np.ones((2, 3, 1, WIDTH), np.float32)}
    past = PagedCache.from_arrays(feeds["K"], feeds["V"])
    before = held_values()
    for step in range(1500):
        run_attention(session, past, feeds)
        if step % 2:
            with pytest.raises(ERRORS):
                run_attention(session, past, wrong)
    assert held_values() == before


def test_options_make_several_sessions_and_processes_need_no_extension() -> None:
    model = make_model(
        helper.make_node("PagedCacheLength", ["cache"], ["length"], domain="ai.rt"),
        {"cache": CACHE_TYPE},
        {"length": CACHE_TYPE},
    )
    program = f"""
import gc, importlib.util, pathlib, sys
import onnxruntime
package = pathlib.Path(importlib.util.find_spec("onnx_light").origin).parent
model = {model.SerializeToString()!r}
for _ in range(3):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(package / "lib" / "libonnx_light.so"))
    sessions = [onnxruntime.InferenceSession(model, options) for _ in range(2)]
    for session in sessions:
        try:
            session.run(None, {{"cache": __import__("numpy").array(3)}})
        except Exception as error:
            assert "[runtime.handle]" in str(error), error
        else:
            raise AssertionError
    del sessions, session, options
    gc.collect()
assert "onnx_light._core" not in sys.modules
import onnx_light.runtime as runtime
number = runtime.handle(__import__("onnx_light").PagedCache())
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(runtime.get_library_path())
session = onnxruntime.InferenceSession(model, options)
assert session.run(None, {{"cache": number}}) == [0]
print("done")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


def test_all_pairs_of_optional_inputs_load() -> None:
    sinks, mask = np.zeros(HEADS, np.float32), np.ones((1, 1), bool)
    for with_mask, with_sinks in itertools.product((False, True), repeat=2):
        feeds = arrays(1)
        feeds |= {"attn_mask": mask} if with_mask else {}
        feeds |= {"sinks": sinks} if with_sinks else {}
        check(make_session(attention_model(feeds)), PagedCache(), feeds)
