// A dense layer over many rows, forward and backward, as in a training step.
//
// Its products are the products of the LSTM, with plain columns in place of gates.
#pragma once

#include "cells/lstm_layout.h"
#include "simd/alike.h"

namespace cellerate::CELLERATE_TARGET {

// Packs weights (K, N), transposed, as [panel of K's][words of N][kWidth].
template <bool kPairs>
void pack_rows(const float* weights, Index k, Index n, float* out, Range panels) {
  constexpr Index kEach = kPairs ? 2 : 1;
  const Index depth = words<kPairs>(n);
  for (Index panel = panels.begin; panel < panels.end; ++panel) {
    float* to = out + panel * depth * kWidth;
    for (Index column = 0; column < n; column += kEach) {
      for (Index first = panel * kWidth; first < (panel + 1) * kWidth; first += kLanes, to += kLanes) {
        const auto part = [&](Index at) {
          float lanes[kLanes] = {};
          for (Index lane = 0; at < n && lane < smaller(kLanes, k - first); ++lane) {
            lanes[lane] = weights[(first + lane) * n + at];
          }
          return Simd::load(lanes);
        };
        Simd::store(to, word<kPairs>(part(column), part(column + 1)));
      }
    }
    for (float* end = out + (panel + 1) * depth * kWidth; to < end; to += kLanes)
      Simd::store(to, Simd::set(0));
  }
}

// Sizes of one call, and the threads that share its work.
struct DensePlan {
  Index rows, inputs, outputs;
  int threads;
  int pieces;  // of the work; more than `threads` while other programs want the cores

  explicit DensePlan(const DenseInputs& in) : rows(in.rows), inputs(in.inputs), outputs(in.outputs) {
    const double products = static_cast<double>(rows) * static_cast<double>(inputs * outputs);
    const Division division = division_of(threads_for(products), products, false, rows);
    threads = division.threads;
    pieces = division.pieces;
  }
};

// The rows of a chunk: few enough for their copies to stay in the cache.
constexpr Index kDenseRows = 768;

template <Storage kStorage, bool kPairs>
class DenseForwardJob {
  using Type = typename Element<kStorage>::Type;

 public:
  DenseForwardJob(const DenseForward& in, const DensePlan& plan)
      : in_(in),
        plan_(plan),
        panels_(ceil_div(plan.outputs, kWidth)),
        depth_(words<kPairs>(plan.inputs)),
        x_row_(spread(depth_)),
        chunk_(smaller(kDenseRows / 4, plan.rows)) {}

  void lay_out(Layout& memory) {
    kernel_ = memory.take<float>(panels_ * depth_ * kWidth);
    bias_ = memory.take<float>(panels_ * kWidth);
    x_ = memory.take<float>((chunk_ * plan_.pieces + kRowsBeyond<kPairs>)*x_row_);
    y_ = memory.take<float>(chunk_ * plan_.pieces * panels_ * kWidth);
  }

  void lead(Crew& crew) {
    each(crew, plan_.threads, [this](int part) { pack(part); });
    each(crew, plan_.pieces, [this](int piece) { run_rows(piece); });
  }

 private:
  void pack(int part) {
    const auto columns = [this](Index panel, Index vector) {
      return Range{panel * kWidth + vector * kLanes, plan_.outputs};
    };
    pack_panels<kPairs>(in_.kernel, plan_.inputs, plan_.outputs, columns, kernel_,
                        share(panels_, part, plan_.threads));
    if (part == 0) pack_bias(in_.bias, columns, bias_, panels_);
  }

  void run_rows(int piece) {
    const Range mine = share(plan_.rows, piece, plan_.pieces);
    float* x = x_ + piece * chunk_ * x_row_;
    const Panels y{y_ + piece * chunk_ * panels_ * kWidth, chunk_, last_of(plan_.outputs)};
    for (Index begin = mine.begin; begin < mine.end; begin += chunk_) {
      const Index count = smaller(chunk_, mine.end - begin);
      for (Index row = 0; row < count; ++row) {
        const auto* from = static_cast<const Type*>(in_.x) + (begin + row) * plan_.inputs;
        copy_row<kStorage, kPairs>(from, plan_.inputs, x + row * x_row_);
      }
      multiply<kPairs>({x, x_row_, 0, depth_, 1}, kernel_, bias_, y, {0, count}, {0, panels_});
      for (Index row = 0; row < count; ++row) {
        auto* to = static_cast<Type*>(in_.y) + (begin + row) * plan_.outputs;
        for (Index column = 0; column < plan_.outputs; column += kLanes) {
          const F sum = Simd::load(y.at(column / kWidth, row) + column % kWidth);
          store_upto<kStorage>(to, sum, column, plan_.outputs);
        }
      }
    }
  }

  const DenseForward& in_;
  const DensePlan& plan_;
  const Index panels_, depth_, x_row_;
  const Index chunk_;  // rows of a chunk

