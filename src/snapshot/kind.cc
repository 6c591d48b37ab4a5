#include "snapshot/kind.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "snapshot/check_content.h"
#include "snapshot/fields.h"
#include "snapshot/format.h"

namespace onnx_light::snapshot {
namespace {

// A walk over more fields is no walk over a model, and would take long.
constexpr int kMaxFields = 100000;

struct Magic {
  std::string_view bytes;
  const char* what;
};

using namespace std::string_view_literals;  // NOLINT(google-build-using-namespace): "\0"sv
constexpr Magic kMagics[] = {
    {"GGUF"sv, "a GGUF file"},
    {"lmgg"sv, "a ggml model of the time before GGUF"},
    {"nsgg"sv, "a session file of llama.cpp"},
    {"qsgg"sv, "a sequence state of llama.cpp"},
    {"PK\x03\x04"sv, "a zip archive (as of numpy.savez or torch.save)"},
    {"\x93NUMPY"sv, "a numpy array"},
    {"\x80\x02"sv, "a pickle"},
    {"\x80\x04\x95"sv, "a pickle"},
    {"\x80\x05\x95"sv, "a pickle"},
    {"\x89HDF\r\n\x1a\n"sv, "an HDF5 file"},
    {"\x1f\x8b"sv, "a gzip file"},
    {"\x28\xb5\x2f\xfd"sv, "a zstd file"},
    {"\xfd"
     "7zXZ\0"sv,
     "an xz file"},
    {"SQLite format 3\0"sv, "an SQLite database"},
    {"\x7f"
     "ELF"sv,
     "a program (ELF)"},
};

bool IsSafetensors(std::span<const std::byte> file) {
  if (file.size() < 10) return false;
  uint64_t header;
  std::memcpy(&header, file.data(), sizeof(header));
  return header >= 2 && header <= file.size() - 8 && file[8] == std::byte{'{'};
}

bool IsText(std::string_view text) {
  // The first bytes, but no sequence cut in two at their end.
  std::string_view sample = text.substr(0, 512);
  if (sample.size() < text.size()) {
    sample = sample.substr(0, sample.find_last_of("\n\r\t ") + 1);
  }
  const auto is_control = [](char c) {
    const auto code = static_cast<unsigned char>(c);
    return code == 0x7f || (code < 0x20 && c != '\n' && c != '\r' && c != '\t' && c != '\f');
  };
  return !sample.empty() && IsUtf8(sample) &&
         std::none_of(sample.begin(), sample.end(), is_control);
}

// What a walk over the top-level fields meets.
struct Walk {
  bool well_formed = false;
  bool as_a_model = true;  // every known field has the wire type that ModelProto gives it
  uint32_t first = 0;
  bool has_head = false;
};

bool FitsModel(const Field& field) {
  switch (field.number) {
    case 1:  // ir_version
    case 5:  // model_version
      return field.type == WireType::kVarint;
    case 2:   // producer_name
    case 3:   // producer_version
    case 4:   // domain
    case 6:   // doc_string
    case 7:   // graph
    case 8:   // opset_import
    case 14:  // metadata_props
    case 20:  // training_info
    case 25:  // functions
    case 26:  // configuration
      return field.type == WireType::kLengthDelimited;
    default:
      return field.number >= 1000 && field.number <= kFillerField;
  }
}

Walk WalkFields(std::span<const std::byte> file) {
  Walk walk;
  FieldReader reader(file);
  Field field;
  for (int count = 0; count < kMaxFields; ++count) {
    if (!reader.Next(&field)) {
      walk.well_formed = !reader.malformed() && count > 0;
      break;
    }
    if (count == 0) walk.first = field.number;
    walk.as_a_model = walk.as_a_model && FitsModel(field);
    walk.has_head =
        walk.has_head || (field.number == kHeadField && field.type == WireType::kLengthDelimited &&
                          field.bytes.size() == kHeadSize - 3);
  }
  return walk;
}

}  // namespace

bool IsRewritten(std::span<const std::byte> file) {
  const Walk walk = WalkFields(file);
  return walk.well_formed && walk.has_head && walk.first != kHeadField;
}

std::string SeemsToBe(std::span<const std::byte> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  for (const Magic& magic : kMagics) {
    if (text.starts_with(magic.bytes)) return magic.what;
  }
  if (IsSafetensors(file)) return "a safetensors file";
  if (IsText(text)) return text.front() == '{' ? "JSON text" : "text";
  const Walk walk = WalkFields(file);
  if (walk.well_formed && walk.as_a_model) return "a plain ONNX model";
  return "something unknown";
}

}  // namespace onnx_light::snapshot
