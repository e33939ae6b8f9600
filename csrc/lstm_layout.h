// What forward and backward share: sizes, how the work is divided among threads, and what is kept for backward.
#pragma once

#include "pack.h"
#include "scratch.h"
#include "threads.h"

namespace cellerate::CELLERATE_TARGET {

// Sizes of one layer on this target, and the threads that share its work.
struct Plan {
  Index batch, steps, inputs, units, vocabulary;
  Index unit_panels;  // panels of kLanes units
  int threads;
  // With many rows, each thread has rows of its own, and threads wait for each other only between chunks of time.
  // With few rows, each thread has units of its own, and all wait for each other at every step.
  bool split_units;

  explicit Plan(const LstmInputs& in)
      : batch(in.batch),
        steps(in.steps),
        inputs(in.inputs),
        units(in.units),
        vocabulary(in.ids != nullptr ? in.vocabulary : 0),
        unit_panels(ceil_div(in.units, kLanes)) {
    // With fewer multiplications than this, a thread costs more than it saves.
    constexpr double kWorthAThread = 5e5;
    // Packed weights of more bytes than this do not stay in a core's cache from step to step; then it is faster if
    // each core reads only its own share.
    constexpr double kCached = 8e6;
    const double products = 4.0 * static_cast<double>(batch * steps) * static_cast<double>(units) *
                            static_cast<double>(units + (vocabulary > 0 ? 0 : inputs));
    const double wanted = products / kWorthAThread;
    const Index most = wanted < thread_count() ? larger(1, static_cast<Index>(wanted)) : thread_count();
    // Backward gives each thread whole column panels of the state, so forward does too.
    const Index by_units = smaller(most, ceil_div(units, kWidth));
    const Index by_rows = smaller(most, ceil_div(batch, 2));
    // The fewer rows use a weight, the less the arithmetic hides its loading: as measured, r rows reach about
    // r / (r + 2) of the full speed. Waiting for each other at every step costs something too.
    const auto speed = [](Index workers, double rows) {
      return static_cast<double>(workers) * rows / (rows + 2);
    };
    const auto rows = static_cast<double>(batch);
    const double gain = speed(by_units, rows) / speed(by_rows, rows / static_cast<double>(by_rows));
    const bool outgrown = 16.0 * static_cast<double>(units * units) > kCached && by_units >= by_rows;
    split_units = by_units > 1 && (gain > 1.08 || outgrown);
    threads = static_cast<int>(split_units ? by_units : by_rows);
  }

  // Pairs of rows stay on one thread, because in bfloat16 they share words.
  Range rows_of(int index) const { return split_units ? Range{0, batch} : share(batch, index, threads, 2); }
  Range panels_of(int index) const {
    return split_units ? share(unit_panels, index, threads, 4) : Range{0, unit_panels};
  }
  // The shares of work that any thread can do.
  Range panels_shared(int index) const { return share(unit_panels, index, threads); }
  bool all_rows_together() const { return split_units || threads == 1; }
};

// A unit panel holds kLanes units and their four gates: columns [i | f | c | o] of kLanes each. Units beyond H
// are zero everywhere.
struct GateColumns {
  Index units;
  Range operator()(Index panel, Index gate) const {
    return {gate * units + panel * kLanes, (gate + 1) * units};
  }
};

// Packs weights (K, 4H) as [unit panel][words of K][kWidth], the given panels.
template <bool kPairs>
void pack_gates(const float* weights, Index k, Index units, float* out, Range panels) {
  pack_panels<kPairs>(weights, k, 4 * units, GateColumns{units}, out, panels);
}

// Packs weights (N, 4H), transposed, as [column panel of N][words of 4H in order][kWidth].
//
// K is in the order of unit panels, like the gradients of the gates: (panel, gate, lane); or `by_gate`, if each gate
// is summed separately: (gate, panel, lane).
template <bool kPairs>
void pack_gates_transposed(const float* weights, Index n, Index units, bool by_gate, float* out,
                           Range panels) {
  const Index unit_panels = ceil_div(units, kLanes);
  const GateColumns gates{units};
  const auto columns = [=](Index block) {
    return by_gate ? gates(block % unit_panels, block / unit_panels) : gates(block / 4, block % 4);
  };
  pack_transposed<kPairs>(weights, n, 4 * units, 4 * unit_panels, columns, out, panels);
}

// Distinguishes reserves with different layouts.
template <bool kPairs>
constexpr uint64_t kReserveLayout = 0x4c53544d00000000u + kLanes * 2 + (kPairs ? 1 : 0);

// What forward keeps for backward, as one block of memory.
template <Storage kStorage, bool kPairs>
struct Reserve {
  using Gate = typename Element<kPairs ? Storage::kBfloat16 : Storage::kFloat32>::Type;
  using State = typename Element<kStorage>::Type;

