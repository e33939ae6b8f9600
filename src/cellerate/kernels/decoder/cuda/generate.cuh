// Generation with a next-token model in one kernel, step after step without leaving the GPU: a table of embedding ·
// kernel of the first layer, LSTM layers, logits, and the draw of the next id.
//
// Unlike in the recurrence of one layer, all layers take a step together, because the next id depends on the last of
// them. A cluster owns `kRows` rows for all steps. Each of its blocks has some units of every layer (none if the layer
// has too few) and some of the logits. A block keeps as many weights as it can in registers and shared memory, and
// reads the rest from the second-level cache in each step. Blocks exchange h as in lstm_forward.cuh, and the logits in
// the same way. Then every block draws the ids of all rows itself, which costs no time, because it would wait
// otherwise, and saves a third exchange. All blocks draw the same ids, because they have the same numbers.
//
// A step: logits of h → (meanwhile recurrent_kernel·h of the first layer) → ids → first layer → (meanwhile
// recurrent_kernel·h of the second) → second layer → … So a block computes while an exchange is on its way.
#pragma once

#include "generate_plan.cuh"

namespace cellerate::gpu {

// The weights of matrices 0 to `matrix`.
template <class P, int matrix>
struct Matrices : Matrices<P, matrix - 1> {
  typename P::template Matrix<matrix> own;
};
template <class P>
struct Matrices<P, -1> {};

// The generation in one block: its units and logits, for the rows of its cluster.
template <class P>
class GenerateBlock {
  using Number = typename P::Number;
  using L = Layout<Number>;
  using Panel = typename GenerateShared<P>::Panel;
  static constexpr int kNumbers = P::kRows * kPanelUnits;  // in a part of a panel
  using Sums = float[P::kTiles][4];

 public:
  CELLERATE_DEVICE explicit GenerateBlock(const GenerateArguments& in)
      : in_(in),
        shared_(*reinterpret_cast<GenerateShared<P>*>(shared_memory())),
        block_unit_(here_.warp * 4 + here_.lane / 8),
        unit_(here_.first_unit + block_unit_),
        logits_(P::kSharedLogits ? shared_.logits
                                 : in.all_logits + static_cast<long>(block_index() / P::kBlocks) *
                                                       P::kSenders * P::kBlockTiles * P::kTileNumbers) {}

  CELLERATE_DEVICE void run() {
    load<0>();
    begin_table();
    begin_bias();
    begin_rows();
    begin_logits();
    begin_layer<0>();
    make_all_barriers();
    int step = 0;
    for (bool finishing = false;;) {
      const int now = step & 1;
      const bool scored = finishing || (in_.every_step != 0 && step > 0);
      if (scored) send_logits(now);
      // The first layer's product with its own h does not need the id.
      Sums sums = {};
      if (here_.rank < P::blocks(0)) {
        weights<0>().read_ahead();
        multiply_layer<0>(now, sums);
      }
      prepare(step);
      if (scored) receive_logits();
      if (finishing) break;
      choose(step);
      sync_block();
      const int token = here_.lane < P::kRows ? shared_.tokens[here_.lane] : -1;
      if (lanes_where(token >= 0) == 0) {
        // All rows have ended, but the caller may want the logits of the last h.
        if (in_.every_step != 0 || in_.new_logits == nullptr) break;
        finishing = true;
        continue;
      }
      live_ = lanes_where(token >= (P::kMasksZero ? 1 : 0));
      if (here_.thread == 0) expect_layer<0>(now ^ 1);
      advance_layer<0>(step, sums);
      wait_for(shared_.arrived[P::kLayers - 1][now ^ 1], (step >> 1) & 1);
      ++step;
    }
    finish_layer<0>();
    finish_rows();
    // No block may end while another may still send to it or read from it.
    sync_cluster();
  }

 private:
  template <int matrix>
  CELLERATE_DEVICE auto& weights() {
    return static_cast<Matrices<P, matrix>&>(matrices_).own;
  }

  template <int matrix>
  CELLERATE_DEVICE void load() {
    if (here_.rank < P::owners(matrix)) {
      const Words* packed = static_cast<const Words*>(in_.weights) + P::memory_before(matrix) +
                            static_cast<long>(here_.rank) * P::products(matrix) * P::kThreads;
      weights<matrix>().load(packed, here_.warp, shared_.weights + P::shared_before(matrix));
    }
    if constexpr (matrix < P::kHead) load<matrix + 1>();
  }

