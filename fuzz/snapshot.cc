// Snapshot files. The input is a file. Checksums refuse nearly every change of one, so the mutator
// makes them right again most of the time: what it finds is what a hostile writer could do.
#include "onnx_light/snapshot.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "fuzz.h"
#include "snapshot/failure.h"
#include "snapshot/format.h"
#include "snapshot/index.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace onnx_light::fuzz {
namespace {

using snapshot::kFootSize;
using snapshot::kHeadSize;
using Part = std::pair<uint64_t, uint64_t>;  // [first, second) of a record

// ---------------------------------------------------------------------------------------------
// Making checksums right

// Where numbers stand in the head and the foot.
constexpr size_t kHeadLength = 38, kFootLength = 4, kFootIndexSize = 13, kFootRest = 31,
                 kFootIndex = 40, kOwnChecksum = 56;

uint64_t Get(std::span<const std::byte> bytes, size_t offset) {
  uint64_t value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}
void Put(std::span<std::byte> bytes, size_t offset, uint64_t value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
}

bool IsInside(int64_t offset, int64_t length, size_t size) {
  return offset >= 0 && length >= 0 && static_cast<uint64_t>(offset) <= size &&
         static_cast<uint64_t>(length) <= size - static_cast<uint64_t>(offset);
}

// Computes all checksums of the index anew, and notes what they cover.
void SealIndex(std::span<const std::byte> record, snapshot::Index& index,
               std::vector<Part>& parts) {
  const auto seal = [&](int64_t offset, int64_t length, uint64_t& checksum) {
    if (!IsInside(offset, length, record.size())) return;
    checksum = Checksum(record.subspan(offset, length));
    parts.emplace_back(offset, offset + length);
  };
  for (snapshot::Extent& extent : index.extents) {
    seal(extent.offset, extent.length, extent.checksum);
  }
  for (snapshot::CacheEntry& cache : index.caches) {
    size_t page = 0;
    for (const snapshot::Run& run : cache.runs) {
      for (int64_t i = 0; i < run.count && page < cache.checksums.size(); ++i, ++page) {
        int64_t place;
        if (__builtin_mul_overflow(i, run.stride, &place) ||
            __builtin_add_overflow(place, run.offset, &place)) {
          return;
        }
        seal(place, run.stride, cache.checksums[page]);
      }
    }
  }
}

uint64_t RestChecksum(std::span<const std::byte> record, std::vector<Part> parts) {
  StreamingChecksum checksum;
  uint64_t at = 0;
  std::sort(parts.begin(), parts.end());
  for (const auto& [begin, end] : parts) {
    if (begin > at) checksum.Update(record.subspan(at, begin - at));
    at = std::max(at, end);
  }
  return checksum.Digest();
}

// Makes the checksums of one record right, as far as its structure can be read.
void SealRecord(std::span<std::byte> record) {
  const std::span<std::byte> head = record.first(kHeadSize), foot = record.last(kFootSize);
  const uint64_t index_size = Get(foot, kFootIndexSize);
  if (index_size <= record.size() - kHeadSize - kFootSize) {
    const uint64_t index_at = record.size() - kFootSize - index_size;
    const std::span<std::byte> bytes = record.subspan(index_at, index_size);
    std::vector<Part> parts = {{0, kHeadSize}, {index_at, record.size()}};
    try {
      snapshot::Index index = snapshot::DecodeIndex(bytes, 0, "");
      SealIndex(record, index, parts);
      const std::string sealed = snapshot::EncodeIndex(index);
      if (sealed.size() == bytes.size()) std::memcpy(bytes.data(), sealed.data(), bytes.size());
    } catch (const snapshot::Failure&) {
      // An index that cannot be read keeps the checksums that it has.
    }
    Put(foot, kFootRest, RestChecksum(record, std::move(parts)));
    Put(foot, kFootIndex, Checksum(bytes));
  }
  Put(head, kOwnChecksum, Checksum(head.first(kOwnChecksum)));
  Put(foot, kOwnChecksum, Checksum(foot.first(kOwnChecksum)));
}

// The last record of the file, as long as its foot says; all of the file where that cannot be.
// Empty where the file is too short for a record.
std::span<std::byte> LastRecord(std::span<std::byte> file) {
  if (file.size() < kHeadSize + kFootSize) return {};
  const uint64_t length = Get(file.last(kFootSize), kFootLength);
  return length >= kHeadSize + kFootSize && length <= file.size() ? file.last(length) : file;
}

void SealFile(std::span<std::byte> file) {
  for (std::span<std::byte> record = LastRecord(file); !record.empty(); record = LastRecord(file)) {
    SealRecord(record);
    file = file.first(file.size() - record.size());
  }
}

// Mutates the index of the last record alone, where the meaning of a file is. Returns its new size.
size_t MutateIndex(std::span<std::byte> file, size_t max_size) {
  const std::span<std::byte> record = LastRecord(file);
  if (record.empty()) return file.size();
  const uint64_t index_size = Get(record.last(kFootSize), kFootIndexSize);
  if (index_size == 0 || index_size > record.size() - kHeadSize - kFootSize) return file.size();
  std::byte* index = record.data() + record.size() - kFootSize - index_size;
  std::byte foot[kFootSize];
  std::memcpy(foot, record.data() + record.size() - kFootSize, kFootSize);
  const size_t changed = LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(index), index_size,
                                          index_size + max_size - file.size());
  const uint64_t length = record.size() + changed - index_size;
  Put(foot, kFootLength, length);
  Put(foot, kFootIndexSize, changed);
  Put(record, kHeadLength, length);
  std::memcpy(index + changed, foot, kFootSize);
  return file.size() + changed - index_size;
}

