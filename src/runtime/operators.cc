#include "runtime/operators.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <utility>
#include <vector>

#include "base/convert.h"
#include "onnx_light/errors.h"
#include "onnx_light/paged_attention.h"
#include "onnx_light/quantization_parameters.h"
#include "onnx_light/value_handles.h"

namespace onnx_light::ort {
namespace {

std::string TypeText(const Tensor& tensor) {
  return "type " + std::to_string(tensor.type) + " of TensorProto";
}

[[noreturn]] void RefuseType(const Tensor& tensor, const char* wanted) {
  throw ValueError("runtime.input", tensor.name, TypeText(tensor) + ", " + wanted + " is needed");
}

DType FloatType(const Tensor& tensor) {
  const auto dtype = tensor.dtype();
  if (!dtype || ElementSize(*dtype) < 2) RefuseType(tensor, "FLOAT, FLOAT16 or BFLOAT16");
  return *dtype;
}

class PagedAttentionKernel {
 public:
  static constexpr size_t kCacheInput = 3;
  static constexpr std::array kInputNames = {"Q", "K", "V", "past", "attn_mask", "sinks"};

  explicit PagedAttentionKernel(const KernelInfo& node) {
    options_.block_size = node.Integer("block_size", options_.block_size);
    options_.max_tokens = node.Integer("max_tokens", options_.max_tokens);
    query_heads_ = node.Integer("q_num_heads", 0);
    kv_heads_ = node.Integer("kv_num_heads", 0);
    CheckAttributes();
    const std::string policy = node.Text("policy");
    if (!policy.empty()) options_.policy = CachePolicy::Parse(policy);
    AttentionOptions& attention = options_.attention;
    attention.is_causal = node.Integer("is_causal", 1) != 0;
    attention.left_window_size = node.Integer("left_window_size", -1);
    attention.scale = node.Float("scale");
    attention.softcap = node.Float("softcap").value_or(0);
  }

  void Compute(const KernelCall& call) const {
    const Tensor query = Input(call, 0), key = Input(call, 1), value = Input(call, 2);
    const int64_t past = call.Handle(kCacheInput, kInputNames[kCacheInput]);
    CheckRanks(query, {&key, &value});
    const ArrayView queries = Heads(query, query_heads_, "q_num_heads");
    const ArrayView keys = Heads(key, kv_heads_, "kv_num_heads");
    const ArrayView values = Heads(value, kv_heads_, "kv_num_heads");
    PagedAttentionOptions options = options_;
    const ParallelLoop parallel_for = call.parallel_for();
    options.attention.parallel_for = &parallel_for;
    const auto mask = call.OptionalInput(4, kInputNames[4]);
    if (mask) options.attention.mask = MaskOf(*mask);
    const auto sinks = call.OptionalInput(5, kInputNames[5]);
    std::vector<float> sink_values;
    if (sinks) {
      sink_values = SinksOf(*sinks);
      options.attention.sinks = sink_values;
    }
    const bool is_joined = query.rank == 3;
    const std::array dims = {queries.batch(), queries.heads(), queries.tokens(), values.width()};
    const std::array joined = {dims[0], dims[2], dims[1] * dims[3]};
    const auto shape = is_joined ? std::span<const int64_t>(joined) : dims;
    auto* const output = static_cast<std::byte*>(call.Output(0, shape));
    const bool is_direct = output != nullptr && (!is_joined || dims[1] == 1 || dims[2] == 1);
    std::vector<std::byte> rows;
    const int64_t row_bytes = dims[3] * ElementSize(queries.dtype);
    if (!is_direct) rows.resize(dims[0] * dims[1] * dims[2] * row_bytes);
    PagedCache present = PagedAttention(*CacheOf(past), queries, keys, values, options,
                                        is_direct ? output : rows.data());
    if (!is_direct && output != nullptr) JoinHeads(rows.data(), dims, row_bytes, output);
    call.SetInteger(1, AddBeside(past, std::move(present)));
  }

