#include "snapshot/index.h"

#include <cstring>
#include <limits>

#include "snapshot/failure.h"
#include "snapshot/fields.h"

namespace onnx_light::snapshot {
namespace {

void PutExtent(std::string& out, const Extent& extent) {
  std::string text;
  PutText(text, 1, extent.name);
  PutNumber(text, 2, extent.offset);
  PutNumber(text, 3, extent.length);
  PutTag(text, 4, WireType::kFixed64);
  PutFixed64(text, extent.checksum);
  PutText(out, 2, text);
}

void PutRun(std::string& out, const Run& run) {
  std::string text;
  PutNumber(text, 1, run.start);
  PutNumber(text, 2, run.length);
  PutNumber(text, 3, run.capacity);
  PutText(text, 4, run.key_format);
  PutText(text, 5, run.value_format);
  PutNumber(text, 6, run.offset);
  PutNumber(text, 7, run.stride);
  PutNumber(text, 8, run.count);
  PutText(out, 9, text);
}

void PutCache(std::string& out, const CacheEntry& cache) {
  std::string text;
  PutText(text, 1, cache.name);
  PutNumber(text, 2, cache.batch);
  PutNumber(text, 3, cache.heads);
  PutNumber(text, 4, cache.key_width);
  PutNumber(text, 5, cache.value_width);
  PutNumber(text, 6, cache.start);
  PutNumber(text, 7, cache.page_size);
  PutText(text, 8, cache.policy);
  for (const Run& run : cache.runs) PutRun(text, run);
  PutText(text, 10,
          {reinterpret_cast<const char*>(cache.checksums.data()), cache.checksums.size() * 8});
  PutText(out, 3, text);
}

// Reads the fields of one message of the index.
class MessageReader {
 public:
  MessageReader(std::span<const std::byte> bytes, uint64_t offset, const std::string& place)
      : fields_(bytes), offset_(offset), place_(place) {}

  bool Next() {
    field_offset_ = offset_ + fields_.offset();
    if (fields_.Next(&field_)) return true;
    if (fields_.malformed()) FailCorrupt(place_, field_offset_, "malformed field");
    return false;
  }

  uint32_t number() const { return field_.number; }

  int64_t Number() const {
    if (field_.type != WireType::kVarint || field_.value > kLargest) FailField();
    return static_cast<int64_t>(field_.value);
  }
  uint64_t Fixed64() const {
    if (field_.type != WireType::kFixed64) FailField();
    return field_.value;
  }
  std::span<const std::byte> Bytes() const {
    if (field_.type != WireType::kLengthDelimited) FailField();
    return field_.bytes;
  }
  // Of a message of the index. The writer leaves no field out: anything shorter is none, and a
  // flood of them would take much more memory than the file has bytes.
  std::span<const std::byte> Entry() const {
    constexpr size_t kLeastSize = 15;
    if (Bytes().size() < kLeastSize) FailField();
    return field_.bytes;
  }
  std::string Text() const {
    Bytes();
    return std::string(field_.text());
  }
  // Of the content of a length-delimited field.
  uint64_t ContentOffset() const { return offset_ + fields_.offset() - field_.bytes.size(); }

  [[noreturn]] void FailField() const {
    FailCorrupt(place_, field_offset_,
                "field " + std::to_string(field_.number) + " has a wrong type or is out of range");
  }

 private:
  static constexpr uint64_t kLargest = std::numeric_limits<int64_t>::max();

  FieldReader fields_;
  Field field_;
  const uint64_t offset_;
  uint64_t field_offset_ = 0;
  const std::string& place_;
};

Extent ReadExtent(MessageReader in) {
  Extent extent;
  while (in.Next()) {
    switch (in.number()) {
      case 1:
        extent.name = in.Text();
        break;
      case 2:
        extent.offset = in.Number();
        break;
      case 3:
        extent.length = in.Number();
        break;
      case 4:
        extent.checksum = in.Fixed64();
        break;
      default:  // of a later version
        break;
    }
  }
  return extent;
}

Run ReadRun(MessageReader in) {
  Run run;
  while (in.Next()) {
    switch (in.number()) {
      case 1:
        run.start = in.Number();
        break;
      case 2:
        run.length = in.Number();
        break;
      case 3:
        run.capacity = in.Number();
        break;
      case 4:
        run.key_format = in.Text();
        break;
      case 5:
        run.value_format = in.Text();
        break;
      case 6:
        run.offset = in.Number();
        break;
      case 7:
        run.stride = in.Number();
        break;
      case 8:
        run.count = in.Number();
        break;
      default:  // of a later version
        break;
    }
  }
  return run;
}

void ReadChecksums(const MessageReader& in, std::vector<uint64_t>& checksums) {
  const auto bytes = in.Bytes();
  if (bytes.size() % 8 != 0 || !checksums.empty()) in.FailField();
  checksums.resize(bytes.size() / 8);
  if (!bytes.empty()) std::memcpy(checksums.data(), bytes.data(), bytes.size());
}

CacheEntry ReadCache(MessageReader in, const std::string& place) {
  CacheEntry cache;
  while (in.Next()) {
    switch (in.number()) {
      case 1:
        cache.name = in.Text();
        break;
      case 2:
        cache.batch = in.Number();
        break;
      case 3:
        cache.heads = in.Number();
        break;
      case 4:
        cache.key_width = in.Number();
        break;
      case 5:
        cache.value_width = in.Number();
        break;
      case 6:
        cache.start = in.Number();
        break;
      case 7:
        cache.page_size = in.Number();
        break;
      case 8:
        cache.policy = in.Text();
        break;
      case 9:
        cache.runs.push_back(ReadRun(MessageReader(in.Entry(), in.ContentOffset(), place)));
        break;
      case 10:
        ReadChecksums(in, cache.checksums);
        break;
      default:  // of a later version
        break;
    }
  }
  return cache;
}

}  // namespace

const Extent* Index::Find(std::string_view name) const {
  for (const Extent& extent : extents) {
    if (extent.name == name) return &extent;
  }
  return nullptr;
}

std::string EncodeIndex(const Index& index) {
  std::string text;
  for (const std::string& feature : index.required_features) PutText(text, 1, feature);
  for (const Extent& extent : index.extents) PutExtent(text, extent);
  for (const CacheEntry& cache : index.caches) PutCache(text, cache);
  std::string field;
  PutText(field, kIndexField, text);
  return field;
}

Index DecodeIndex(std::span<const std::byte> bytes, uint64_t offset, const std::string& place) {
  MessageReader field(bytes, offset, place);
  if (!field.Next() || field.number() != kIndexField) {
    FailCorrupt(place, offset, "no index where the foot says");
  }
  MessageReader in(field.Bytes(), field.ContentOffset(), place);
  if (field.Next()) FailCorrupt(place, offset, "the index ends before the foot");
  Index index;
  while (in.Next()) {
    switch (in.number()) {
      case 1:
        index.required_features.push_back(in.Text());
        break;
      case 2:
        index.extents.push_back(ReadExtent(MessageReader(in.Entry(), in.ContentOffset(), place)));
        break;
      case 3:
        index.caches.push_back(
            ReadCache(MessageReader(in.Entry(), in.ContentOffset(), place), place));
        break;
      default:  // of a later version
        break;
    }
  }
  return index;
}

}  // namespace onnx_light::snapshot
