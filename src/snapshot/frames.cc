#include "snapshot/frames.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/math.h"
#include "snapshot/failure.h"
#include "snapshot/kind.h"

namespace onnx_light::snapshot {
namespace {

using Bytes = std::span<const std::byte>;

std::optional<Head> HeadAt(Bytes file, uint64_t offset) {
  if (!RangeFits(offset, kHeadSize, file.size())) return std::nullopt;
  return DecodeHead(file.subspan(offset, kHeadSize));
}

std::optional<Foot> FootBefore(Bytes file, uint64_t end) {
  if (end < kFootSize || end > file.size()) return std::nullopt;
  return DecodeFoot(file.subspan(end - kFootSize, kFootSize));
}

bool Agree(const Head& head, const Foot& foot) {
  return head.byte_length == foot.byte_length && head.byte_length % kAlignment == 0 &&
         head.byte_length >= kHeadSize + kFootSize &&
         foot.index_size <= head.byte_length - kHeadSize - kFootSize;
}

std::optional<Frame> FrameBefore(Bytes file, uint64_t end) {
  const auto foot = FootBefore(file, end);
  if (!foot || foot->byte_length > end) return std::nullopt;
  const uint64_t offset = end - foot->byte_length;
  const auto head = HeadAt(file, offset);
  if (!head || !Agree(*head, *foot)) return std::nullopt;
  return Frame{offset, *head, *foot};
}

std::optional<Frame> FrameAt(Bytes file, uint64_t offset) {
  const auto head = HeadAt(file, offset);
  if (!head || head->byte_length > file.size() - offset) return std::nullopt;
  auto frame = FrameBefore(file, offset + head->byte_length);
  if (!frame || frame->offset != offset) return std::nullopt;
  return frame;
}

std::string PlaceOf(size_t record) { return "record[" + std::to_string(record) + "]"; }

void CheckNumbers(const std::vector<Frame>& frames) {
  for (size_t i = 0; i < frames.size(); ++i) {
    const Frame& frame = frames[i];
    if (frame.head.version != kVersion) {
      Fail("snapshot.version", PlaceOf(i), frame.offset,
           "format version " + std::to_string(frame.head.version) +
               ", this program reads version " + std::to_string(kVersion));
    }
    if (frame.head.number != i) {
      FailCorrupt(PlaceOf(i), frame.offset,
                  "a record with number " + std::to_string(frame.head.number) +
                      ": records are missing or in another order");
    }
  }
}

// A record that ends at `end`, with more of the file behind it, is damaged.
[[noreturn]] void FailInside(Bytes file, uint64_t end) {
  const auto foot = FootBefore(file, end);
  if (!foot) {
    FailCorrupt("foot", end < kFootSize ? 0 : end - kFootSize,
                "the record that ends at byte " + std::to_string(end) + " has a damaged foot");
  }
  const uint64_t offset = foot->byte_length > end ? 0 : end - foot->byte_length;
  FailCorrupt("head", offset,
              "the record that ends at byte " + std::to_string(end) +
                  " has a damaged head, or is not whole");
}

bool FootFollows(Bytes file, uint64_t offset) {
  for (uint64_t end = offset + kFootSize; end <= file.size(); end += kAlignment) {
    if (FootBefore(file, end)) return true;
  }
  return false;
}

bool IsZero(Bytes bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// Whether what begins at `offset`, which is no whole record, is what an append leaves that did not
// finish. REQUIRES: no foot follows that would say otherwise.
bool IsTorn(Bytes file, uint64_t offset, const std::optional<Head>& head) {
  if (!head) return true;
  const uint64_t left = file.size() - offset;
  if (head->byte_length > left) return true;
  return head->byte_length >= kFootSize &&
         IsZero(file.subspan(offset + head->byte_length - kFootSize, kFootSize));
}

// Whether the file begins as a snapshot does, but for some damage.
bool BeginsLikeASnapshot(Bytes file) {
  constexpr size_t kMostDifferent = 8;
  const size_t size = std::min<size_t>(file.size(), kHeadStart.size());
  size_t different = 0;
  for (size_t i = 0; i < size; ++i) different += file[i] != static_cast<std::byte>(kHeadStart[i]);
  return different <= (size == kHeadStart.size() ? kMostDifferent : 0);
}

// "\r\n" and "\x1a" of the magic are there to show it.
void CheckTextMode(Bytes file) {
  const std::string_view name = kHeadStart.substr(0, kHeadStart.size() - 4);
  const std::string_view end = kHeadStart.substr(name.size());
  if (file.size() < kHeadStart.size() || std::memcmp(file.data(), name.data(), name.size()) != 0 ||
      std::memcmp(file.data() + name.size(), end.data(), end.size()) == 0) {
    return;
  }
  FailCorrupt("record[0].head", name.size(),
              "the head is damaged as by a copy in text mode, which changes the ends of lines");
}

// The file does not begin with a whole head.
[[noreturn]] void FailWithoutHead(Bytes file) {
  if (file.empty()) FailCorrupt("record[0].head", 0, "the file is empty");
  if (BeginsLikeASnapshot(file)) {
    FailCorrupt("record[0].head", 0,
                file.size() < kHeadSize ? "the file ends inside its head" : "the head is damaged");
  }
  if (IsRewritten(file)) {
    Fail("snapshot.rewritten", "", 0,
         "a snapshot that another program parsed and wrote again: a plain model now, without the "
         "snapshot's layout");
  }
  Fail("snapshot.kind", "", 0, "no snapshot; it seems to be " + SeemsToBe(file));
}

// Why no whole record begins at `offset`.
std::string WhatIsMissing(Bytes file, uint64_t offset, const std::optional<Head>& head) {
  if (!head) return "no record begins here";
  const uint64_t left = file.size() - offset;
  if (left < head->byte_length) {
    return "the record has " + std::to_string(left) + " of " + std::to_string(head->byte_length) +
           " bytes";
  }
  return FootBefore(file, offset + head->byte_length) ? "the record's head and foot do not agree"
                                                      : "the record has no foot, or a damaged one";
}

// No foot at the end of the file: walks its records from the beginning.
std::vector<Frame> WalkForward(Bytes file, bool recover) {
  std::vector<Frame> frames;
  uint64_t offset = 0;
  while (auto frame = FrameAt(file, offset)) {
    frames.push_back(*frame);
    offset = frame->end();
  }
  const auto head = HeadAt(file, offset);
  if (frames.empty() && !head) FailWithoutHead(file);
  if (head && head->version != kVersion) {
    frames.push_back({offset, *head, {}});
    CheckNumbers(frames);
  }
  const std::string place = PlaceOf(frames.size());
  const std::string cut = WhatIsMissing(file, offset, head);
  if (frames.empty() || (!head && FootFollows(file, offset)) || !IsTorn(file, offset, head)) {
    FailCorrupt(place, offset, cut);
  }
  if (recover) return frames;
  Fail("snapshot.torn", place, offset,
       cut + ": an append did not finish; the " + std::to_string(frames.size()) +
           " records before are whole");
}

}  // namespace

std::vector<Frame> FindFrames(Bytes file, bool recover) {
  std::vector<Frame> frames;
  uint64_t end = file.size();
  while (end > 0) {
    const auto frame = FrameBefore(file, end);
    if (!frame) break;
    frames.push_back(*frame);
    end = frame->offset;
  }
  std::reverse(frames.begin(), frames.end());
  if (end != 0 || frames.empty()) {
    if (!frames.empty()) FailInside(file, end);
    CheckTextMode(file);
    if (FootBefore(file, file.size())) {
      if (IsRewritten(file)) FailWithoutHead(file);
      FailInside(file, end);
    }
    frames = WalkForward(file, recover);
  }
  CheckNumbers(frames);
  return frames;
}

}  // namespace onnx_light::snapshot
