// The parts shared by the two recurrences for many rows. A cluster computes up to 152 rows, as many as its registers
// have sums for, and streams everything that does not fit into shared memory through it. In every step each block reads
// its own part of the weights from memory. Each block also reads its own units' part of the exchanged numbers, once for
// the whole cluster. So the weights are read once for 152 rows; `lstm_forward.cuh` and `lstm_backward.cuh` read weights
// that do not fit once for at most 40 rows.
//
// All numbers come in chunks that are 64 numbers deep in a product. All blocks receive the exchanged chunks in the same
// order. The block whose chunk is next sends it when all blocks have room. Barriers count arrivals; blocks wait for
// each other only for chunks and for room. Eight warps of a block multiply and compute, and four do everything else
// (after CUTLASS, where separate warps copy and multiply).
#pragma once

#include "arguments.cuh"
#include "lstm.cuh"
#include "wide_products.cuh"

namespace cellerate::gpu {

// The units of a block, and the depth of a chunk.
constexpr int kTileUnits = 64;

// The compile-time parameters of a kernel; names that are also in `Plan` mean the same.
//   block_chunks: the number of chunks of a block's part of the exchanged numbers: 1 forward, 4 backward.
//   slots, weight_slots: exchanged chunks, and chunks of weights, that are on their way or in use.
//   resident: chunks of weights that stay in shared memory; if all do, there are no slots for others.
template <class Number_, int units, int rows, Activation activation, Activation recurrent_activation,
          bool masked, int block_chunks, int slots, int weight_slots, int resident>
struct TiledPlan {
  using Number = Number_;
  static constexpr int kRows = rows;
  static constexpr Activation kActivation = activation;
  static constexpr Activation kRecurrentActivation = recurrent_activation;
  static constexpr bool kMasked = masked;
  static constexpr int kSlots = slots, kWeightSlots = weight_slots, kResident = resident;

