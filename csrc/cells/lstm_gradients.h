// What the backward pass of one layer does after a chunk of steps: the gradients of its inputs, weights and embeddings,
// each a product, and of its initial states. lstm_backward.h includes it.
#pragma once

namespace cellerate::CELLERATE_TARGET {

template <Storage kStorage, bool kPairs>
void BackwardJob<kStorage, kPairs>::clear_beyond_rows(int index, Index steps) {
  const Index deep = steps * rows_ / kEach, beyond = round_up(deep, kTileWords) - deep;
  if (beyond == 0) return;
  const auto clear = [&](float* left, Index rows, Index gate_words, int copies) {
    const Range mine = share(rows, index, plan_.threads);
    for (int copy = 0; copy < copies; ++copy) {
      for (Index row = mine.begin; row < mine.end; ++row) {
        float* from = packed_at<kPairs>(left + copy * gate_words, packed_depth_, row, deep);
        std::memset(from, 0, static_cast<size_t>(beyond) * sizeof(float));
      }
    }
  };
  clear(x_, x_rows_, x_gate_, in_.dropout != nullptr ? 4 : 1);
  clear(h_, plan_.units, h_gate_, in_.recurrent_dropout != nullptr ? 4 : 1);
  const Range panels = plan_.panels_shared(index);
  for (Index panel = panels.begin; panel < panels.end; ++panel) {
    std::memset(d_paired_ + (panel * depth_ + deep) * kWidth, 0,
                static_cast<size_t>(beyond * kWidth) * sizeof(float));
  }
}

template <Storage kStorage, bool kPairs>
void BackwardJob<kStorage, kPairs>::input_gradients(int index, Index begin, Index end) {
  const Range rows = share((end - begin) * rows_, index, shares());
  const Index block = panel_rows_ * kRun;
  if (in_.dropout == nullptr) {
    multiply<kPairs>({d_gates_, kRun, block, kRun, plan_.unit_panels, tail_, last_.gate / kEach}, kernel_,
                     nullptr, d_x_, rows, {0, input_panels_});
  } else {
    const auto factors = [&](int gate, Index position) {
      // The row that pads an odd batch does not have factors, and its result is not used, so it takes any factors.
      const Index row = smaller(position % rows_, plan_.batch - 1);
      return in_.dropout + (gate * plan_.batch + row) * plan_.inputs;
    };
    multiply_gates_apart<kPairs>({d_gates_, kRun, block, kGateRun, plan_.unit_panels, tail_}, kernel_,
                                 plan_.inputs, factors, d_x_, rows, {0, input_panels_}, false);
  }
  for (Index position = rows.begin; position < rows.end; ++position) {
    const Index row = position % rows_;
    if (row >= plan_.batch) continue;
    const Index time = time_of(begin + position / rows_);
    Type* to = static_cast<Type*>(in_.d_x) + (row * plan_.steps + time) * plan_.inputs;
    for (Index column = 0; column < plan_.inputs; column += kLanes) {
      const float* from = d_x_.at(column / kWidth, position) + column % kWidth;
      store_upto<kStorage>(to, Simd::load(from), column, plan_.inputs);
    }
  }
}

template <Storage kStorage, bool kPairs>
void BackwardJob<kStorage, kPairs>::weight_gradients(int index, Index begin, Index end) {
  const Range panels = share(plan_.unit_panels, index, shares());
  const Index deep = (end - begin) * rows_ / kEach;
  const bool first = end == plan_.steps;
  const auto of_x = [&](Index row) {
    return row < plan_.inputs ? in_.d_kernel + row * 4 * plan_.units : in_.d_bias;
  };
  const auto of_h = [&](Index row) { return in_.d_recurrent_kernel + row * 4 * plan_.units; };
  for (Index panel = panels.begin; panel < panels.end; ++panel) {
    add_products(x_, x_gate_, in_.dropout != nullptr, x_rows_, panel, deep, first, of_x);
    add_products(h_, h_gate_, in_.recurrent_dropout != nullptr, plan_.units, panel, deep, first, of_h);
    if (plan_.vocabulary > 0) add_to_table(panel, begin, end);
    if (in_.d_row_bias != nullptr) add_to_row_bias(panel, begin, end);
  }
}

template <Storage kStorage, bool kPairs>
template <class RowOf>
void BackwardJob<kStorage, kPairs>::add_products(const float* left, Index gate_words, bool by_gate,
                                                 Index rows, Index panel, Index deep, bool first,
                                                 const RowOf& row_of) {
  const float* d_gates = d_paired_ + panel * depth_ * kWidth;
  if constexpr (kTiled<kPairs>) {
    const Left a{left, packed_depth_, 0, round_up(deep, kTileWords), 1};
    for_blocks({0, by_gate ? 0 : rows}, [&](Index row, Index count) {
      alignas(64) float sums[kBlockRows][kWidth];
      multiply_block(left + row * packed_depth_, a, 1, d_gates, nullptr, 0, sums[0], count);
      for (Index r = 0; r < count; ++r) {
        const F sum[4] = {Simd::load(sums[r]), Simd::load(sums[r] + kLanes), Simd::load(sums[r] + 2 * kLanes),
                          Simd::load(sums[r] + 3 * kLanes)};
        add_gates(sum, row_of(row + r), panel, first);
      }
    });
    if (!by_gate) return;
  }
  for (Index row = 0; row < rows; row += kRows) {
    for (Index r = row; !first && r < smaller(row + kRows, rows); ++r) {
      for (Index gate = 0; gate < 4; ++gate) fetch(row_of(r) + gate * plan_.units + panel * kLanes);
    }
    const Index count = smaller(kRows, rows - row);
    if (panel == last_.panel) {
      alignas(64) float sums[kRows * kWidth];
      multiply_tile<kPairs>(left + row * packed_depth_, d_gates, deep, last_.vectors, sums);
      for (Index r = 0; r < count; ++r) add_sums(sums + r * kWidth, row_of(row + r), panel, first);
      continue;
    }
    const auto tile = product(left, gate_words, by_gate, row, d_gates, deep);
    for (Index r = 0; r < count; ++r) add_gates(tile.sum[r], row_of(row + r), panel, first);
  }
}

template <Storage kStorage, bool kPairs>
[[gnu::noinline]] Tile<kPairs, kRows> BackwardJob<kStorage, kPairs>::product(const float* left,
                                                                             Index gate_words, bool by_gate,
                                                                             Index row, const float* d_gates,
                                                                             Index deep) const {
  Tile<kPairs, kRows> tile;
  tile.clear();
  const float* first = left + row * packed_depth_;
  if (by_gate) {
    const float* const gates[4] = {first, first + gate_words, first + 2 * gate_words, first + 3 * gate_words};
    if constexpr (kTiled<kPairs>) {
      tile.add_rows_by_gate(gates, packed_depth_, d_gates, deep);
    } else {
      tile.add_packed_by_gate(gates, d_gates, deep);
    }
  } else {
    tile.add_packed(first, d_gates, deep);
  }
  return tile;
}

template <Storage kStorage, bool kPairs>
void BackwardJob<kStorage, kPairs>::add_gates(const F (&sum)[4], float* row, Index panel, bool first) {
  const Index unit = panel * kLanes;
  for (int j = 0; j < 4; ++j) {
    float* to = row + j * plan_.units;
    const F before = first ? Simd::set(0) : load_upto<Storage::kFloat32>(to, unit, plan_.units);
    store_upto<Storage::kFloat32>(to, Simd::add(before, sum[j]), unit, plan_.units);
  }
}

template <Storage kStorage, bool kPairs>
[[gnu::noinline]] void BackwardJob<kStorage, kPairs>::add_sums(const float* sums, float* row, Index panel,
                                                               bool first) {
  F gates[4];
  const Index gate = last_.gate_of(panel);
  for (int j = 0; j < 4; ++j)
    gates[j] = Simd::load_n(sums + j * gate, lanes_before(panel * kLanes, plan_.units));
  add_gates(gates, row, panel, first);
}

template <Storage kStorage, bool kPairs>
void BackwardJob<kStorage, kPairs>::add_to_table(Index panel, Index begin, Index end) {
  for (Index step = begin; step < end; ++step) {
    for (Index row = 0; row < plan_.batch; ++row) {
      float* to = d_table_.at(panel, in_.ids[row * plan_.steps + time_of(step)]);
      const auto* from =
          reinterpret_cast<const typename Computed::Type*>(d_gates(panel, (step - begin) * rows_ + row));
      for (int j = 0; j < kWidth; j += kLanes) {
        Simd::store(to + j, Simd::add(Simd::load(to + j), Computed::load(from + j)));
      }
    }
  }
}

template <Storage kStorage, bool kPairs>
void BackwardJob<kStorage, kPairs>::add_to_row_bias(Index panel, Index begin, Index end) {
  for (Index row = 0; row < plan_.batch; ++row) {
    float* all = d_row_bias_.at(panel, row);
    Tile<false, 1> sum;
    sum.clear();
    if (end < plan_.steps) sum.load(0, all);
    for (Index step = 0; step < end - begin; ++step) {
      const auto* from = reinterpret_cast<const typename Computed::Type*>(d_gates(panel, step * rows_ + row));
      for (int j = 0; j < 4; ++j) sum.sum[0][j] = Simd::add(sum.sum[0][j], Computed::load(from + j * kLanes));
    }
    sum.store(0, all);
    if (begin == 0) add_sums(all, in_.d_row_bias + row * 4 * plan_.units, panel, true);
  }
}

template <Storage kStorage, bool kPairs>
void BackwardJob<kStorage, kPairs>::store_state_gradients(Range rows) {
  for (Index row = rows.begin; row < rows.end; ++row) {
    for (Index panel = 0; panel < plan_.unit_panels; ++panel) {
      const Index unit = panel * kLanes;
      if (in_.d_h0 != nullptr) {
        store_upto<kStorage>(static_cast<Type*>(in_.d_h0) + row * plan_.units, Simd::load(d_h(panel, row)),
                             unit, plan_.units);
      }
      if (in_.d_c0 != nullptr) {
        store_upto<kStorage>(static_cast<Type*>(in_.d_c0) + row * plan_.units, Simd::load(d_c(panel, row)),
                             unit, plan_.units);
      }
    }
  }
}

template <Storage kStorage, bool kPairs>
void BackwardJob<kStorage, kPairs>::pack_embeddings(int index) {
  const Range ids = share(plan_.vocabulary, index, plan_.threads);
  for (Index id = ids.begin; id < ids.end; ++id) {
    pack_column<Storage::kFloat32, false>(in_.embeddings + id * plan_.inputs, nullptr, plan_.inputs,
                                          embeddings_, plan_.vocabulary, 0, id);
  }
}

template <Storage kStorage, bool kPairs>
void BackwardJob<kStorage, kPairs>::table_gradients(int index) {
  const Range ids = share(plan_.vocabulary, index, plan_.threads);
  const Range mine = plan_.panels_shared(index);
  alignas(64) float sums[kRows * kWidth];
  for (Index panel = mine.begin; panel < mine.end; ++panel) {
    for (Index row = 0; row < plan_.inputs; row += kRows) {
      multiply_tile<false>(packed_at<false>(embeddings_, plan_.vocabulary, row, 0), d_table_.at(panel, 0),
                           plan_.vocabulary, last_.used(panel), sums);
      for (Index r = 0; r < smaller(kRows, plan_.inputs - row); ++r)
        add_sums(sums + r * kWidth, in_.d_kernel + (row + r) * 4 * plan_.units, panel, true);
    }
    if (in_.d_bias == nullptr) continue;
    Tile<false, 1> sum;
    sum.clear();
    for (Index id = 0; id < plan_.vocabulary; ++id) sum.add_to(0, d_table_.at(panel, id));
    sum.store(0, sums);
    add_sums(sums, in_.d_bias, panel, true);
  }
  if (in_.d_embeddings == nullptr) return;
  multiply<false>({d_table_.data, kWidth, plan_.vocabulary * kWidth, kWidth, plan_.unit_panels,
                   plan_.units % kLanes, last_.gate},
                  kernel_, nullptr, d_embeddings_, ids, {0, input_panels_});
  for (Index id = ids.begin; id < ids.end; ++id) {
    for (Index column = 0; column < plan_.inputs; column += kLanes) {
      store_upto<Storage::kFloat32>(in_.d_embeddings + id * plan_.inputs,
                                    Simd::load(d_embeddings_.at(column / kWidth, id) + column % kWidth),
                                    column, plan_.inputs);
    }
  }
}

}  // namespace cellerate::CELLERATE_TARGET