  float* kernel_ = nullptr;  // packed
  float* bias_ = nullptr;    // [panel][kWidth]
  float* x_ = nullptr;       // [piece][row][x_row_]
  float* y_ = nullptr;       // [piece], each as Panels
};

template <Storage kStorage, bool kPairs>
class DenseBackwardJob {
  using Type = typename Element<kStorage>::Type;
  static constexpr int kEach = kPairs ? 2 : 1;  // rows in one word

 public:
  DenseBackwardJob(const DenseBackward& in, const DensePlan& plan)
      : in_(in),
        plan_(plan),
        panels_(ceil_div(plan.outputs, kWidth)),
        input_panels_(ceil_div(plan.inputs, kWidth)),
        d_y_depth_(words<kPairs>(plan.outputs)),
        d_y_row_(spread(d_y_depth_)),
        chunk_(round_up(smaller(kDenseRows, plan.rows), 2)),
        depth_(words<kPairs>(chunk_)),
        packed_depth_(packed_depth<kPairs>(depth_)),
        x_rows_(plan.inputs + (in.d_bias != nullptr ? 1 : 0)) {}

  void lay_out(Layout& memory) {
    paired_ = memory.take<float>(panels_ * depth_ * kWidth);
    x_ = memory.take<float>(packed_words<kPairs>(x_rows_, packed_depth_));
    if (in_.d_x == nullptr) return;
    kernel_ = memory.take<float>(input_panels_ * d_y_depth_ * kWidth);
    d_y_ = memory.take<float>((chunk_ + kRowsBeyond<kPairs>)*d_y_row_);
    d_x_ = {memory.take<float>(chunk_ * input_panels_ * kWidth), chunk_, last_of(plan_.inputs)};
  }

  void lead(Crew& crew) {
    if (in_.d_x != nullptr) {
      each(crew, plan_.threads, [this](int part) {
        pack_rows<kPairs>(in_.kernel, plan_.inputs, plan_.outputs, kernel_,
                          share(input_panels_, part, plan_.threads));
      });
    }
    for (Index begin = 0; begin < plan_.rows; begin += chunk_) {
      const Index count = smaller(chunk_, plan_.rows - begin);
      const auto rows_of = [&](int piece) { return share(count, piece, plan_.pieces, kEach); };
      each(crew, plan_.pieces, [&](int piece) { pack_rows_of_chunk(begin, count, rows_of(piece)); });
      each(crew, plan_.pieces, [&](int piece) {
        if (in_.d_x != nullptr) input_gradients(begin, rows_of(piece));
        weight_gradients(piece, begin == 0, ceil_div(count, kEach));
      });
    }
  }

 private:
  // Packs some rows of a chunk: dy as both factors, and x with a 1 for the bias.
  void pack_rows_of_chunk(Index begin, Index count, Range mine) {
    float one = 1;
    if constexpr (kPairs) {
      constexpr uint32_t kOnes = 0x3f803f80;  // twice 1 in bfloat16
      std::memcpy(&one, &kOnes, sizeof one);
    }
    for (Index row = mine.begin; row < mine.end; row += kEach) {
      const Index k = row / kEach;
      const bool second = kPairs && row + 1 < count;
      const auto* d_y = static_cast<const Type*>(in_.d_y) + (begin + row) * plan_.outputs;
      for (Index column = 0; column < panels_ * kWidth; column += kLanes) {
        const bool there = column < plan_.outputs;
        const F even = there ? load_upto<kStorage>(d_y, column, plan_.outputs) : Simd::set(0);
        const F odd =
            there && second ? load_upto<kStorage>(d_y + plan_.outputs, column, plan_.outputs) : Simd::set(0);
        Simd::store(paired_ + (column / kWidth * depth_ + k) * kWidth + column % kWidth,
                    word<kPairs>(even, odd));
      }
      for (Index each = row; in_.d_x != nullptr && each < smaller(row + kEach, count); ++each) {
        const auto* from = static_cast<const Type*>(in_.d_y) + (begin + each) * plan_.outputs;
        copy_row<kStorage, kPairs>(from, plan_.outputs, d_y_ + each * d_y_row_);
      }
      const auto* x = static_cast<const Type*>(in_.x) + (begin + row) * plan_.inputs;
      pack_column<kStorage, kPairs>(x, second ? x + plan_.inputs : nullptr, plan_.inputs, x_, packed_depth_,
                                    0, k);
      if (in_.d_bias != nullptr) *packed_at<kPairs>(x_, packed_depth_, plan_.inputs, k) = one;
    }
    if (kTiled<kPairs> && mine.end == count) clear_beyond_rows(ceil_div(count, kEach));
  }
  // Pads the words along the rows of a chunk with zeros to whole tiles.
  void clear_beyond_rows(Index deep) {
    const auto beyond = static_cast<size_t>(round_up(deep, kTileWords) - deep);
    for (Index row = 0; row < x_rows_; ++row) {
      std::memset(packed_at<kPairs>(x_, packed_depth_, row, deep), 0, beyond * sizeof(float));
    }
    for (Index panel = 0; panel < panels_; ++panel) {
      std::memset(paired_ + (panel * depth_ + deep) * kWidth, 0, beyond * kWidth * sizeof(float));
    }
  }