 private:
  void CheckAttributes() const {
    const auto check = [](const char* name, int64_t value, int64_t least) {
      if (value >= least) return;
      throw ValueError("runtime.attribute", name,
                       std::to_string(value) + ", must be at least " + std::to_string(least));
    };
    check("block_size", options_.block_size, 1);
    check("max_tokens", options_.max_tokens, 0);
    check("q_num_heads", query_heads_, 0);
    check("kv_num_heads", kv_heads_, 0);
  }

  static void CheckRanks(const Tensor& query, std::initializer_list<const Tensor*> others) {
    for (const Tensor* tensor : others) {
      if (tensor->rank == query.rank) continue;
      throw ValueError("runtime.input", tensor->name,
                       std::to_string(tensor->rank) + " dims, but " + query.name + " has " +
                           std::to_string(query.rank));
    }
  }

  // As [batch, heads, tokens, width]. Of [batch, tokens, heads * width] the attribute says how many
  // heads there are.
  static ArrayView Heads(const Tensor& tensor, int64_t heads, const char* attribute) {
    if (tensor.rank != 3) return tensor.view();
    if (heads == 0) {
      throw ValueError("runtime.attribute", attribute,
                       "is needed, because " + tensor.name + " has three dims");
    }
    if (tensor.dims[2] % heads != 0) {
      throw ValueError("runtime.input", tensor.name,
                       std::to_string(tensor.dims[2]) + " values a token, " + attribute + " is " +
                           std::to_string(heads));
    }
    ArrayView view =
        ContiguousView(tensor.data, FloatType(tensor),
                       {tensor.dims[0], tensor.dims[1], heads, tensor.dims[2] / heads});
    std::swap(view.shape[1], view.shape[2]);
    std::swap(view.strides[1], view.strides[2]);
    return view;
  }

  // Rows [batch, heads, tokens] to [batch, tokens, heads].
  static void JoinHeads(const std::byte* rows, const std::array<int64_t, 4>& dims,
                        int64_t row_bytes, std::byte* output) {
    const auto [batch, heads, tokens, width] = dims;
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t token = 0; token < tokens; ++token) {
          std::byte* target = output + ((b * tokens + token) * heads + head) * row_bytes;
          std::memcpy(target, rows, row_bytes);
          rows += row_bytes;
        }
      }
    }
  }

  static Tensor Input(const KernelCall& call, size_t index) {
    return call.Input(index, kInputNames[index]);
  }

  static MaskView MaskOf(const Tensor& tensor) {
    MaskView mask;
    if (tensor.type != kBool) mask.dtype = FloatType(tensor);
    if (tensor.rank > 4) {
      throw ValueError("runtime.input", tensor.name,
                       std::to_string(tensor.rank) + " dims, can have 4 at most");
    }
    mask.data = tensor.data;
    int64_t stride = mask.dtype ? ElementSize(*mask.dtype) : 1;
    for (size_t i = 4; i-- > 0;) {
      const size_t missing = 4 - tensor.rank;
      mask.shape[i] = i < missing ? 1 : tensor.dims[i - missing];
      mask.strides[i] = stride;
      stride *= mask.shape[i];
    }
    return mask;
  }

  static std::vector<float> SinksOf(const Tensor& tensor) {
    if (tensor.rank != 1) {
      throw ValueError("runtime.input", tensor.name,
                       std::to_string(tensor.rank) + " dims, must be one: [query heads]");
    }
    std::vector<float> sinks(tensor.count());
    ConvertElements(FloatType(tensor), tensor.data, DType::kFloat32, sinks.data(), sinks.size());
    return sinks;
  }

  PagedAttentionOptions options_;
  int64_t query_heads_ = 0;  // 0: not said
  int64_t kv_heads_ = 0;
};

class QuantizePagedCacheKernel {
 public:
  static constexpr size_t kCacheInput = 0;

