// What forward and backward share: sizes, how the work is divided among threads, and what is kept for backward.
#pragma once

#include "products/pack.h"
#include "systems/scratch.h"
#include "systems/threads.h"

namespace cellerate::CELLERATE_TARGET {

// The multiplications for which a further thread makes a call faster. A thread does about 1.5 G multiplications per
// second and lane with a single row, and twice as many with several rows. Measured on two cores, with workers asleep as
// between the layers of a training step: a worker starts 20 to 40 µs after the call, and often not at all, because the
// system puts it on the caller's core. So calls of 100 µs are slower on two threads, and calls of 250 µs are faster.
constexpr double kWorthAThread = 1.5e5 * kLanes;
// The multiplications of a step for which threads may meet after each step: at least 3 µs of work; a meeting takes 0.3.
constexpr double kWorthMeeting = 6e3 * kLanes;
// The multiplications of a call that uses threads while other programs want the cores: more than 10 ms of work, several
// times as long as a core is away.
constexpr double kWorthPieces = 2e7 * kLanes;

// The number of threads of a call, and the number of pieces into which it divides the rows.
struct Division {
  int threads, pieces;
};

// The number of threads for which there is enough work.
inline Index threads_for(double products) {
  if (inside_parallel()) return 1;
  const double wanted = sharing() == Sharing::kByWork ? products / kWorthAThread : thread_count();
  return wanted < thread_count() ? larger(1, static_cast<Index>(wanted)) : thread_count();
}

// The division of a call that uses `threads` threads on an idle machine. While other programs want the cores, it takes
// more pieces, so that a core that is away half of the time delays a piece and not half of the rows. It takes one
// thread if the call is short, or if its threads meet at every step, where waiting would cost more than they save.
inline Division division_of(Index threads, double products, bool meets, Index most_pieces) {
  const bool by_work = sharing() == Sharing::kByWork;
  const bool wanted = by_work ? cores_are_wanted() : sharing() == Sharing::kAlwaysPieces;
  if (threads == 1 || !wanted) return {static_cast<int>(threads), static_cast<int>(threads)};
  if (by_work && (meets || products < kWorthPieces)) return {1, 1};
  return {static_cast<int>(threads), static_cast<int>(larger(threads, smaller(4 * threads, most_pieces)))};
}

// Sizes of one layer on this target, and the threads that share its work.
struct Plan {
  Index batch, steps, inputs, units, vocabulary;
  Index unit_panels;  // panels of kLanes units
  int threads;
  // With many rows, each thread has rows of its own, and threads wait for each other only between chunks of time.
  // With few rows, each thread has units of its own, and all wait for each other at every step.
  bool split_units;
  int pieces;  // of the rows

  // Args: passes: the multiplications of this pass, as a multiple of forward's.
  explicit Plan(const LstmInputs& in, double passes = 1)
      : batch(in.batch),
        steps(in.steps),
        inputs(in.inputs),
        units(in.units),
        vocabulary(in.ids != nullptr ? in.vocabulary : 0),
        unit_panels(ceil_div(in.units, kLanes)) {
    // Packed weights of more bytes than this do not stay in a core's cache from step to step. Then it is faster if each
    // core reads only its own share.
    constexpr double kCached = 8e6;
    const double products = passes * 4.0 * static_cast<double>(batch * steps) * static_cast<double>(units) *
                            static_cast<double>(units + (vocabulary > 0 ? 0 : inputs));
    const Index most = threads_for(products);
    // Backward gives each thread whole column panels of the state, so forward does too.
    const Index parts = smaller(most, ceil_div(units, kWidth));
    const double step = products / static_cast<double>(steps);
    const Index by_units = sharing() == Sharing::kByWork && step < kWorthMeeting ? 1 : parts;
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
    const Division division =
        division_of(split_units ? by_units : by_rows, products, split_units, batch / rows_of_piece());
    threads = division.threads;
    pieces = division.pieces;
    split_units = split_units && threads > 1;
  }

  // Pairs of rows stay in one piece, because in bfloat16 they share words.
  Range rows_of(int piece) const { return share(batch, piece, pieces, 2); }
  Range panels_of(int part) const { return share(unit_panels, part, threads, 4); }
  // The panels of one share of the work that any thread can do.
  Range panels_shared(int part) const { return share(unit_panels, part, threads); }
  bool all_rows_together() const { return split_units || threads == 1; }

 private:
  // The rows of a small piece that still hides the loading of weights.
  static Index rows_of_piece() { return sharing() == Sharing::kByWork ? 16 : 2; }
};

// The number of vectors for the gates of the units after the last whole panel, if these gates are packed side by side;
// 0 if the units fill a panel, or nearly do.
constexpr int tail_vectors(Index units) {
  const auto vectors = static_cast<int>(ceil_div(4 * (units % kLanes), kLanes));
  return vectors == 4 ? 0 : vectors;
}
// The units whose four gates fit into `vectors` vectors.
constexpr Index units_of_vectors(int vectors) { return vectors * kLanes / 4; }

// The last units of a layer in training, whose gates lie side by side if that takes fewer vectors: 50 units then take 13
// vectors and not 16. Pairs of bfloat16, and gates with left factors of their own, always have whole panels.
struct LastUnits : LastPanel {
  Index gate = kLanes;  // numbers from gate to gate in this panel