  // dx = dy·W^T for some rows of a chunk.
  void input_gradients(Index begin, Range mine) {
    multiply<kPairs>({d_y_, d_y_row_, 0, d_y_depth_, 1}, kernel_, nullptr, d_x_, mine, {0, input_panels_});
    for (Index row = mine.begin; row < mine.end; ++row) {
      auto* to = static_cast<Type*>(in_.d_x) + (begin + row) * plan_.inputs;
      for (Index column = 0; column < plan_.inputs; column += kLanes) {
        store_upto<kStorage>(to, Simd::load(d_x_.at(column / kWidth, row) + column % kWidth), column,
                             plan_.inputs);
      }
    }
  }

  // Adds [x 1]^T·dy of a chunk for a share of the tiles of the kernel's rows.
  void weight_gradients(int index, bool first, Index deep) {
    if constexpr (kTiled<kPairs>) {
      const Range mine = share(x_rows_, index, plan_.pieces, kBlockRows);
      const Left a{x_, packed_depth_, 0, round_up(deep, kTileWords), 1};
      for (Index panel = 0; panel < panels_; ++panel) {
        for_blocks(mine, [&](Index row, Index count) {
          alignas(64) float sums[kBlockRows][kWidth];
          multiply_block(x_ + row * packed_depth_, a, 1, paired_ + panel * depth_ * kWidth, nullptr, 0,
                         sums[0], count);
          for (Index r = 0; r < count; ++r) add_row(sums[r], row + r, panel, first);
        });
      }
      return;
    }
    const Range tiles = share(ceil_div(x_rows_, kRows), index, plan_.pieces);
    for (Index panel = 0; panel < panels_; ++panel) {
      const int vectors = last_of(plan_.outputs).used(panel);
      for (Index row = tiles.begin * kRows; row < smaller(tiles.end * kRows, x_rows_); row += kRows) {
        alignas(64) float sums[kRows * kWidth];
        multiply_tile<kPairs>(x_ + row * packed_depth_, paired_ + panel * depth_ * kWidth, deep, vectors,
                              sums);
        for (Index r = 0; r < smaller(kRows, x_rows_ - row); ++r)
          add_row(sums + r * kWidth, row + r, panel, first);
      }
    }
  }

  // Adds a panel's sums of a row of [x 1]^T to the gradients, or stores them there if `first`.
  void add_row(const float* sums, Index row, Index panel, bool first) {
    float* to = row < plan_.inputs ? in_.d_kernel + row * plan_.outputs : in_.d_bias;
    for (int j = 0; j < 4; ++j) {
      const Index column = panel * kWidth + j * kLanes;
      if (column >= plan_.outputs) break;
      const F before = first ? Simd::set(0) : load_upto<Storage::kFloat32>(to, column, plan_.outputs);
      store_upto<Storage::kFloat32>(to, Simd::add(before, Simd::load(sums + j * kLanes)), column,
                                    plan_.outputs);
    }
  }

  const DenseBackward& in_;
  const DensePlan& plan_;
  const Index panels_, input_panels_;
  const Index d_y_depth_, d_y_row_;
  const Index chunk_;         // rows of a chunk
  const Index depth_;         // words along the rows of a chunk
  const Index packed_depth_;  // words along the rows of a chunk in x_
  const Index x_rows_;        // of the left factor [x 1]^T

  float* kernel_ = nullptr;  // W^T, packed
  float* paired_ = nullptr;  // dy as a right factor: [panel][depth_][kWidth]
  float* d_y_ = nullptr;     // dy as a left factor: [row][d_y_row_]
  float* x_ = nullptr;       // [x 1]^T as a packed left factor
  Panels d_x_;
};

template <class Job, class Call>
void run_dense(const Call& in) {
  const DensePlan plan(in);
  Job job(in, plan);
  lead_on(plan.threads, job);
}

inline void forward(const DenseForward& in) {
  own_or_alike(
      in.storage, [&]<Storage kStorage>() { run_dense<DenseForwardJob<kStorage, kPairsOf<kStorage>>>(in); },
      [&] { CELLERATE_ALIKE::kDenseKernels.forward(in); });
}

inline void backward(const DenseBackward& in) {
  own_or_alike(
      in.storage, [&]<Storage kStorage>() { run_dense<DenseBackwardJob<kStorage, kPairsOf<kStorage>>>(in); },
      [&] { CELLERATE_ALIKE::kDenseKernels.backward(in); });
}

}  // namespace cellerate::CELLERATE_TARGET