  static constexpr int kBlocks = units / kTileUnits;  // per cluster
  static constexpr int kBlockChunks = block_chunks;
  static constexpr int kChunks = kBlocks * block_chunks;  // per step
  static constexpr int kTiles = rows / 8;
  static constexpr int kThreads = 32 * 12;
  // Warps that compute, and warps that read or write memory for them.
  static constexpr int kWorkers = 8, kHelpers = 2;
  // Numbers of a chunk, and of one of weights.
  static constexpr int kChunk = rows * kTileUnits;
  static constexpr int kWeights = 4 * kTileUnits * kTileUnits / block_chunks;
  static constexpr int kChunkBytes = kChunk * static_cast<int>(sizeof(Number));
  static constexpr int kWeightBytes = kWeights * static_cast<int>(sizeof(Number));
  static constexpr bool kStreams = resident < kChunks;
  // A block starts with 168 registers for each thread. Two groups of four warps compute; the third group, which does
  // all else, gives some of its registers to them.
  static constexpr int kWorkersRegisters = rows > 112 ? 240 : 232,
                       kOtherRegisters = 3 * 168 - 2 * kWorkersRegisters;
  static_assert(sizeof(Number) == 2 && units % kTileUnits == 0 && rows % 8 == 0);
  // The room of a used chunk goes to the block that sends this many chunks later: at most one step ahead.
  static_assert(0 < slots && slots <= kChunks && (weight_slots > 0) == kStreams);
};

// The index of a number in a chunk: 8 rows of 8 numbers are 128 bytes, as the wide products read them.
CELLERATE_DEVICE constexpr int in_tile(int row, int number) {
  return ((row / 8 * 8 + number / 8) * 8 + row % 8) * 8 + number % 8;
}

// The chunks in shared memory, and the barriers that count them.
template <class P>
struct Chunks {
  using Number = typename P::Number;
  static constexpr int kStreaming = P::kStreams ? P::kWeightSlots : 1;
  alignas(128) Number come[P::kSlots][P::kChunk];
  Number weights[P::kWeightSlots + P::kResident][P::kWeights];
  Barrier arrived[P::kSlots];
  Barrier weights_arrived[kStreaming], weights_used[kStreaming];
  Barrier resident_arrived;
  Barrier room[P::kBlockChunks];  // for each of this block's chunks, in all blocks
};

// The slot of the n-th chunk, and the parity of the phase in which it arrives.
template <int slots>
struct Slot {
  const int slot, parity;
  CELLERATE_DEVICE explicit Slot(unsigned n)
      : slot(static_cast<int>(n % slots)), parity(static_cast<int>(n / slots & 1)) {}
};

// A thread's place in its block, and the place of its block.
template <class P>
struct TiledPlace {
  const int thread = thread_index(), lane = thread % 32, warp = thread / 32;
  const int rank = cluster_rank(), cluster = block_index() / P::kBlocks;
  const int first_row = cluster * P::kRows, first_unit = rank * kTileUnits;
};

// Divides the work of a block among its warps: the workers run `compute`, the helpers `help`, with their number, and
// one thread each runs `send` and `bring`.
template <class P, class Compute, class Help, class Send, class Bring>
CELLERATE_DEVICE void divide(const TiledPlace<P>& here, const Compute& compute, const Help& help,
                             const Send& send, const Bring& bring) {
  // From here on, the barriers of all blocks exist.
  sync_cluster();
  if (here.warp < P::kWorkers) {
    take_registers_until<P::kWorkersRegisters>();
    compute();
  } else {
    give_registers_until<P::kOtherRegisters>();
    const int part = here.warp - P::kWorkers;
    if (part < P::kHelpers) {
      help(part);
    } else if (here.lane == 0) {
      if (part == P::kHelpers) send();
      if (part == P::kHelpers + 1) bring();
    }
  }
  sync_warp();
  // No block may end while another may still send to it.
  sync_cluster();
}

// Prefetches this block's units of a row of (…, H, per_unit) into the second-level cache, if they are aligned.
template <class Number>
CELLERATE_DEVICE void prefetch_row(const Number* rows, int per_unit, long row, int units, int first_unit) {
  const Number* first = rows + (row * units + first_unit) * per_unit;
  if (units % 8 != 0 || first_unit >= units || reinterpret_cast<unsigned long long>(first) % 16 != 0) return;
  const int left = units - first_unit, count = left < kTileUnits ? left : kTileUnits;
  prefetch_bytes(first, count * per_unit * static_cast<int>(sizeof(Number)));
}

// The sending, receiving and multiplying of chunks in a block.
//   users: the number of warps that use a chunk.
template <class P, int users>
class Traffic {
  using Number = typename P::Number;
  using Come = Slot<P::kSlots>;
  using Streamed = Slot<Chunks<P>::kStreaming>;

 public:
  CELLERATE_DEVICE Traffic(Chunks<P>& chunks, int steps)
      : chunks_(chunks), all_(static_cast<unsigned>(steps) * P::kChunks) {}

  // One thread makes the barriers, before the blocks of the cluster meet.
  CELLERATE_DEVICE void make_barriers() const {
    for (Barrier& one : chunks_.arrived) init_barrier(one);
    for (Barrier& one : chunks_.weights_arrived) init_barrier(one);
    for (Barrier& one : chunks_.weights_used) init_barrier(one, users);
    init_barrier(chunks_.resident_arrived);
    for (Barrier& one : chunks_.room) init_barrier(one, P::kBlocks * users);
  }

  // The workers begin: all slots are free, and chunks are expected there.
  CELLERATE_DEVICE void begin() const {
    if (here_.lane == 0 && here_.warp < users) {
      for (unsigned slot = 0; slot < P::kSlots && slot < all_; ++slot) give_room(slot);
    }
    if (here_.thread == 0) {
      for (unsigned slot = 0; slot < P::kSlots && slot < all_; ++slot) {
        expect_bytes(chunks_.arrived[slot], P::kChunkBytes);
      }
    }
    if constexpr (P::kResident > 0) wait_for(chunks_.resident_arrived, 0);
  }