  // The row that this thread computes in a tile.
  CELLERATE_DEVICE int row(int tile) const {
    return tile * 8 + 2 * (here_.lane & 3) + ((here_.lane >> 2) & 1);
  }
  CELLERATE_DEVICE bool there(int layer, int tile) const {
    return unit_ < P::units(layer) && here_.first_row + row(tile) < in_.batch;
  }
  // The index of a layer's h in a state; c follows it.
  CELLERATE_DEVICE static constexpr int state_before(int layer) {
    int found = 0;
    for (int n = 0; n < layer; ++n) found += 2 * P::units(n);
    return found;
  }
  CELLERATE_DEVICE static constexpr int biases_before(int layer) {
    int found = 0;
    for (int n = 1; n < layer; ++n) found += 4 * P::units(n);
    return found;
  }

  // Whether this block writes the results of a row; all blocks have them.
  CELLERATE_DEVICE bool writes(int r) const { return r % P::kBlocks == here_.rank; }

  // The table's gates of a unit of this block, for an id.
  CELLERATE_DEVICE const Gates<Number>& in_table(int id, int block_unit) const {
    const long at = static_cast<long>(id) * P::units(0) + here_.first_unit + block_unit;
    return static_cast<const Gates<Number>*>(in_.table)[at];
  }
  CELLERATE_DEVICE void begin_table() {
    if constexpr (P::kSharedTable) {
      for (int n = here_.thread; n < P::kVocabulary * P::kBlockUnits; n += P::kThreads) {
        const int id = n / P::kBlockUnits, unit = n % P::kBlockUnits;
        if (here_.first_unit + unit < P::units(0)) shared_.table[n] = in_table(id, unit);
      }
    }
  }
  CELLERATE_DEVICE void begin_bias() {
    for (int n = here_.thread; n < 16 * P::kBlockTiles; n += P::kThreads) {
      const int id = 16 * P::kBlockTiles * here_.rank + n;
      // Tiles beyond the last have no biases.
      shared_.head_bias[n] = id < 16 * P::kLogitTiles ? in_.head_bias[id] : 0.0f;
    }
  }
  // The table's gates for the rows of this thread.
  CELLERATE_DEVICE void look_up(Gates<Number> (&found)[P::kTiles]) const {
    CELLERATE_UNROLL
    for (int tile = 0; tile < P::kTiles; ++tile) {
      const int token = shared_.tokens[row(tile)];
      if (token < 0 || !there(0, tile)) {
        found[tile] = {};
      } else if constexpr (P::kSharedTable) {
        found[tile] = shared_.table[token * P::kBlockUnits + block_unit_];
      } else {
        found[tile] = in_table(token, block_unit_);
      }
    }
  }

  CELLERATE_DEVICE void begin_rows() {
    for (int r = here_.thread; r < P::kRows; r += P::kThreads) {
      const int b = here_.first_row + r;
      if (b < in_.batch) shared_.rows[r] = in_.rows[b];
      shared_.tokens[r] = -1;
      shared_.over[r] = b < in_.batch ? 0 : 1;
      shared_.drawn[r] = 0;
    }
    sync_block();
    next_given_ = given_at(0);
    if (in_.times == nullptr) return;
    // Each id changes the penalty's counts. Every block draws, so each has its own copy of them.
    for (int r = here_.warp; r < P::kRows; r += P::kWarps) {
      const long b = here_.first_row + r;
      if (b >= in_.batch) continue;
      for (int n = here_.lane; n < P::kOutputs; n += 32) times(r)[n] = in_.times[b * P::kOutputs + n];
      for (int n = here_.lane; n < in_.recent; n += 32) ring(r)[n] = in_.ring[b * in_.recent + n];
    }
  }
  CELLERATE_DEVICE int* times(int r) const {
    return in_.own_times + (static_cast<long>(block_index()) * P::kRows + r) * P::kOutputs;
  }
  CELLERATE_DEVICE int* ring(int r) const {
    return in_.own_ring + (static_cast<long>(block_index()) * P::kRows + r) * in_.recent;
  }

