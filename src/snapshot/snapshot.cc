#include "onnx_light/snapshot.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "onnx_light/cache_proto.h"
#include "onnx_light/errors.h"
#include "onnx_light/serialization.h"
#include "snapshot/blocks.h"
#include "snapshot/failure.h"
#include "snapshot/fold.h"
#include "snapshot/frames.h"
#include "snapshot/record.h"
#include "snapshot/tokens.h"
#include "snapshot/verify.h"

namespace onnx_light {

struct Snapshot::State {
  // What is read at its first use. A failure is not kept: the next use looks again.
  template <typename T>
  struct Lazy {
    mutable std::mutex mutex;
    mutable std::optional<T> value;

    template <typename F>
    T Get(F read) const {
      const std::scoped_lock lock(mutex);
      if (!value) value = read();
      return *value;
    }
  };

  // Throws Failure.
  State(SharedBytes bytes, std::string file_name, bool recover)
      : source(std::move(bytes)), name(std::move(file_name)) {
    for (const auto& frame : snapshot::FindFrames(source.span(), recover)) {
      records.push_back(snapshot::ReadRecord(source.span(), frame));
    }
    folded = snapshot::Fold(records);
    caches = std::vector<Lazy<PagedCache>>(folded.caches.size());
  }

  // Calls f; what it finds wrong becomes an error for the caller.
  template <typename F>
  static auto Report(const std::string& name, F f) {
    try {
      return f();
    } catch (const snapshot::Failure& failure) {
      throw snapshot::ToError(name, failure.problem());
    }
  }

  int64_t start() const {
    int64_t start = folded.end;
    for (const snapshot::FoldedCache& cache : folded.caches) {
      if (!cache.empty()) start = std::min(start, cache.start());
    }
    return start;
  }

  SnapshotReport Verify(const ProgressCallback& progress) const {
    SnapshotReport report;
    report.length = folded.end - start();
    report.records = static_cast<int64_t>(records.size());
    snapshot::VerifyRecords(source, records, folded, progress, &report);
    return report;
  }