  // Multiplies the chunks `first`, `first` + `stride` and so on of a step; every four warps have their own. The
  // products of a chunk begin while those of the one before still run.
  //   begin_products: begins the products of a chunk, given its weights and the received numbers.
  template <int stride, class BeginProducts>
  CELLERATE_DEVICE void multiply(int step, int first, const BeginProducts& begin_products) const {
    // A warp that waits for a barrier must wait for each of its phases, so every four warps have their own slots.
    static_assert(P::kSlots % stride == 0 && P::kResident % stride == 0);
    static_assert(!P::kStreams || P::kWeightSlots % stride == 0);
    unsigned n = static_cast<unsigned>(step) * P::kChunks + first;
    for (int chunk = first; chunk < P::kChunks; chunk += stride, n += stride) {
      const Come come(n);
      wait_forever_for(chunks_.arrived[come.slot], come.parity);
      // From now on the barrier can count the next chunk in the same slot.
      if (here_.thread == 128 * first && n + P::kSlots < all_) {
        expect_bytes(chunks_.arrived[come.slot], P::kChunkBytes);
      }
      int of_weights = P::kWeightSlots + chunk;
      if (chunk >= P::kResident) {
        const Streamed streamed(nth_streamed(n));
        wait_forever_for(chunks_.weights_arrived[streamed.slot], streamed.parity);
        of_weights = streamed.slot;
      }
      begin_wide_group();
      begin_products(chunks_.weights[of_weights], chunks_.come[come.slot]);
      end_wide_group();
      if (chunk > first) {
        wait_for_wide_groups<1>();
        free(n - stride);
      }
    }
    wait_for_wide_groups<0>();
    free(n - stride);
  }

  // Sends a chunk of this block to all blocks, when they have room for it.
  //   part: the index among the block's chunks.
  CELLERATE_DEVICE void send(int step, int part, const Number* chunk) const {
    const Come come(static_cast<unsigned>(step) * P::kChunks + here_.rank * P::kBlockChunks + part);
    wait_for(chunks_.room[part], step & 1);
    copy_from_memory_to_blocks(P::kBlocks, chunks_.come[come.slot], chunk, P::kChunkBytes,
                               chunks_.arrived[come.slot]);
  }

  // Brings the weights of this block, (kChunks, kWeights): the resident ones once, the others in every step.
  CELLERATE_DEVICE void bring_weights(const Words* weights) const {
    const Number* all =
        reinterpret_cast<const Number*>(weights) + static_cast<long>(here_.rank) * P::kChunks * P::kWeights;
    if constexpr (P::kResident > 0) {
      expect_bytes(chunks_.resident_arrived, P::kResident * P::kWeightBytes);
      copy_from_memory(chunks_.weights[P::kWeightSlots], all, P::kResident * P::kWeightBytes,
                       chunks_.resident_arrived);
    }
    if constexpr (P::kStreams) {
      for (unsigned n = 0; n < all_; ++n) {
        const int chunk = static_cast<int>(n % P::kChunks);
        if (chunk < P::kResident) continue;
        const Streamed next(nth_streamed(n));
        // At first a slot is free: waiting for the parity before its first phase returns at once.
        wait_for(chunks_.weights_used[next.slot], next.parity ^ 1);
        expect_bytes(chunks_.weights_arrived[next.slot], P::kWeightBytes);
        copy_from_memory(chunks_.weights[next.slot], all + chunk * P::kWeights, P::kWeightBytes,
                         chunks_.weights_arrived[next.slot]);
      }
    }
  }

 private:
  // The number of chunks with streamed weights before the n-th chunk, which has streamed weights, too.
  CELLERATE_DEVICE static unsigned nth_streamed(unsigned n) {
    return n - (n / P::kChunks + 1) * P::kResident;
  }

  // Reports that this warp has used a chunk.
  CELLERATE_DEVICE void free(unsigned n) const {
    if (here_.lane != 0) return;
    if (P::kStreams && static_cast<int>(n % P::kChunks) >= P::kResident) {
      arrive(chunks_.weights_used[Streamed(nth_streamed(n)).slot]);
    }
    // The slot now belongs to the next chunk that comes into it.
    if (n + P::kSlots < all_) give_room(n + P::kSlots);
  }
  CELLERATE_DEVICE void give_room(unsigned n) const {
    const int chunk = static_cast<int>(n % P::kChunks);
    arrive_in(chunk / P::kBlockChunks, chunks_.room[chunk % P::kBlockChunks]);
  }

  Chunks<P>& chunks_;
  const TiledPlace<P> here_;
  const unsigned all_;  // chunks of all steps
};

}  // namespace cellerate::gpu