  // The index of a logit; the logits of a tile and a row are contiguous.
  CELLERATE_DEVICE static int logit_at(int r, int id) { return id / 16 * P::kTileNumbers + r * 16 + id % 16; }
  CELLERATE_DEVICE void begin_logits() {
    if (in_.logits == nullptr) return;
    const int first = P::kSharedLogits ? here_.warp : here_.rank * P::kWarps + here_.warp;
    const int each = P::kSharedLogits ? P::kWarps : P::kBlocks * P::kWarps;
    for (int r = first; r < P::kRows; r += each) {
      const long b = here_.first_row + r;
      if (b >= in_.batch) continue;
      for (int n = here_.lane; n < P::kOutputs; n += 32) {
        logits_[logit_at(r, n)] = in_.logits[b * P::kOutputs + n];
      }
    }
  }

  // Fills h of a layer and the layers after it with the states of all units, and loads the states of this thread.
  template <int layer>
  CELLERATE_DEVICE void begin_layer() {
    constexpr int kUnits = P::units(layer);
    for (int n = here_.thread; n < P::panels(layer) * kNumbers; n += P::kThreads) {
      const int panel = n / kNumbers, r = n % kNumbers / kPanelUnits, u = n % kPanelUnits;
      const long b = here_.first_row + r;
      const int unit = panel * kPanelUnits + u;
      const bool known = b < in_.batch && unit < kUnits;
      const float h = known ? in_.state[b * in_.states + state_before(layer) + unit] : 0.0f;
      store_split(h, &shared_.h[0][P::panels_before(layer) + panel][0][in_panel<Number>(r, u)], kNumbers);
    }
    CELLERATE_UNROLL
    for (int tile = 0; tile < P::kTiles; ++tile) {
      const bool known = there(layer, tile);
      const float* from = in_.state + static_cast<long>(here_.first_row + row(tile)) * in_.states +
                          state_before(layer) + unit_;
      h_[layer][tile] = known ? from[0] : 0.0f;
      c_[layer][tile] = known ? from[kUnits] : 0.0f;
    }
    if constexpr (layer > 0) {
      CELLERATE_UNROLL
      for (int gate = 0; gate < 4; ++gate) {
        bias_[layer][gate] = unit_ < kUnits ? in_.biases[biases_before(layer) + 4 * unit_ + gate] : 0.0f;
      }
    }
    if constexpr (layer + 1 < P::kLayers) begin_layer<layer + 1>();
  }

  CELLERATE_DEVICE void make_all_barriers() {
    if (here_.thread == 0) {
      for (int layer = 0; layer < P::kLayers; ++layer) {
        init_barrier(shared_.arrived[layer][0]);
        init_barrier(shared_.arrived[layer][1]);
      }
      init_barrier(shared_.logits_arrived);
      publish_barriers();
    }
    sync_cluster();
  }

  // Adds weights · h of a layer to the sums: `pairs` pairs of products from `first_pair` on, `stride` apart. Even and
  // odd products have separate sums, so that none waits for the one before; split numbers do not need that.
  template <int matrix, int layer, int pairs>
  CELLERATE_DEVICE void multiply(int now, int first_product, int first_pair, int stride, Sums& sums);
  // A matrix of an LSTM times the h of a layer.
  template <int matrix>
  CELLERATE_DEVICE void multiply_layer(int now, Sums& sums) {
    multiply<matrix, matrix / 2, P::pairs(matrix / 2)>(now, 0, 0, 1, sums);
  }

  template <int layer>
  CELLERATE_DEVICE void expect_layer(int next) {
    expect_bytes(shared_.arrived[layer][next],
                 P::blocks(layer) * static_cast<int>(sizeof shared_.sent[0][0]));
    if constexpr (layer + 1 < P::kLayers) expect_layer<layer + 1>(next);
  }

  // A step of a layer and the layers after it. For the first layer, `sums` has recurrent_kernel·h.
  template <int layer>
  CELLERATE_DEVICE void advance_layer(int step, Sums& sums);

  // Computes a step of this thread's unit in one row, and stores h where it is sent from.
  template <int layer>
  CELLERATE_DEVICE void advance(int next, int tile, const float (&mine)[4], const Gates<Number>& looked_up);

