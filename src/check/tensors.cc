// Rules for tensors and for data in other files.
#include <optional>
#include <string>
#include <vector>

#include "base/open_beneath.h"
#include "check/context.h"
#include "onnx/external_data.h"
#include "onnx/tensor_layout.h"
#include "onnx_light/errors.h"

namespace onnx_light::check {
namespace {

// That a payload refers to a place as it must, and that its size, where the reference tells it, is
// the expected one.
void CheckOtherFile(const MessageInfo& info, const Message& message,
                    std::optional<uint64_t> expected_size, const Context& context) {
  try {
    const ExternalReference reference = ReadReference(info, message);
    CheckReference(info, message, reference);
    CheckLocation(reference.location);
    if (!reference.length || !expected_size || *reference.length == *expected_size) return;
    throw ValueError("tensor.size", "",
                     std::to_string(*reference.length) + " bytes, but the dims need " +
                         std::to_string(*expected_size));
  } catch (const ValueError& error) {
    context.Fail(error.code().c_str(), "external_data", error.message());
  }
}

std::string DimsText(const std::vector<int64_t>& dims) {
  std::string text = "[";
  for (int64_t dim : dims) text += (text.size() == 1 ? "" : ", ") + std::to_string(dim);
  return text + "]";
}

}  // namespace

void CheckTensor(const TensorProto& tensor, const Context& context) {
  const TensorLayout layout = ReadTensorLayout(tensor, context.Place());
  if (!IsExternal(TensorProto::kInfo, tensor)) return;
  CheckOtherFile(TensorProto::kInfo, tensor, layout.raw_size, context);
}

void CheckEncodedPayload(const EncodedValueProto& value, const Context& context) {
  if (!IsExternal(EncodedValueProto::kInfo, value)) return;
  CheckOtherFile(EncodedValueProto::kInfo, value, {}, context);
}

void CheckSparseTensor(const SparseTensorProto& sparse, const Context& context) {
  context.Require(sparse.has_values(), "values");
  context.Require(sparse.has_indices(), "indices");
  const std::vector<int64_t> dims(sparse.values().dims().begin(), sparse.values().dims().end());
  const std::vector<int64_t> indices(sparse.indices().dims().begin(),
                                     sparse.indices().dims().end());
  if (dims.size() != 1) {
    context.Fail("check.sparse", "values.dims", "must be one number, is " + DimsText(dims));
  }
  if (sparse.indices().data_type() != TensorProto::INT64) {
    context.Fail("check.sparse", "indices.data_type", "must be INT64");
  }
  const std::vector<int64_t> pairs{dims[0], static_cast<int64_t>(sparse.dims().size())};
  if (indices == dims || indices == pairs) return;
  context.Fail(
      "check.sparse", "indices.dims",
      "must be " + DimsText(dims) + " or " + DimsText(pairs) + ", is " + DimsText(indices));
}

}  // namespace onnx_light::check
