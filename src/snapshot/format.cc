#include "snapshot/format.h"

#include <algorithm>
#include <cstring>

#include "base/checksum.h"

namespace onnx_light::snapshot {
namespace {

// Both parts are a run of fields of fixed size, with a checksum of the first 56 bytes at the end.
constexpr std::string_view kFootStart = "\xe2\x41\x3d";
constexpr std::string_view kFootMagic = "\x32\x05kvend";

class FixedWriter {
 public:
  explicit FixedWriter(std::byte* target) : at_(target) {}

  void Text(std::string_view text) {
    std::memcpy(at_, text.data(), text.size());
    at_ += text.size();
  }
  // A number with its tag, as fixed32 or fixed64 by its type.
  template <typename T>
  void Number(uint32_t field, T value) {
    constexpr WireType kType = sizeof(T) == 4 ? WireType::kFixed32 : WireType::kFixed64;
    *at_++ = static_cast<std::byte>(MakeTag(field, kType));
    std::memcpy(at_, &value, sizeof(value));
    at_ += sizeof(value);
  }
  // That of what has been written, the tag of the checksum too.
  void Checksum(uint32_t field, const std::byte* begin) {
    *at_++ = static_cast<std::byte>(MakeTag(field, WireType::kFixed64));
    const uint64_t checksum = onnx_light::Checksum({begin, at_});
    std::memcpy(at_, &checksum, sizeof(checksum));
  }

 private:
  std::byte* at_;
};

template <typename T>
T NumberAt(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

}  // namespace

std::array<std::byte, kHeadSize> EncodeHead(const Head& head) {
  std::array<std::byte, kHeadSize> bytes;
  FixedWriter writer(bytes.data());
  writer.Text(kHeadStart);
  writer.Number(2, head.version);
  writer.Number(3, head.number);
  writer.Number(4, head.byte_length);
  writer.Number(5, head.tokens_before);
  writer.Checksum(6, bytes.data());
  return bytes;
}

std::optional<Head> DecodeHead(std::span<const std::byte> bytes) {
  const Head head{NumberAt<uint32_t>(bytes, 28), NumberAt<uint32_t>(bytes, 33),
                  NumberAt<uint64_t>(bytes, 38), NumberAt<uint64_t>(bytes, 47)};
  const auto expected = EncodeHead(head);
  if (!std::equal(expected.begin(), expected.end(), bytes.begin())) return std::nullopt;
  return head;
}

std::array<std::byte, kFootSize> EncodeFoot(const Foot& foot) {
  std::array<std::byte, kFootSize> bytes;
  FixedWriter writer(bytes.data());
  writer.Text(kFootStart);
  writer.Number(1, foot.byte_length);
  writer.Number(2, foot.index_size);
  writer.Number(3, foot.tokens_after);
  writer.Number(4, foot.rest_checksum);
  writer.Number(5, foot.index_checksum);
  writer.Text(kFootMagic);
  writer.Checksum(7, bytes.data());
  return bytes;
}

std::optional<Foot> DecodeFoot(std::span<const std::byte> bytes) {
  if (std::memcmp(bytes.data(), kFootStart.data(), kFootStart.size()) != 0) return std::nullopt;
  const Foot foot{NumberAt<uint64_t>(bytes, 4), NumberAt<uint64_t>(bytes, 13),
                  NumberAt<uint64_t>(bytes, 22), NumberAt<uint64_t>(bytes, 31),
                  NumberAt<uint64_t>(bytes, 40)};
  const auto expected = EncodeFoot(foot);
  if (!std::equal(expected.begin(), expected.end(), bytes.begin())) return std::nullopt;
  return foot;
}

}  // namespace onnx_light::snapshot