size_t Mutate(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  std::minstd_rand random(seed);
  const std::span<std::byte> file(reinterpret_cast<std::byte*>(data), size);
  const size_t changed =
      random() % 2 == 0 ? MutateIndex(file, max_size) : LLVMFuzzerMutate(data, size, max_size);
  if (random() % 8 != 0) SealFile({reinterpret_cast<std::byte*>(data), changed});
  return changed;
}

// ---------------------------------------------------------------------------------------------
// What must hold

void CheckProblem(const std::string& code) {
  Check(code.starts_with("snapshot."), "what is wrong with a file has a code of snapshots");
}

std::optional<Snapshot> TryOpen(const SharedBytes& source, bool verify_all, bool recover) {
  OpenOptions options;
  options.verify_all = verify_all;
  options.recover = recover;
  try {
    return Snapshot::Open(source, options);
  } catch (const ValueError& error) {
    CheckProblem(error.code());
    return std::nullopt;
  }
}

// Reads every number. Whether all parts were whole.
bool ReadAll(const Snapshot& opened) {
  bool whole = true;
  const auto read = [&](const auto& f) {
    try {
      f();
    } catch (const ValueError& error) {
      CheckProblem(error.code());
      whole = false;
    }
  };
  for (int64_t i = 0; i < opened.size(); ++i) {
    Check(opened.Find(opened.name(i)) == i, "a cache is found by its name");
    read([&] {
      const PagedCache cache = opened.Cache(i);
      Check(cache.end() == opened.end(), "caches end together");
      cache.Validate();
      Check(cache == cache, "every row can be read");
    });
  }
  read([&] {
    const auto tokens = opened.Tokens();
    if (tokens) Check(tokens->length == opened.end(), "tokens cover all positions");
  });
  return whole;
}

// What a file holds makes a file that holds the same.
void CheckSavedAgain(const Snapshot& opened) {
  SnapshotContent content;
  for (int64_t i = 0; i < opened.size(); ++i) {
    content.caches.push_back({opened.name(i), opened.Cache(i)});
  }
  content.tokens = opened.Tokens();
  content.identity = opened.identity();
  content.metadata = opened.metadata();
  const SnapshotWriter writer(content);
  std::string bytes(writer.size(), '\xff');
  writer.WriteTo(std::as_writable_bytes(std::span(bytes)));
  const std::optional<Snapshot> again = TryOpen(CopyBytes(bytes.data(), bytes.size()), true, false);
  Check(again.has_value(), "a file saved again is whole");
  Check(again->size() == opened.size(), "it holds as many caches");
  for (int64_t i = 0; i < opened.size(); ++i) {
    const PagedCache cache = opened.Cache(i);
    Check(cache.empty() || again->Cache(i) == cache, "it holds the same caches");
  }
}

void CheckWhole(const Snapshot& opened) {
  Owned<ModelProto> model;
  opened.ToModel(model.arena(), *model);
  Check(Write(ModelProto::kInfo, *model).size() > 0, "a snapshot is a model");
  const int64_t middle = opened.start() + opened.length() / 2;
  Check(ReadAll(opened.Slice(middle, opened.end())), "a part of what is whole is whole");
  CheckSavedAgain(opened);
}

void Run(Input input) {
  const std::span<const std::byte> rest = input.Rest();
  const SharedBytes source = CopyBytes(rest.data(), rest.size());
  bool verified = false;
  try {
    const SnapshotReport report = VerifySnapshot(source);
    verified = report.ok();
    for (const SnapshotProblem& problem : report.problems) {
      CheckProblem(problem.code);
      Check(problem.offset <= source.size, "what is damaged lies in the file");
    }
  } catch (const ValueError& error) {
    CheckProblem(error.code());
  }
  const std::optional<Snapshot> all = TryOpen(source, true, false);
  Check(all.has_value() == verified, "open finds what verify finds");
  const std::optional<Snapshot> opened = TryOpen(source, false, false);
  if (opened) Check(ReadAll(*opened) || !verified, "a verified file can be read");
  Check(opened.has_value() || !all.has_value(), "open without a look at pages accepts no less");
  if (all) CheckWhole(*all);
  const std::optional<Snapshot> recovered = TryOpen(source, false, true);
  Check(recovered.has_value() || !opened.has_value(), "recovery opens what is whole");
  if (recovered) ReadAll(*recovered);
}

}  // namespace
}  // namespace onnx_light::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return onnx_light::fuzz::Mutate(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  onnx_light::fuzz::Run({data, size});
  return 0;
}