  uint64_t* layout;  // kReserveLayout of the target that wrote it
  float* cells;      // [step][unit panel][row][kLanes]
  Gate* gates;       // [step][unit panel][row][kWidth]: in the form of lstm_gates.h
  State* states;     // [step][row][unit]: h, if the outputs are not the same; else null
  size_t bytes;

  Reserve(const LstmInputs& in, void* memory) {
    Layout parts(static_cast<std::byte*>(memory));
    const Index panels = ceil_div(in.units, kLanes);
    const auto each = static_cast<size_t>(in.steps * in.batch * panels);
    layout = parts.template take<uint64_t>(1);
    cells = parts.template take<float>(each * kLanes);
    gates = parts.template take<Gate>(each * kWidth);
    const bool hidden = in.mask != nullptr || !in.return_sequences;
    states =
        hidden ? parts.template take<State>(static_cast<size_t>(in.steps * in.batch * in.units)) : nullptr;
    bytes = parts.bytes();
  }
};

inline size_t reserve_bytes(const LstmInputs& in) {
  return by_storage(in.storage, [&]<Storage kStorage>() {
    return Reserve<kStorage, kPairsOf<kStorage>>(in, nullptr).bytes;
  });
}

// For each row, the first step that is not masked, in the order of computation; `steps` if there is none.
inline void first_unmasked(const LstmInputs& in, int32_t* first) {
  for (Index row = 0; row < in.batch; ++row) {
    Index step = 0;
    while (step < in.steps && !in.mask[row * in.steps + (in.go_backwards ? in.steps - 1 - step : step)])
      ++step;
    first[row] = static_cast<int32_t>(step);
  }
}

// Treats denormal numbers as zeros while it lives, because they are many times slower. On the caller's thread it is
// the framework's choice whether they are zeros, and the workers do not inherit that.
class WithoutDenormals {
 public:
  WithoutDenormals() : before_(read()) { write(before_ | kFlush); }
  ~WithoutDenormals() { write(before_); }
  WithoutDenormals(const WithoutDenormals&) = delete;
  WithoutDenormals& operator=(const WithoutDenormals&) = delete;

 private:
#if defined(__SSE2__)
  static constexpr uint64_t kFlush = 0x8040;  // flush to zero, denormals are zeros
  static uint64_t read() { return __builtin_ia32_stmxcsr(); }
  static void write(uint64_t state) { __builtin_ia32_ldmxcsr(static_cast<unsigned>(state)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = uint64_t{1} << 24;
  static uint64_t read() {
    uint64_t state;
    asm volatile("mrs %0, fpcr" : "=r"(state));
    return state;
  }
  static void write(uint64_t state) { asm volatile("msr fpcr, %0" : : "r"(state)); }
#else
  static constexpr uint64_t kFlush = 0;
  static uint64_t read() { return 0; }
  static void write(uint64_t) {}
#endif
  const uint64_t before_;
};

// Runs a member function of a job on `threads` threads: job.run(index).
template <class Job>
void run_on(int threads, Job& job, bool again_soon = false) {
  const auto body = [](void* context, int index, int) {
    const WithoutDenormals guard;
#ifdef __AMX_BF16__
    const TilesInUse tiles;
#endif
    static_cast<Job*>(context)->run(index);
  };
  parallel(threads, body, &job, again_soon);
}

}  // namespace cellerate::CELLERATE_TARGET
