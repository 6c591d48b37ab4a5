// The fixed parts of a snapshot file. docs/snapshot_format.md has all rules and their reasons.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "wire/varint.h"

namespace onnx_light::snapshot {

inline constexpr uint32_t kVersion = 1;
// Payloads begin at, and records and blocks fill, multiples of it.
inline constexpr uint64_t kAlignment = 64;
inline constexpr uint64_t kMaxRecordSize = uint64_t{1} << 30;
inline constexpr uint64_t kHeadSize = 64;
inline constexpr uint64_t kFootSize = 64;

// Names in the file.
inline constexpr std::string_view kGraphName = "onnx_light.snapshot";
inline constexpr std::string_view kTokensName = "onnx_light.tokens";
inline constexpr std::string_view kReservedPrefix = "onnx_light.";
inline constexpr std::string_view kIdentityPrefix = "onnx_light.identity.";
inline constexpr std::string_view kModelExtent = "model";
inline constexpr std::string_view kCatalogueExtent = "catalogue";
inline constexpr std::string_view kTokensExtent = "tokens";

// Fields of this format in ONNX messages.
inline constexpr uint32_t kHeadField = 1050;
inline constexpr uint32_t kIndexField = 1051;
inline constexpr uint32_t kFootField = 1052;
inline constexpr uint32_t kFillerField = 1099;

// What every snapshot begins with, whatever its version.
inline constexpr std::string_view kHeadStart = "\xd2\x41\x3d\x0a\x16onnx_light.kvcache\r\n\x1a\n";

// The first and the last 64 bytes of a record.
struct Head {
  uint32_t version = kVersion;
  uint32_t number = 0;  // of the record in its file
  uint64_t byte_length = 0;
  uint64_t tokens_before = 0;
};
struct Foot {
  uint64_t byte_length = 0;
  uint64_t index_size = 0;  // with its tag and length
  uint64_t tokens_after = 0;
  uint64_t rest_checksum = 0;
  uint64_t index_checksum = 0;
};

std::array<std::byte, kHeadSize> EncodeHead(const Head& head);
std::array<std::byte, kFootSize> EncodeFoot(const Foot& foot);

// Nothing where a byte differs from what Encode would have written. A head of another version is
// a head. REQUIRES: `bytes` has the full size.
std::optional<Head> DecodeHead(std::span<const std::byte> bytes);
std::optional<Foot> DecodeFoot(std::span<const std::byte> bytes);

}  // namespace onnx_light::snapshot