  // Computes this block's logits from h and sends them to the other blocks.
  CELLERATE_DEVICE void send_logits(int now) {
    constexpr int kChunk = P::kBlockTiles * P::kTileNumbers;
    constexpr int kBytes = kChunk * static_cast<int>(sizeof(float));
    if (P::kSharedLogits && here_.thread == 0) expect_bytes(shared_.logits_arrived, P::kSenders * kBytes);
    if (here_.rank < P::kSenders) {
      compute_logits(now);
      if constexpr (P::kSharedLogits) {
        sync_block();
        float* mine = logits_ + here_.rank * kChunk;
        send_to_blocks<P, kBytes>(here_, mine, mine, shared_.logits_arrived);
      }
    }
  }
  CELLERATE_DEVICE void receive_logits() {
    if constexpr (P::kSharedLogits) {
      wait_for(shared_.logits_arrived, logits_came_ & 1);
      ++logits_came_;
    } else {
      sync_cluster();
    }
  }

  CELLERATE_DEVICE void compute_logits(int now) {
    const int part = here_.warp / P::kTileWarps;
    weights<P::kHead>().read_ahead();
    unsigned lane = static_cast<unsigned>(here_.lane);
    CELLERATE_UNROLL
    for (int round = 0; round < P::kRounds; ++round) {
      const int tile = round * P::kTileWarps + here_.warp % P::kTileWarps;
      Sums sums = {};
      multiply<P::kHead, P::kLayers - 1, P::kHeadPairs>(now, round * P::kHeadPairs * 2, part, P::kDepthWarps,
                                                        sums);
      keep_in_loop(lane);
      CELLERATE_UNROLL
      for (int rows = 0; rows < P::kTiles; ++rows) {
        CELLERATE_UNROLL
        for (int n = 0; n < 4; ++n) {
          const int row = rows * 8 + 2 * static_cast<int>(lane % 4) + (n & 1);
          const int id = static_cast<int>(lane / 4) + (n >> 1) * 8;
          if constexpr (P::kDepthWarps > 1) {
            shared_.parts[here_.warp][row * P::kPartRow + id] = sums[rows][n];
          } else if (tile < P::kBlockTiles) {
            store_logit(tile, row, id, sums[rows][n]);
          }
        }
      }
      // Otherwise the compiler would begin all rounds at once and run out of registers.
      if constexpr (P::kRounds > 1) sync_warp();
    }
    if constexpr (P::kDepthWarps > 1) {
      sync_block();
      for (int n = here_.thread; n < P::kBlockTiles * P::kTileNumbers; n += P::kThreads) {
        const int tile = n / P::kTileNumbers, row = n % P::kTileNumbers / 16, id = n % 16;
        float sum = 0;
        CELLERATE_UNROLL
        for (int which = 0; which < P::kDepthWarps; ++which) {
          sum += shared_.parts[which * P::kTileWarps + tile][row * P::kPartRow + id];
        }
        store_logit(tile, row, id, sum);
      }
    }
  }
  // `id` counts within the tile, and `block_tile` within the block.
  CELLERATE_DEVICE void store_logit(int block_tile, int row, int id, float sum) {
    const int tile = here_.rank * P::kBlockTiles + block_tile;
    logits_[tile * P::kTileNumbers + row * 16 + id] = sum + shared_.head_bias[block_tile * 16 + id];
  }

  // The row that this lane prepares. Its warp then chooses the row's id.
  CELLERATE_DEVICE int prepared_row() const { return here_.warp + here_.lane * P::kWarps; }
  // The id that the row reads in a step, or 0 if it reads none.
  CELLERATE_DEVICE int given_at(int step) const {
    const int r = prepared_row();
    if (r >= P::kRows || shared_.over[r] != 0 || step >= shared_.rows[r].length) return 0;
    const int id = in_.given[static_cast<long>(here_.first_row + r) * in_.steps + step];
    // The caller checks ids; if one is wrong all the same, it must not read beyond the table.
    return id < 0 ? 0 : id < P::kVocabulary ? id : P::kVocabulary - 1;
  }
  // Prepares a warp's rows before the logits arrive: the random numbers, and the ids to read, which were loaded a step
  // before.
  CELLERATE_DEVICE void prepare(int step) {
    const int r = prepared_row();
    if (r < P::kRows && shared_.over[r] == 0) {
      const Row& asked = shared_.rows[r];
      shared_.given[r] = next_given_;
      shared_.randoms[r] = uniform(asked.sampling.seed, asked.sampling.stream,
                                   asked.position + static_cast<unsigned long long>(step - asked.length));
    }
    next_given_ = given_at(step + 1);
    sync_warp();
  }

