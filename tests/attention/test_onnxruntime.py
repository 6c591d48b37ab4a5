"""attend() against two operators of ONNX Runtime on what all three can do."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from attention_oracle import Array, attend
from onnx import TensorProto, helper

from onnx_light import PagedCache


def run(node: onnx.NodeProto, feeds: dict[str, Array], opsets: dict[str, int]) -> Array:
    graph = helper.make_graph(
        [node],
        "graph",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in feeds.items()
        ],
        [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(*opset) for opset in opsets.items()],
        ir_version=10,
    )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run([node.output[0]], feeds)[0])


def arrays(tokens: int, queries: int) -> tuple[Array, Array, Array]:
    random = np.random.default_rng(tokens)
    query = random.standard_normal((2, 6, queries, 32)).astype(np.float32)
    key = random.standard_normal((2, 2, tokens, 32)).astype(np.float32)
    value = random.standard_normal((2, 2, tokens, 32)).astype(np.float32)
    return query, key, value


def agree(peer: Array, query: Array, key: Array, value: Array, **options: Any) -> None:
    """Both are within the bound of the truth, so twice the bound is between them at most."""
    actual = PagedCache.from_arrays(key, value, page_size=48).attend(query, **options)
    _, bound = attend(query, key, value, **options)
    assert np.all(np.abs(actual - peer) <= 2 * bound)


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("tokens", [1, 64, 65, 200])
def test_attention(tokens: int, opset: int) -> None:
    query, key, value = arrays(tokens, tokens)
    random = np.random.default_rng(1)
    added = random.standard_normal((tokens, tokens)).astype(np.float32)
    hides = random.random((2, 1, tokens, tokens)) < 0.8
    hides[..., 0] = True
    cases: list[tuple[dict[str, Any], Array | None, dict[str, Any]]] = [
        ({"is_causal": 1}, None, {}),
        ({"is_causal": 0}, None, {"is_causal": False}),
        ({"is_causal": 1, "scale": 0.3}, None, {"scale": 0.3}),
        ({"is_causal": 0, "softcap": 2.0}, None, {"is_causal": False, "softcap": 2.0}),
        ({"is_causal": 0}, added, {"is_causal": False, "attn_mask": added}),
        ({"is_causal": 0}, hides, {"is_causal": False, "attn_mask": hides}),
    ]
    for attributes, mask, options in cases:
        feeds = {"q": query, "k": key, "v": value}
        if mask is not None:
            feeds["mask"] = mask
        node = helper.make_node("Attention", list(feeds), ["y"], **attributes)
        agree(run(node, feeds, {"": opset}), query, key, value, **options)


@pytest.mark.parametrize("past", [0, 1, 63, 200])
def test_group_query_attention(past: int) -> None:
    for queries in (1, 30) if past == 0 else (1,):
        query, key, value = arrays(past + queries, queries)
        for window, softcap in ((-1, 0.0), (5, 0.0), (-1, 3.0)):
            flat = [
                x[:, :, -queries:].transpose(0, 2, 1, 3).reshape(2, queries, -1)
                for x in (query, key, value)
            ]
            feeds = {
                **dict(zip(("q", "k", "v"), flat, strict=True)),
                "past_key": key[:, :, :past],
                "past_value": value[:, :, :past],
                "lengths": np.full(2, past + queries - 1, np.int32),
                "total": np.array(past + queries, np.int32),
            }
            node = helper.make_node(
                "GroupQueryAttention",
                list(feeds),
                ["y", "present_key", "present_value"],
                domain="com.microsoft",
                num_heads=6,
                kv_num_heads=2,
                local_window_size=window,
                softcap=softcap,
            )
            result = run(node, feeds, {"": 20, "com.microsoft": 1})
            peer = result.reshape(2, queries, 6, 32).transpose(0, 2, 1, 3)
            # Its window counts the query's own token, ours those before it.
            left = window - 1 if window > 0 else -1
            agree(peer, query, key, value, left_window_size=left, softcap=softcap)