  const SharedBytes source;
  const std::string name;
  std::vector<snapshot::Record> records;
  snapshot::Folded folded;
  std::vector<Lazy<PagedCache>> caches;
  Lazy<TokenIds> tokens;
};

Snapshot::Snapshot(std::shared_ptr<const State> state, int64_t start, int64_t end)
    : state_(std::move(state)), start_(start), end_(end) {}

Snapshot Snapshot::Open(SharedBytes source, const OpenOptions& options) {
  auto state = State::Report(options.name, [&] {
    return std::make_shared<const State>(std::move(source), options.name, options.recover);
  });
  if (options.verify_all) {
    const SnapshotReport report = state->Verify({});
    if (!report.ok()) throw snapshot::ToError(options.name, report.problems.front());
  }
  const int64_t start = state->start(), end = state->folded.end;
  return Snapshot(std::move(state), start, end);
}

Snapshot Snapshot::OpenFile(const std::string& path, OpenOptions options) {
  if (options.name.empty()) options.name = path;
  return Open(MapFile(path), options);
}

int64_t Snapshot::size() const { return static_cast<int64_t>(state_->folded.caches.size()); }

const std::string& Snapshot::name(int64_t index) const { return state_->folded.caches[index].name; }

int64_t Snapshot::Find(std::string_view name) const {
  for (int64_t i = 0; i < size(); ++i) {
    if (this->name(i) == name) return i;
  }
  return -1;
}

PagedCache Snapshot::Cache(int64_t index) const {
  const PagedCache cache = State::Report(state_->name, [&] {
    return state_->caches[index].Get([&] {
      return snapshot::ReadPages(state_->source, state_->records, state_->folded, index);
    });
  });
  const int64_t end = std::max(cache.start(), std::min(end_, cache.end()));
  return cache.Slice(std::min(std::max(start_, cache.start()), end), end);
}

std::optional<TokenIds> Snapshot::Tokens() const {
  const State& state = *state_;
  if (!state.folded.tokens) return std::nullopt;
  const TokenIds tokens = State::Report(state.name, [&] {
    return state.tokens.Get(
        [&] { return snapshot::ReadTokens(state.source, state.records, *state.folded.tokens); });
  });
  return snapshot::SliceTokens(tokens, 0, end_);
}

const KeyValues& Snapshot::identity() const { return state_->folded.identity; }
const KeyValues& Snapshot::metadata() const { return state_->folded.metadata; }
int64_t Snapshot::start() const { return start_; }
int64_t Snapshot::end() const { return end_; }
int64_t Snapshot::records() const { return static_cast<int64_t>(state_->records.size()); }

uint64_t Snapshot::nbytes() const {
  uint64_t total = 0;
  for (const snapshot::FoldedCache& cache : state_->folded.caches) {
    for (const snapshot::PageSpan& span : cache.spans) {
      const int64_t first = std::max(start_, span.start), last = std::min(end_, span.end());
      if (first >= last) continue;
      const int64_t pages =
          (last - 1 - span.start) / span.length - (first - span.start) / span.length + 1;
      const snapshot::BlockLayout& block =
          state_->records[span.record].layout.caches[span.cache].blocks[span.run];
      for (const snapshot::Slot& slot : block.slots()) total += pages * slot.size;
    }
  }
  return total;
}

Snapshot Snapshot::Slice(int64_t start, int64_t end) const {
  if (start < start_ || end > end_ || start > end) {
    throw ValueError("snapshot.position", "slice",
                     "[" + std::to_string(start) + ", " + std::to_string(end) +
                         ") does not lie in [" + std::to_string(start_) + ", " +
                         std::to_string(end_) + ")");
  }
  return Snapshot(state_, start, end);
}

SnapshotReport Snapshot::Verify(const ProgressCallback& progress) const {
  return state_->Verify(progress);
}

namespace {

void AddEntry(Arena& arena, ModelProto& model, std::string_view key, std::string_view value) {
  StringStringEntryProto* entry = model.add_metadata_props(arena);
  entry->set_key(arena, key);
  entry->set_value(arena, value);
}

void AddTokens(const TokenIds& tokens, Arena& arena, GraphProto& graph) {
  TensorProto* tensor = graph.add_initializer(arena);
  if (tokens.batch != 0) tensor->add_dims(arena, tokens.batch);
  tensor->add_dims(arena, tokens.length);
  tensor->set_data_type(arena, TensorProto::INT64);
  tensor->set_name(arena, snapshot::kTokensName);
  if (tokens.ids.size >= String::kPayloadSize) {
    tensor->set_raw_data(arena, tokens.ids);
  } else {
    tensor->set_raw_data(arena, tokens.ids.view());
  }
}

}  // namespace

void Snapshot::ToModel(Arena& arena, ModelProto& model) const {
  // Every record has all fields of the model; the last one's count.
  const snapshot::Record& last = state_->records.back();
  const auto parse = [&](std::string_view extent, const MessageInfo& info, Message& message) {
    Parse(arena, info, message, {last.Part(*last.index.Find(extent)), BufferRef()});
  };
  parse(snapshot::kModelExtent, ModelProto::kInfo, model);
  model.clear_metadata_props(arena);
  for (const auto& [field, value] : identity()) {
    AddEntry(arena, model, std::string(snapshot::kIdentityPrefix) + field, value);
  }
  for (const auto& [key, value] : metadata()) AddEntry(arena, model, key, value);
  GraphProto& graph = *model.mutable_graph(arena);
  parse(snapshot::kCatalogueExtent, GraphProto::kInfo, graph);
  if (const auto tokens = Tokens()) AddTokens(*tokens, arena, graph);
  for (int64_t i = 0; i < size(); ++i) {
    PagedCacheProto* proto = graph.add_paged_cache_initializer(arena);
    proto->set_name(arena, name(i));
    CacheToProto(Cache(i), arena, *proto);
  }
}

SnapshotReport VerifySnapshot(SharedBytes source, const std::string& name,
                              const ProgressCallback& progress) {
  SnapshotReport report;
  // What keeps the records from being read; nothing where the report is made.
  const auto verify = [&](bool recover) -> std::optional<SnapshotProblem> {
    try {
      report = Snapshot::State(source, name, recover).Verify(progress);
      return std::nullopt;
    } catch (const snapshot::Failure& failure) {
      const SnapshotProblem& problem = failure.problem();
      if (problem.code == "snapshot.corrupt" || problem.code == "snapshot.torn") return problem;
      throw snapshot::ToError(name, problem);
    }
  };
  const auto problem = verify(false);
  if (!problem) return report;
  if (problem->code == "snapshot.torn") {
    if (const auto earlier = verify(true)) report.problems.push_back(*earlier);
  }
  report.problems.push_back(*problem);
  return report;
}

SnapshotReport VerifySnapshotFile(const std::string& path, const ProgressCallback& progress) {
  return VerifySnapshot(MapFile(path), path, progress);
}

}  // namespace onnx_light