  // Chooses the id of each row for a step, given or drawn; one warp per row.
  CELLERATE_DEVICE void choose(int step) {
    for (int r = here_.warp; r < P::kRows; r += P::kWarps) {
      const int token = shared_.over[r] != 0 ? -1 : choose_for(r, step);
      sync_warp();
      if (here_.lane == 0) {
        shared_.tokens[r] = token;
        if (token < 0) shared_.over[r] = 1;
      }
    }
  }
  CELLERATE_DEVICE int choose_for(int r, int step) {
    const Row& asked = shared_.rows[r];
    const long at = static_cast<long>(here_.first_row + r) * in_.steps + step;
    const bool reads = step < asked.length;
    if (!reads && step >= asked.length + asked.count) return -1;
    int token = reads ? shared_.given[r] : 0;
    if (in_.every_step == 0 || (step == 0 && in_.logits == nullptr) || (reads && !writes(r))) return token;
    if constexpr (P::kOutputs == P::kVocabulary) {
      const int* seen = in_.times == nullptr ? nullptr : times(r);
      RowSampler<P::kOutputs> sampler({logits_ + r * 16, P::kTileNumbers}, reads ? nullptr : seen,
                                      asked.sampling);
      if (!reads) {
        token = sampler.finite() ? sampler.choose(shared_.randoms[r], writes(r)) : -1;
        bool stops = token < 0;
        for (int n = here_.lane; n < asked.stops; n += 32)
          stops = stops || in_.stop_ids[asked.first_stop + n] == token;
        stops = lanes_where(stops) != 0;
        if (here_.lane == 0) {
          if (token < 0) shared_.drawn[r] = -1;
          if (!stops) ++shared_.drawn[r];
          if (!stops && seen != nullptr) remember(r, token, asked.came + step - asked.length);
        }
        if (stops) return -1;
      }
      if (writes(r)) {
        const float log_probability = sampler.log_probability(token);
        if (here_.lane == 0) {
          in_.log_probabilities[at] = log_probability;
          if (!reads) in_.ids[at] = token;
        }
      }
    }
    return token;
  }

  // Counts an id for the penalty; `came` is the number of ids that it has seen before.
  CELLERATE_DEVICE void remember(int r, int id, int came) {
    const int window = shared_.rows[r].window;
    ++times(r)[id];
    if (window == 0) return;
    int& place = ring(r)[came % window];
    if (came >= window) --times(r)[place];
    place = id;
  }

  template <int layer>
  CELLERATE_DEVICE void finish_layer() {
    CELLERATE_UNROLL
    for (int tile = 0; tile < P::kTiles; ++tile) {
      if (!there(layer, tile)) continue;
      float* to = in_.new_state + static_cast<long>(here_.first_row + row(tile)) * in_.states +
                  state_before(layer) + unit_;
      to[0] = h_[layer][tile];
      to[P::units(layer)] = c_[layer][tile];
    }
    if constexpr (layer + 1 < P::kLayers) finish_layer<layer + 1>();
  }
  CELLERATE_DEVICE void finish_rows() {
    for (int r = here_.warp; r < P::kRows; r += P::kWarps) {
      const long b = here_.first_row + r;
      if (b >= in_.batch || !writes(r)) continue;
      if (here_.lane == 0) in_.drawn[b] = shared_.drawn[r];
      if (in_.new_logits == nullptr) continue;
      for (int n = here_.lane; n < P::kOutputs; n += 32) {
        in_.new_logits[b * P::kOutputs + n] = logits_[logit_at(r, n)];
      }
    }
  }

  const GenerateArguments& in_;
  GenerateShared<P>& shared_;
  const Place<P> here_;
  const int block_unit_, unit_;  // the unit that this thread computes, in its block and in each layer
  float* const logits_;

  Matrices<P, P::kHead> matrices_;
  float c_[P::kLayers][P::kTiles], h_[P::kLayers][P::kTiles], bias_[P::kLayers][4];
  unsigned live_ = 0;  // a bit for each row that takes the step
  int logits_came_ = 0;
  int next_given_ = 0;  // the next id to read, of the row that this lane prepares
};

}  // namespace cellerate::gpu

#include "generate_layers.cuh"

namespace cellerate::gpu {

template <class P>
CELLERATE_DEVICE void generate(const GenerateArguments& in) {
  GenerateBlock<P>(in).run();
}

}  // namespace cellerate::gpu
