#include "base/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>
#include <cstdlib>
#include <string>

#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

constexpr char kVariable[] = "ONNX_LIGHT_ISA";

#if defined(__x86_64__)
// Older clangs do not know "f16c" in __builtin_cpu_supports. REQUIRES: AVX is usable.
bool HasF16c() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

Isa Select() {
  const char* wanted = std::getenv(kVariable);
  const Isa widest = WidestIsa();
  if (wanted == nullptr || *wanted == '\0') return widest;
  for (Isa isa : kIsas) {
    if (Name(isa) != wanted) continue;
    if (isa <= widest) return isa;
    throw ValueError(
        "isa.unsupported", kVariable,
        "this machine has no " + std::string(wanted) + ", at most " + std::string(Name(widest)));
  }
  throw ValueError("isa.unknown", kVariable,
                   "'" + std::string(wanted) + "' is none of scalar, avx2, avx512, avx512vnni");
}

}  // namespace

std::string_view Name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Vnni:
      return "avx512vnni";
  }
  return "";
}

Isa WidestIsa() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !HasF16c()) {
    return Isa::kScalar;
  }
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return Isa::kAvx2;
  }
  if (!__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512vbmi")) {
    return Isa::kAvx512;
  }
  return Isa::kAvx512Vnni;
#else
  return Isa::kScalar;
#endif
}

Isa SelectedIsa() {
  // Threads may select at once, each the same. What waits for the first to finish would wait for
  // ever in a child that was forked meanwhile.
  static constinit std::atomic<int> selected{-1};
  int isa = selected.load(std::memory_order_relaxed);
  if (isa < 0) {
    isa = static_cast<int>(Select());
    selected.store(isa, std::memory_order_relaxed);
  }
  return static_cast<Isa>(isa);
}

}  // namespace onnx_light
