#include "quant/encode.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "onnx_light/errors.h"
#include "quant/affine_parameters.h"
#include "quant/packing.h"
#include "quant/records.h"
#include "quant/rows.h"

namespace onnx_light {
namespace {

template <typename F>
void ForHeads(const ArrayView& rows, F f) {
  for (int64_t batch = 0; batch < rows.batch(); ++batch) {
    for (int64_t head = 0; head < rows.heads(); ++head) f(batch, head);
  }
}

int64_t ElementCount(const ArrayView& rows) {
  return rows.batch() * rows.heads() * rows.tokens() * rows.width();
}

// Names the first number of a row, batch, head and token of which are given, that is not at most
// `most`.
[[noreturn]] void ThrowNotEncodable(const float* row, const std::array<int64_t, 3>& place,
                                    const PageFormat& format, float most, const std::string& path) {
  int64_t index = 0;
  while (std::fabs(row[index]) <= most) ++index;
  const std::string what = std::to_string(row[index]) + " at batch " + std::to_string(place[0]) +
                           ", head " + std::to_string(place[1]) + ", token " +
                           std::to_string(place[2]) + ", index " + std::to_string(index);
  if (std::isfinite(row[index])) {
    throw ValueError("quant.overflow", path,
                     what + " exceeds " + std::to_string(most) + ", the most that " +
                         format.Text() + " can hold");
  }
  throw ValueError("quant.not_finite", path, what + " cannot be encoded as " + format.Text());
}

void CheckWidth(int64_t width, const PageFormat& format, const std::string& path) {
  if (format.is_affine() || width % kRecordValues == 0) return;
  throw ValueError("quant.width", path,
                   "width " + std::to_string(width) + " is no multiple of " +
                       std::to_string(kRecordValues) + ", which " + format.Text() + " needs");
}

// What scales and zero points mean for codes.
class CodeBounds {
 public:
  // For runs of at most `tokens` tokens.
  CodeBounds(const AffineLayout& layout, int64_t tokens, int64_t width)
      : levels_(static_cast<float>((1 << CodeBits(layout.code_type)) - 1)),
        smallest_(IsSigned(layout.code_type) ? -std::ceil(levels_ / 2) : 0),
        width_(PaddedWidth(width)) {
    for (auto* values : {&divisor_, &least_, &most_}) values->resize(std::max(tokens, width_));
  }

  // A scale of 0 gives the zero point as the code, whatever the number.
  CodeParameters Of(const ParameterRun& run, bool are_chosen) {
    const int64_t count = run.per_token ? run.tokens : width_;
    for (int64_t i = 0; i < count; ++i) {
      divisor_[i] = run.scale[i] != 0 ? run.scale[i] : std::numeric_limits<float>::infinity();
    }
    const bool has_plain_codes = are_chosen && levels_ == 255 && smallest_ != 0 && AreNormal(count);
    for (int64_t i = 0; i < count && !has_plain_codes; ++i) {
      least_[i] = smallest_ - run.zero_point[i];
      most_[i] = smallest_ + levels_ - run.zero_point[i];
    }
    return {divisor_.data(), least_.data(), most_.data(),
            run.zero_point,  run.per_token, has_plain_codes};
  }

 private:
  // Scales by range that are normal numbers were not rounded so far that a code exceeds its bounds.
  bool AreNormal(int64_t count) const {
    bool all = true;
    for (int64_t i = 0; i < count; ++i) all &= divisor_[i] >= std::numeric_limits<float>::min();
    return all;
  }

  const float levels_, smallest_;
  const int64_t width_;
  std::vector<float> divisor_, least_, most_;
};

// The codes of one batch entry and head after the other.
class CodeWriter {
 public:
  CodeWriter(const AffineLayout& layout, const std::array<int64_t, 4>& dims)
      : width_(dims[3]),
        padded_(PaddedWidth(width_)),
        bits_(CodeBits(layout.code_type)),
        is_direct_(bits_ == 8 && padded_ == width_),
        bounds_(layout, dims[2], width_),
        packed_(BufferRef::Allocate(PackedSize(dims[0] * dims[1] * dims[2] * width_, bits_))),
        codes_(is_direct_ ? 0 : dims[2] * padded_) {
    if (bits_ != 8) std::fill_n(packed_.mutable_data(), packed_.size(), std::byte{0});
  }