  template <bool kPairs>
  static LastUnits of(const LstmInputs& in) {
    const bool apart = in.dropout != nullptr || in.recurrent_dropout != nullptr;
    const int vectors = !kNarrows<kPairs> || apart ? 0 : tail_vectors(in.units);
    if (vectors == 0) return {};
    return {{in.units / kLanes, vectors}, units_of_vectors(vectors)};
  }
  Index gate_of(Index unit_panel) const { return unit_panel == panel ? gate : kLanes; }
  // Copies a row of 4H numbers from Keras's order to this panel's row.
  [[gnu::noinline]] void pack_row(const float* from, Index units, float* to) const {
    const Index first = panel * kLanes;
    std::memset(to, 0, kWidth * sizeof *to);
    for (int j = 0; j < 4; ++j)
      std::memcpy(to + j * gate, from + j * units + first, static_cast<size_t>(units - first) * sizeof *to);
  }
};

// A unit panel holds kLanes units and their four gates: columns [i | f | c | o] of kLanes each. Units beyond H
// are zero everywhere, or, in LastUnits, left out.
struct GateColumns {
  Index units;
  Range operator()(Index panel, Index gate) const {
    return {gate * units + panel * kLanes, (gate + 1) * units};
  }
};

// Packs weights (K, 4H) as [unit panel][words of K][kWidth], the given panels.
template <bool kPairs>
void pack_gates(const float* weights, Index k, Index units, const LastUnits& last, float* out, Range panels) {
  const bool cut = last.panel >= panels.begin && last.panel < panels.end;
  pack_panels<kPairs>(weights, k, 4 * units, GateColumns{units}, out,
                      {panels.begin, cut ? last.panel : panels.end});
  for (Index row = 0; cut && row < k; ++row)
    last.pack_row(weights + row * 4 * units, units, out + (last.panel * k + row) * kWidth);
}
// Packs a bias (4H) as [unit panel][kWidth]; zeros if it is null.
inline void pack_gate_bias(const float* bias, Index units, const LastUnits& last, float* out, Index panels) {
  pack_bias(bias, GateColumns{units}, out, panels);
  if (bias != nullptr && last.panel >= 0) last.pack_row(bias, units, out + last.panel * kWidth);
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

// The numbers that forward keeps for backward, as one block of memory.
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
    const auto each = in.steps * in.batch * panels;
    layout = parts.template take<uint64_t>(1);
    cells = parts.template take<float>(each * kLanes);
    gates = parts.template take<Gate>(each * kWidth);
    const bool hidden = in.mask != nullptr || !in.return_sequences;
    states = hidden ? parts.template take<State>(in.steps * in.batch * in.units) : nullptr;
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

// Treats denormal numbers as zeros while it lives, because they are many times slower. A framework may do so on the
// caller's thread, but the workers do not inherit its setting.
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

// The processor state that a thread needs while it runs a kernel.
struct KernelGuard {
  const WithoutDenormals without_denormals;
  const TilesInUse tiles;
};

// Calls job.run(index) on `threads` threads.
template <class Job>
void run_on(int threads, Job& job, bool again_soon = false) {
  const auto body = [](void* context, int index, int) {
    const KernelGuard guard;
    static_cast<Job*>(context)->run(index);
  };
  parallel(threads, body, &job, again_soon);
}

// Takes the memory that a job lays out, and calls job.lead(crew) on this thread, with up to `threads` threads.
template <class Job>
void lead_on(int threads, Job& job) {
  const Workspace workspace([&](Layout& layout) { job.lay_out(layout); });
  with_crew(threads, [](void* context, Crew& crew) { static_cast<Job*>(context)->lead(crew); }, &job);
}

// Packs the weights of a job into memory, and returns their size in bytes; with null it only counts.
template <class Job>
size_t pack_job(Job&& job, std::byte* memory) {
  Layout layout(memory);
  job.lay_out_packed(layout);
  const KernelGuard guard;
  if (memory != nullptr) job.pack_all();
  return layout.bytes();
}

// Runs part(n) for each n in [0, parts), on any threads of the crew.
template <class Part>
void each(Crew& crew, Index parts, const Part& part) {
  const auto call = [](void* context, int n) {
    const KernelGuard guard;
    (*static_cast<const Part*>(context))(n);
  };
  crew.each(static_cast<int>(parts), call, const_cast<Part*>(&part));
}

}  // namespace cellerate::CELLERATE_TARGET
