"""A valid model with everything that the rules for this project's messages speak of."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnx_light import PagedCache
from onnx_light.onnx import GraphProto, ModelProto, StructTypeProto, TypeProto, from_array

PREFIX = "onnx_light.quantization.parameters:"
CACHE_ID, PAIR_ID, CODES_ID = 40, 41, 42


def tensor(element: int, *dims: int | str | None) -> TypeProto:
    """A TypeProto of a tensor; dims are sizes, symbols, or None."""
    shape = [
        {} if dim is None else {"dim_param" if isinstance(dim, str) else "dim_value": dim}
        for dim in dims
    ]
    return TypeProto(tensor_type={"elem_type": element, "shape": {"dim": shape}})


def cache_type(
    batch: int | None = 1, heads: int | None = 2, key: int | None = 64, value: int | None = 32
) -> StructTypeProto:
    """The type of cache values, as the contract writes it down."""
    page = {
        "structure": {
            "field": [
                {"name": "start", "type": tensor(7)},
                {"name": "length", "type": tensor(7)},
                {"name": "key", "type": tensor(1, batch, heads, None, key)},
                {"name": "value", "type": tensor(1, batch, heads, None, value)},
            ]
        }
    }
    blocks: dict[str, Any] = {"sequence_type": {"elem_type": {"struct_type": page}}}
    return StructTypeProto(
        name="onnx_light.PagedKVCache",
        metadata_props=[{"key": "onnx_light.type_version", "value": "1"}],
        structure={"field": [{"name": "blocks", "type": blocks}]},
    )


def caches() -> dict[str, PagedCache]:
    rng = np.random.default_rng(5)
    key = rng.standard_normal((1, 2, 20, 64)).astype("f4")
    value = rng.standard_normal((1, 2, 20, 32)).astype("f4")
    policies = {
        "dense": None,
        "half": "float16",
        "codes": "key=int8/channel value=uint4/token:16",
        "records": "key=q8_0 value=q4_0",
    }
    return {
        name: PagedCache.from_arrays(key, value, page_size=8, policy=policy)
        for name, policy in policies.items()
    }


def add_encoded(graph: GraphProto, name: str) -> None:
    """An encoded initializer whose parameters are in the catalogue."""
    value = graph.encoded_initializer.add(name=name, raw_data=bytes(6), parameter_ref="shared")
    value.affine.storage_type = 3
    value.logical_type = tensor(1, 2, 3)


def full_model() -> ModelProto:
    model = ModelProto(ir_version=10, opset_import=[{"version": 21}, {"domain": "ai.rt"}])
    model.opset_import[1].version = 1
    graph = model.graph
    graph.name = "main"
    graph.initializer.append(from_array(np.float32(0.5), "s"))
    graph.initializer.append(from_array(np.int8(3), "z"))
    note = graph.quantization_annotation.add(tensor_name=PREFIX + "shared")
    for key, name in (("scale", "s"), ("zero_point", "z")):
        note.quant_parameter_tensor_names.add(key=key, value=name)
    add_encoded(graph, "weight")

    whole = model.struct_types.add()
    whole.CopyFrom(cache_type())
    whole.type_id = CACHE_ID
    pair = model.struct_types.add(type_id=PAIR_ID, name="pair")
    pair.structure.field.add(name="first", type=tensor(1))
    pair.structure.field.add(name="second").type.struct_type.type_ref = CODES_ID
    codes = model.struct_types.add(type_id=CODES_ID, name="codes")
    codes.array.element_type = tensor(3)
    codes.array.dimension = 32

    for name, cache in caches().items():
        graph.paged_cache_initializer.append(cache.to_proto(name))
        graph.input.add(name=name).type.struct_type.type_ref = CACHE_ID
        graph.output.add(name=f"present.{name}").type.struct_type = cache_type(1, None, 64, None)
        graph.node.add(
            op_type="PagedAttention",
            domain="ai.rt",
            input=["q", "k", "v", name],
            output=[f"y.{name}", f"present.{name}"],
        )
        graph.persistent_bindings.add(input_name=name, output_name=f"present.{name}")
    graph.paged_cache_initializer.add(name="constant")
    for name in ("q", "k", "v"):
        graph.input.add(name=name, type=tensor(1, 1, 2, "tokens", 64))
    graph.input.add(name="state", type=tensor(1, "past", 4))
    graph.output.add(name="next", type=tensor(1, "total", 4))
    graph.node.add(op_type="Identity", input=["state"], output=["next"])
    graph.persistent_bindings.add(input_name="state", output_name="next")
    graph.input.add(name="pair").type.struct_type.type_ref = PAIR_ID
    graph.output.add(name="next_pair").type.struct_type = pair
    graph.node.add(op_type="Identity", input=["pair"], output=["next_pair"])
    graph.persistent_bindings.add(input_name="pair", output_name="next_pair")

    condition = graph.input.add(name="condition", type=tensor(9))
    branch = graph.node.add(op_type="If", input=[condition.name], output=["chosen"])
    for name in ("then_branch", "else_branch"):
        body = branch.attribute.add(name=name, type=5).g
        body.name = name
        add_encoded(body, f"weight.{name}")
        body.paged_cache_initializer.append(caches()["codes"].to_proto(f"cache.{name}"))
        body.node.add(op_type="Identity", input=[f"weight.{name}"], output=[f"out.{name}"])
        body.output.add(name=f"out.{name}", type=tensor(1, 2, 3))
    graph.output.add(name="chosen", type=tensor(1, 2, 3))
    return model
