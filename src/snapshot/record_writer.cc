#include "snapshot/record_writer.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "snapshot/fields.h"
#include "snapshot/pieces.h"
#include "snapshot/side_bytes.h"

namespace onnx_light::snapshot {
namespace {

class RecordWriter {
 public:
  RecordWriter(const RecordPlan& plan, const SnapshotContent& content, PartWriter& out)
      : plan_(plan), content_(content), out_(out), index_(plan.index) {}

  void Write(const std::string& model) {
    out_.Copy(EncodeHead(plan_.head));
    WriteExtent(kModelExtent, model);
    WriteRest(plan_.layout.graph_header);
    WriteExtent(kCatalogueExtent, plan_.catalogue);
    if (content_.tokens) WriteTokens();
    for (size_t i = 0; i < content_.caches.size(); ++i) WriteCache(i);
    std::string filler;
    PutFiller(filler, FillerBeforeIndex(plan_.layout, plan_.index_size));
    WriteRest(filler);
    WriteIndexAndFoot();
    out_.Flush();
  }

 private:
  void WriteRest(const std::string& bytes) {
    rest_.Update(BytesOf(bytes));
    out_.Copy(BytesOf(bytes));
  }

  void SetChecksum(std::string_view extent, uint64_t checksum) {
    for (Extent& entry : index_.extents) {
      if (entry.name == extent) entry.checksum = checksum;
    }
  }

  // `bytes` stay until the flush at the end.
  void WriteExtent(std::string_view name, const std::string& bytes) {
    SetChecksum(name, Checksum(BytesOf(bytes)));
    out_.Write(BytesOf(bytes));
  }

  void WriteTokens() {
    const TokenIds& tokens = *content_.tokens;
    StreamingChecksum checksum;
    const auto write = [&](std::span<const std::byte> bytes) {
      checksum.Update(bytes);
      out_.Write(bytes);
    };
    write(BytesOf(plan_.tokens_header));
    const int64_t first = plan_.tokens_before(), count = plan_.tokens_after - first;
    for (int64_t row = 0; row < std::max<int64_t>(tokens.batch, 1); ++row) {
      write(tokens.ids.span().subspan((row * tokens.length + first) * 8, count * 8));
    }
    SetChecksum(kTokensExtent, checksum.Digest());
  }

  void WriteCache(size_t number) {
    const CacheLayout& layout = plan_.layout.caches[number];
    WriteRest(layout.header);
    CacheEntry& entry = index_.caches[number];
    size_t run = 0, block = 0;
    int64_t left = 0;
    std::optional<BlockText> text;
    ForEachPiece(content_.caches[number].cache, plan_.tokens_before(), plan_.tokens_after,
                 [&](const Piece& piece) {
                   if (left == 0) {
                     text.emplace(layout.blocks[run]);
                     left = entry.runs[run++].count;
                   }
                   --left;
                   text->SetStart(piece.start());
                   entry.checksums[block++] = WriteBlock(piece, *text);
                 });
  }

  // Calls `copy` for what stands around the slots of a block and `write` for what is in them.
  template <typename Copy, typename Write>
  static void ForEachPart(const BlockText& text, const std::array<SideBytes, 2>& sides, Copy copy,
                          Write write) {
    size_t number = 0;
    for (const SideBytes& side : sides) {
      for (const SideBytes::Runs& runs : side.slots()) {
        copy(BytesOf(text.texts()[number++]));
        for (const std::span<const std::byte> run : runs) write(run);
      }
    }
    copy(BytesOf(text.texts()[number]));
  }

  // Returns the block's checksum.
  uint64_t WriteBlock(const Piece& piece, const BlockText& text) {
    const std::array sides = {SideBytes(piece, Side::kKey), SideBytes(piece, Side::kValue)};
    for (const SideBytes& side : sides) {
      copies_.insert(copies_.end(), side.copies().begin(), side.copies().end());
    }
    const std::optional<uint64_t> known = piece.KnownChecksum();
    if (!known) {
      checksum_.Reset();
      const auto update = [&](std::span<const std::byte> bytes) { checksum_.Update(bytes); };
      ForEachPart(text, sides, update, update);
    }
    ForEachPart(
        text, sides, [&](std::span<const std::byte> bytes) { out_.Copy(bytes); },
        [&](std::span<const std::byte> bytes) { out_.Write(bytes); });
    if (known) return *known;
    const uint64_t checksum = checksum_.Digest();
    piece.KeepChecksum(checksum);
    return checksum;
  }

  void WriteIndexAndFoot() {
    index_bytes_ = EncodeIndex(index_);
    out_.Write(BytesOf(index_bytes_));
    out_.Copy(EncodeFoot({plan_.head.byte_length, index_bytes_.size(),
                          static_cast<uint64_t>(plan_.tokens_after), rest_.Digest(),
                          Checksum(BytesOf(index_bytes_))}));
  }

  const RecordPlan& plan_;
  const SnapshotContent& content_;
  PartWriter& out_;
  Index index_;
  std::string index_bytes_;
  std::vector<SharedBytes> copies_;  // that are still to be written
  StreamingChecksum rest_;
  StreamingChecksum checksum_;
};

}  // namespace

void WriteRecord(const RecordPlan& plan, const std::string& model, const SnapshotContent& content,
                 PartWriter& out) {
  RecordWriter(plan, content, out).Write(model);
}

}  // namespace onnx_light::snapshot
