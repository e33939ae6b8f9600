#include "simd/dispatch.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "engine/packed_memory.h"

#if defined(CELLERATE_HAVE_AMX) || defined(CELLERATE_HAVE_AVX2VNNI)
#include <cpuid.h>
#endif
#ifdef CELLERATE_HAVE_AMX
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace cellerate {

// Each build has some of these targets.
namespace scalar {
extern const Target kTarget;
}
namespace avx2 {
extern const Target kTarget;
}
namespace avx2vnni {
extern const Target kTarget;
}
namespace avx512 {
extern const Target kTarget;
}
namespace avx512vnni {
extern const Target kTarget;
}
namespace avx512bf16 {
extern const Target kTarget;
}
namespace amx {
extern const Target kTarget;
}
namespace neon {
extern const Target kTarget;
}
namespace neondot {
extern const Target kTarget;
}

namespace {

#ifdef CELLERATE_HAVE_AMX
// Whether the processor has the tiles of AMX and their products of bfloat16 and of bytes, and the operating system lets this process
// use them: Linux must be asked, because the tiles make what it saves of a thread larger.
bool has_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kTiles = 1u << 24, kBytes = 1u << 25, kBfloat16 = 1u << 22;
  constexpr unsigned kAll = kTiles | kBytes | kBfloat16;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kAll) != kAll) return false;
#ifdef __linux__
  constexpr long kAskFor = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kAskFor, kTileData) == 0;
#else
  return false;
#endif
}
#endif

#ifdef CELLERATE_HAVE_AVX2VNNI
// Whether the processor has the products of bytes without AVX-512, as Intel's have from Alder Lake on and AMD's from
// Zen 5 on.
bool has_vex_vnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kVexVnni = 1u << 4;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kVexVnni) != 0;
}
#endif

#ifdef CELLERATE_HAVE_NEONDOT
bool has_dot_product() {
#ifdef __linux__
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return true;  // as all of Apple's do
#endif
}
#endif

// The targets of this build that this processor can run, fastest first.
std::vector<const Target*> runnable() {
  std::vector<const Target*> found;
#if defined(__x86_64__) || defined(__i386__)
  __builtin_cpu_init();
#ifdef CELLERATE_HAVE_AVX512
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  [[maybe_unused]] const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
#ifdef CELLERATE_HAVE_AVX512BF16
  const bool bfloat16 = vnni && __builtin_cpu_supports("avx512bf16");
#ifdef CELLERATE_HAVE_AMX
  if (bfloat16 && has_tiles()) found.push_back(&amx::kTarget);
#endif
  if (bfloat16) found.push_back(&avx512bf16::kTarget);
#endif
#ifdef CELLERATE_HAVE_AVX512VNNI
  if (vnni) found.push_back(&avx512vnni::kTarget);
#endif
  if (avx512) found.push_back(&avx512::kTarget);
#endif
#ifdef CELLERATE_HAVE_AVX2
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#ifdef CELLERATE_HAVE_AVX2VNNI
  if (avx2 && has_vex_vnni()) found.push_back(&avx2vnni::kTarget);
#endif
  if (avx2) found.push_back(&avx2::kTarget);
#endif
#endif
#ifdef CELLERATE_HAVE_NEONDOT
  if (has_dot_product()) found.push_back(&neondot::kTarget);
#endif
#ifdef CELLERATE_HAVE_NEON
  found.push_back(&neon::kTarget);
#endif
  found.push_back(&scalar::kTarget);
  return found;
}

const Target* named(std::string_view name, const char* source) {
  std::string names;
  for (const Target* each : runnable()) {
    if (each->name == name) return each;
    names += (names.empty() ? "" : ", ") + std::string(each->name);
  }
  throw std::invalid_argument(std::string(source) + ": the target \"" + std::string(name) +
                              "\" cannot run here; those that can are " + names);
}

std::atomic<const Target*> chosen{nullptr};

}  // namespace

const Target& target() {
  const Target* found = chosen.load(std::memory_order_acquire);
  if (found == nullptr) {
    const char* name = std::getenv("CELLERATE_TARGET");
    found = name != nullptr && *name != '\0' ? named(name, "CELLERATE_TARGET") : runnable().front();
    chosen.store(found, std::memory_order_release);
  }
  return *found;
}

std::vector<std::string> available_targets() {
  std::vector<std::string> names;
  for (const Target* each : runnable()) names.emplace_back(each->name);
  return names;
}

void set_target(std::string_view name) { chosen.store(named(name, "target"), std::memory_order_release); }

namespace {

// The speed of work(rounds), per second; work returns the amount done. Takes enough rounds for the clock to be exact.
template <class Work>
double rate_of(const Work& work) {
  using Clock = std::chrono::steady_clock;
  for (int64_t rounds = 1000;; rounds *= 4) {
    const auto start = Clock::now();
    const double done = work(rounds);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (seconds > 0.1) return done / seconds;
  }
}

}  // namespace

double measure_peak(Precision precision, int threads) {
  return rate_of([&](int64_t rounds) { return target().peak(precision, threads, rounds); });
}

double measure_read(int64_t bytes, int threads) {
  const auto floats = bytes / static_cast<int64_t>(sizeof(float));
  const PackedMemory memory = packed_memory(static_cast<size_t>(bytes));
  std::memset(memory.get(), 0, static_cast<size_t>(bytes));
  return rate_of([&](int64_t rounds) {
    target().read(reinterpret_cast<const float*>(memory.get()), floats, threads, rounds);
    return static_cast<double>(floats) * sizeof(float) * static_cast<double>(rounds);
  });
}

}  // namespace cellerate
