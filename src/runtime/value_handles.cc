#include "onnx_light/value_handles.h"

#include <mutex>
#include <random>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

namespace onnx_light {
namespace {

using Value = std::shared_ptr<const PagedCache>;

// From the top: the sign, which is 0, the kind, the scope, the place in it. Caches are the only
// kind so far; that it is not 0 keeps small numbers from being handles.
constexpr int kPlaceBits = 26, kScopeBits = 34;
constexpr int64_t kCacheKind = 1;
constexpr int64_t kPlaces = int64_t{1} << kPlaceBits, kScopes = int64_t{1} << kScopeBits;

constexpr int64_t Pack(int64_t scope, int64_t place) {
  return kCacheKind << (kScopeBits + kPlaceBits) | scope << kPlaceBits | place;
}
constexpr int64_t ScopeOf(int64_t handle) { return handle >> kPlaceBits & (kScopes - 1); }
constexpr int64_t PlaceOf(int64_t handle) { return handle & (kPlaces - 1); }
constexpr bool IsCache(int64_t handle) { return handle >> (kScopeBits + kPlaceBits) == kCacheKind; }

[[noreturn]] void Refuse(int64_t handle) {
  throw ValueError(
      "runtime.handle", "",
      std::to_string(handle) + (IsCache(handle)
                                    ? " is the handle of a cache that is no longer there; a run "
                                      "that ended and release() drop the values"
                                    : " is no handle of a cache"));
}

class Scope {
 public:
  // Whether the first handle stands for the whole scope.
  explicit Scope(bool ends_with_first) : ends_with_first_(ends_with_first) {}
  bool ends_with(int64_t place) const { return ends_with_first_ && place == 0; }

  int64_t Add(PagedCache cache) {
    auto value = std::make_shared<const PagedCache>(std::move(cache));
    const std::lock_guard lock(mutex_);
    if (next_ == kPlaces) {
      throw ValueError("runtime.handle", "",
                       "a run made " + std::to_string(kPlaces) + " caches, which is the limit");
    }
    values_.emplace(next_, std::move(value));
    return next_++;
  }

  Value Get(int64_t place) const {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(place);
    return found == values_.end() ? nullptr : found->second;
  }

  // Gives the value back, so that it goes when no lock is held.
  Value Take(int64_t place) {
    const std::lock_guard lock(mutex_);
    auto node = values_.extract(place);
    return node ? std::move(node.mapped()) : nullptr;
  }

  void Tell(OperatorFailure failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
  }
  std::optional<OperatorFailure> failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  int64_t size() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(values_.size());
  }

 private:
  const bool ends_with_first_;
  mutable std::mutex mutex_;
  std::unordered_map<int64_t, Value> values_;
  int64_t next_ = 0;
  std::optional<OperatorFailure> failure_;
};

class Registry {
 public:
  // Never destroyed: sessions may end after everything else.
  static Registry& Get() {
    static auto* registry = new Registry;
    return *registry;
  }

  int64_t Begin(std::shared_ptr<Scope> scope) {
    const std::unique_lock lock(mutex_);
    do {
      last_ = (last_ + 1) % kScopes;
    } while (scopes_.contains(last_));
    scopes_.emplace(last_, std::move(scope));
    return last_;
  }

  void End(int64_t number) {
    std::shared_ptr<Scope> scope;  // goes when the lock is no longer held
    const std::unique_lock lock(mutex_);
    auto node = scopes_.extract(number);
    if (node) scope = std::move(node.mapped());
  }

  // Null where there is none.
  std::shared_ptr<Scope> Find(int64_t number) const {
    const std::shared_lock lock(mutex_);
    const auto found = scopes_.find(number);
    return found == scopes_.end() ? nullptr : found->second;
  }

  std::shared_ptr<Scope> ScopeAt(int64_t handle) const {
    auto scope = IsCache(handle) ? Find(ScopeOf(handle)) : nullptr;
    if (scope == nullptr) Refuse(handle);
    return scope;
  }

  int64_t HeldValues() const {
    const std::shared_lock lock(mutex_);
    int64_t count = 0;
    for (const auto& [number, scope] : scopes_) count += scope->size();
    return count;
  }

 private:
  // Begins anywhere, so that handles of another process hardly ever look like own ones.
  Registry() : last_(std::random_device()() % kScopes) {}

  mutable std::shared_mutex mutex_;
  std::unordered_map<int64_t, std::shared_ptr<Scope>> scopes_;
  int64_t last_;
};

}  // namespace

ValueScope::ValueScope() : number_(Registry::Get().Begin(std::make_shared<Scope>(false))) {}

ValueScope::~ValueScope() { Registry::Get().End(number_); }

int64_t ValueScope::Add(PagedCache cache) {
  return Pack(number_, Registry::Get().Find(number_)->Add(std::move(cache)));
}

std::optional<OperatorFailure> ValueScope::failure() const {
  return Registry::Get().Find(number_)->failure();
}

std::shared_ptr<const PagedCache> CacheOf(int64_t handle) {
  Value value = Registry::Get().ScopeAt(handle)->Get(PlaceOf(handle));
  if (value == nullptr) Refuse(handle);
  return value;
}

int64_t AddBeside(int64_t handle, PagedCache cache) {
  return Pack(ScopeOf(handle), Registry::Get().ScopeAt(handle)->Add(std::move(cache)));
}

void TellFailure(int64_t handle, OperatorFailure failure) {
  const auto scope = IsCache(handle) ? Registry::Get().Find(ScopeOf(handle)) : nullptr;
  if (scope != nullptr) scope->Tell(std::move(failure));
}

int64_t NewHandle(PagedCache cache) {
  auto scope = std::make_shared<Scope>(true);
  const int64_t place = scope->Add(std::move(cache));
  return Pack(Registry::Get().Begin(std::move(scope)), place);
}

void ReleaseHandle(int64_t handle) {
  const auto scope = Registry::Get().ScopeAt(handle);
  if (scope->Take(PlaceOf(handle)) == nullptr) Refuse(handle);
  if (scope->ends_with(PlaceOf(handle))) Registry::Get().End(ScopeOf(handle));
}

int64_t HeldValues() { return Registry::Get().HeldValues(); }

}  // namespace onnx_light