  // Of as many rows as the run has. `are_chosen`: the parameters, for these rows.
  void Write(const FloatBlock& rows, const ParameterRun& run, bool are_chosen) {
    uint8_t* target = codes_.data();
    if (is_direct_) target = reinterpret_cast<uint8_t*>(packed_.mutable_data()) + first_;
    kernels_.encode_rows(rows, bounds_.Of(run, are_chosen), target);
    for (int64_t i = 0; i < run.tokens && !is_direct_; ++i) {
      PackCodes(target + i * padded_, width_, bits_, first_ + i * width_, packed_.mutable_data());
    }
    first_ += run.tokens * width_;
  }

  SharedBytes Finish() { return SharedBytes(std::move(packed_)); }

 private:
  const int64_t width_, padded_;
  const int bits_;
  const bool is_direct_;  // codes need no packing
  const QuantKernels& kernels_ = SelectedQuantKernels();
  CodeBounds bounds_;
  BufferRef packed_;
  std::vector<uint8_t> codes_;
  int64_t first_ = 0;
};

// Writes the block for which parameters were chosen last.
void WriteChosen(const ParameterChooser& chooser, const FloatBlock& rows, int64_t width,
                 CodeWriter& writer) {
  const AffineLayout& layout = chooser.layout();
  const float *scale = chooser.scale(), *zero_point = chooser.zero_point();
  if (layout.axis == 2) {
    const int64_t step = std::min(layout.block_size, rows.tokens);
    for (int64_t token = 0; token < rows.tokens; token += step) {
      const int64_t count = std::min(step, rows.tokens - token);
      writer.Write(PartOf(rows, token, count), {count, false, scale, zero_point}, true);
      scale += width;
      zero_point += width;
    }
  } else if (layout.block_size >= width) {
    writer.Write(rows, {rows.tokens, true, scale, zero_point}, true);
  } else {
    std::vector<float> scales(rows.width), zero_points(rows.width);
    for (int64_t token = 0; token < rows.tokens; ++token) {
      for (int64_t i = 0; i < width; i += layout.block_size) {
        const int64_t count = std::min(layout.block_size, width - i);
        std::fill_n(scales.begin() + i, count, *scale++);
        std::fill_n(zero_points.begin() + i, count, *zero_point++);
      }
      writer.Write(PartOf(rows, token, 1), {1, false, scales.data(), zero_points.data()}, true);
    }
  }
}

// Where blocks are encoded one by one, they have this many tokens: memory streams at full speed as
// long as it is read from start to end, and the codes are computed while it does.
constexpr int64_t kBlockTokens = 16;

template <typename F>
void ForBlocks(const ArrayView& rows, int64_t tokens, F f) {
  ForHeads(rows, [&](int64_t batch, int64_t head) {
    for (int64_t first = 0; first < rows.tokens(); first += tokens) {
      f(batch, head, first, std::min(tokens, rows.tokens() - first));
    }
  });
}

EncodedPayload EncodeAsRecords(const ArrayView& rows, const PageFormat& format,
                               const std::string& path) {
  CheckWidth(rows.width(), format, path);
  const PageType type = format.type();
  const int64_t row_size = rows.width() / kRecordValues * RecordSize(type);
  BufferRef records = BufferRef::Allocate(ElementCount(rows) / kRecordValues * RecordSize(type));
  std::byte* target = records.mutable_data();
  FloatRows source(rows);
  ForBlocks(rows, kBlockTokens, [&](int64_t batch, int64_t head, int64_t first, int64_t count) {
    const FloatBlock block = source.Rows(batch, head, first, count);
    // Rows that follow each other are one.
    const bool is_dense = block.stride == block.width;
    const int64_t step = is_dense ? count : 1;
    for (int64_t token = 0; token < count; token += step, target += step * row_size) {
      const float* row = block.values + token * block.stride;
      if (EncodeRecords(type, row, step * rows.width(), target)) continue;
      CheckEncodable(rows, format, path);  // throws
    }
  });
  return {rows.shape, RecordLayout{type}, SharedBytes(std::move(records)), {}, {}};
}

EncodedPayload Finish(const ArrayView& rows, const ParameterChooser& chooser, CodeWriter& writer) {
  AffineParameters parameters = chooser.Stored();
  return {rows.shape, parameters.layout, writer.Finish(), std::move(parameters.scales),
          std::move(parameters.zero_points)};
}

// Where rows lie one behind the other and whole groups fit into each, a group is a row, which needs
// one scale only.
ArrayView GroupsAsRows(const ArrayView& rows, const PageFormat& format) {
  const int64_t group = format.group(), item = ElementSize(rows.dtype);
  const bool has_groups = format.scale() == ScaleKind::kToken && group != 0;
  if (!has_groups || group % kLanes != 0 || rows.width() % group != 0) return rows;
  if (rows.strides[3] != item || rows.strides[2] != rows.width() * item) return rows;
  ArrayView groups = rows;
  groups.shape[2] *= rows.width() / group;
  groups.shape[3] = group;
  groups.strides[2] = group * item;
  return groups;
}

using Outcome = ParameterChooser::Outcome;

Outcome WriteWithOneScale(const ArrayView& rows, ParameterChooser& chooser, CodeWriter& writer) {
  FloatRows source(rows);
  const Outcome outcome = chooser.ChooseForAll(source);
  if (outcome != Outcome::kChosen) return outcome;
  const std::vector<float> scale(rows.tokens(), *chooser.scale()),
      zero_point(rows.tokens(), *chooser.zero_point());
  ForHeads(rows, [&](int64_t batch, int64_t head) {
    writer.Write(source.Rows(batch, head, 0, rows.tokens()),
                 {rows.tokens(), true, scale.data(), zero_point.data()}, true);
  });
  return outcome;
}

// Each block goes through all steps while it lies in a cache of the processor.
Outcome WriteBlocks(const ArrayView& rows, ParameterChooser& chooser, CodeWriter& writer) {
  FloatRows source(rows);
  const int64_t tokens = chooser.layout().axis == 2 ? rows.tokens() : kBlockTokens;
  Outcome outcome = Outcome::kChosen;
  ForBlocks(rows, tokens, [&](int64_t batch, int64_t head, int64_t first, int64_t count) {
    if (outcome != Outcome::kChosen) return;
    const FloatBlock block = source.Rows(batch, head, first, count);
    outcome = chooser.Choose(block);
    if (outcome == Outcome::kChosen) WriteChosen(chooser, block, rows.width(), writer);
  });
  return outcome;
}

}  // namespace

void CheckEncodable(const ArrayView& rows, const PageFormat& format, const std::string& path) {
  CheckWidth(rows.width(), format, path);
  const float most =
      format.is_affine() ? std::numeric_limits<float>::max() : MostInRecord(format.type());
  const QuantKernels& kernels = SelectedQuantKernels();
  FloatRows source(rows);
  ForHeads(rows, [&](int64_t batch, int64_t head) {
    const FloatBlock block = source.Rows(batch, head, 0, rows.tokens());
    if (kernels.are_within(block, most)) return;
    int64_t token = 0;
    while (kernels.are_within(PartOf(block, token, 1), most)) ++token;
    ThrowNotEncodable(block.values + token * block.stride, {batch, head, token}, format, most,
                      path);
  });
}

EncodedPayload Encode(const ArrayView& rows, const PageFormat& format, const std::string& path) {
  if (!format.is_affine()) return EncodeAsRecords(rows, format, path);
  const ArrayView groups = GroupsAsRows(rows, format);
  for (DType scale_type = format.scale_type();; scale_type = DType::kFloat32) {
    ParameterChooser chooser(format, groups.shape, scale_type);
    CodeWriter writer(chooser.layout(), groups.shape);
    const bool is_scalar = chooser.layout().shape == AffineLayout::Shape::kScalar;
    const Outcome outcome =
        is_scalar ? WriteWithOneScale(rows, chooser, writer) : WriteBlocks(groups, chooser, writer);
    if (outcome == Outcome::kChosen) return Finish(rows, chooser, writer);
    if (outcome == Outcome::kNotFinite) CheckEncodable(rows, format, path);
  }
}

EncodedPayload EncodeWith(const ArrayView& rows, const AffineLayout& layout, SharedBytes scales,
                          SharedBytes zero_points) {
  FloatRows source(rows);
  ParameterRows parameters(layout, rows.shape, scales.data, zero_points.data);
  CodeWriter writer(layout, rows.shape);
  ForHeads(rows, [&](int64_t batch, int64_t head) {
    for (int64_t token = 0; token < rows.tokens();) {
      const ParameterRun run = parameters.Run(batch, head, token, rows.tokens() - token);
      writer.Write(source.Rows(batch, head, token, run.tokens), run, false);
      token += run.tokens;
    }
  });
  return {rows.shape, layout, writer.Finish(), std::move(scales), std::move(zero_points)};
}

}  // namespace onnx_light