  explicit QuantizePagedCacheKernel(const KernelInfo&) {}

  void Compute(const KernelCall& call) const {
    const int64_t cache = call.Handle(kCacheInput, "cache");
    const Tensor indices = call.Input(1, "block_indices");
    if (indices.type != kInt64) RefuseType(indices, "INT64");
    std::vector<int64_t> pages(indices.count());
    if (!pages.empty()) {
      std::memcpy(pages.data(), indices.data, pages.size() * sizeof(int64_t));
    }
    const Tensor key_scale = call.Input(2, "key_scale");
    const Tensor key_zero_point = call.Input(3, "key_zero_point");
    const Tensor value_scale = call.Input(4, "value_scale");
    const Tensor value_zero_point = call.Input(5, "value_zero_point");
    PagedCache quantized = CacheOf(cache)->QuantizePagesWith(
        pages, Parameters(key_scale, key_zero_point), Parameters(value_scale, value_zero_point));
    call.SetInteger(0, AddBeside(cache, std::move(quantized)));
  }

 private:
  // ONNX Runtime hands no codes of 2 bits to custom operators.
  static std::optional<PageType> CodeType(const Tensor& zero_point) {
    switch (zero_point.type) {
      case kFloat:
        return std::nullopt;
      case kInt8:
        return PageType::kInt8;
      case kUInt8:
        return PageType::kUInt8;
      case kInt4:
        return PageType::kInt4;
      case kUInt4:
        return PageType::kUInt4;
      default:
        RefuseType(zero_point, "INT8, UINT8, INT4, UINT4 or FLOAT");
    }
  }

  // A view of the tensors.
  static QuantizationParameters Parameters(const Tensor& scale, const Tensor& zero_point) {
    QuantizationParameters parameters;
    parameters.code_type = CodeType(zero_point);
    parameters.scale_type = FloatType(scale);
    parameters.shape = scale.shape();
    parameters.scales = scale.data;
    parameters.zero_points = zero_point.data;
    if (!std::ranges::equal(scale.shape(), zero_point.shape())) {
      throw ValueError("quant.zero_point", zero_point.name,
                       "its shape is not that of " + scale.name);
    }
    return parameters;
  }
};

class PagedCacheLengthKernel {
 public:
  static constexpr size_t kCacheInput = 0;

  explicit PagedCacheLengthKernel(const KernelInfo&) {}

  void Compute(const KernelCall& call) const {
    call.SetInteger(0, CacheOf(call.Handle(kCacheInput, "cache"))->end());
  }
};

template <ElementType type>
constexpr std::array kAttentionInputs = {Port{type},
                                         Port{type},
                                         Port{type},
                                         Port{kInt64},
                                         Port{kUndefined, kOptional},
                                         Port{kUndefined, kOptional}};
template <ElementType type>
constexpr std::array kAttentionOutputs = {Port{type, kOptional}, Port{kInt64, kOptional}};
constexpr std::array kQuantizeInputs = {Port{kInt64},     Port{kInt64},     Port{kUndefined},
                                        Port{kUndefined}, Port{kUndefined}, Port{kUndefined}};
constexpr std::array kCache = {Port{kInt64}};

template <ElementType type>
Operator AttentionOf() {
  return MakeOperator<PagedAttentionKernel>("PagedAttention", kAttentionInputs<type>,
                                            kAttentionOutputs<type>);
}

}  // namespace

std::span<const Operator> Operators() {
  static const auto* operators = new std::array{
      AttentionOf<kFloat>(), AttentionOf<kFloat16>(), AttentionOf<kBFloat16>(),
      MakeOperator<QuantizePagedCacheKernel>("QuantizePagedCache", kQuantizeInputs, kCache),
      MakeOperator<PagedCacheLengthKernel>("PagedCacheLength", kCache, kCache)};
  return *operators;
}

}  // namespace onnx_light::ort
