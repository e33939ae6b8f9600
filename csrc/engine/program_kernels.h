// The kernels of program.h: blocks of rows through the graph.
//
// The numbers of a block lie in the order (step, row), so that the rows of one step, and those of several steps, are
// one matrix. The threads of a team divide its columns or its rows, and meet after every node.
#pragma once

#include "engine/program_attention.h"
#include "simd/alike.h"

namespace cellerate::CELLERATE_TARGET {

template <Precision kPrecision>
class ProgramJob : AttentionOperations {
  static constexpr int kEach = elements_of_word(kPrecision);
  static constexpr Index kRowsAtOnce = 96;  // of a dense layer whose inputs become words

 public:
  ProgramJob(const PackedProgram& program, const ProgramRun& run)
      : AttentionOperations(program, run),
        barrier_(run.members),
        halves_{Barrier(run.members / 2), Barrier(run.members - run.members / 2)} {}

  // The working memory of all teams; called first without memory, to learn how much is needed.
  void lay_out(Layout& memory) {
    size_t most = 0;
    for (int32_t n = 0; n < run_.count; ++n) {
      Layout sizes(nullptr);
      lay_out_node(n, run_.rows_of_block, sizes);
      most = sizes.bytes() > most ? sizes.bytes() : most;
    }
    scratch_ = (run_.bytes + 63) / 64 * 64;
    team_bytes_ = scratch_ + most;
    memory_ = memory.take<std::byte>(team_bytes_ * static_cast<size_t>(run_.teams));
  }

  void run(int index) {
    Block block{{index % run_.members, run_.members, &barrier_},
                memory_ + team_bytes_ * static_cast<size_t>(index / run_.members)};
    const Range mine = share(run_.call.batch, index / run_.members, run_.teams);
    for (Index first = mine.begin; first < mine.end; first += run_.rows_of_block) {
      run_block(block, {first, smaller(mine.end, first + run_.rows_of_block)}, index == 0);
    }
  }

 private:
  // Whether an LSTM runs beside its partner, and not before or after it.
  bool is_paired(Index n) const { return run_.members > 1 && run_.links[n].partner >= 0; }

  // What node n needs while it works on so many rows.
  void lay_out_node(Index n, Index rows, Layout& memory) {
    const ProgramNode& node = nodes_[n];
    if (run_.links[n].nothing) return;
    if (node.op == ProgramOp::kLstm) {
      lay_out_lstm(n, rows, memory);
      if (is_paired(n)) lay_out_lstm(run_.links[n].partner, rows, memory);
    } else if (node.op == ProgramOp::kDense) {
      DenseMemory(shape(n), rows, node.rows, memory);
    } else if (node.op == ProgramOp::kAttention) {
      lay_out_scores(n, memory);
    }
  }

  void lay_out_lstm(Index n, Index rows, Layout& memory) {
    const Index source = nodes_[n].inputs[0];
    LstmTask task;
    task.rows = rows;
    task.steps = shape(source).steps;
    task.ids = run_.links[source].looked_up ? &kAnyId : nullptr;
    task.x.stride = run_.places[source].stride;
    const Team team{0, 1, nullptr};
    LstmRun<kPrecision> work(layers_[n].lstm, task, team);
    work.lay_out(memory);
  }

  void run_block(Block& block, Range rows, bool first) {
    Index input = 0;
    for (int32_t n = 0; n < run_.count; ++n) {
      const bool is_input = nodes_[n].op == ProgramOp::kInput;
      if (is_input) ++input;
      const ValueLink& link = run_.links[n];
      const bool is_lstm = nodes_[n].op == ProgramOp::kLstm;
      if (link.nothing || link.looked_up || (!link.wanted && !is_lstm)) continue;
      if (is_lstm && is_paired(n)) {
        if (link.partner < n) continue;
        run_pair(block, n, rows.size());
      } else if (is_input) {
        take(block, n, run_.call.inputs[input - 1], rows);
      } else if (is_lstm) {
        run_lstm(block, n, rows.size());
      } else {
        run_node(block, n, rows.size());
      }
      block.team.meet();
      if (first && run_.clock != nullptr) run_.mark(run_.clock, n);
    }
    for (int32_t output = 0; output < run_.output_count; ++output)
      give(block, run_.outputs[output], run_.call.outputs[output], rows);
    // The next block overwrites the values.
    block.team.meet();
  }

  void run_node(const Block& block, Index n, Index rows) {
    const ProgramNode& node = nodes_[n];
    switch (node.op) {
      case ProgramOp::kEmbedding:
        return embed(block, n, rows);
      case ProgramOp::kIdsMask:
      case ProgramOp::kFeaturesMask:
      case ProgramOp::kFlipMask:
      case ProgramOp::kAnyMask:
        return make_mask(block, n, rows);
      case ProgramOp::kDense:
        return run_dense(block, n, rows);
      case ProgramOp::kConcatenate:
        return concatenate(block, n, rows);
      case ProgramOp::kReshape:
        return reshape(block, n, rows);
      case ProgramOp::kMeanOverTime:
      case ProgramOp::kMaxOverTime:
        return over_time(block, n, rows);
      case ProgramOp::kRepeatVector:
      case ProgramOp::kCrop:
      case ProgramOp::kFlip:
        return move_steps(block, n, rows);
      case ProgramOp::kAdd:
      case ProgramOp::kSubtract:
      case ProgramOp::kMultiply:
      case ProgramOp::kAverage:
      case ProgramOp::kMaximum:
      case ProgramOp::kMinimum:
      case ProgramOp::kDivide:
        return merge(block, n, rows);
      case ProgramOp::kWindows:
        return gather_windows(block, n, rows);
      case ProgramOp::kMaxPool:
      case ProgramOp::kAveragePool:
        return pool(block, n, rows);
      case ProgramOp::kSum:
      case ProgramOp::kMean:
      case ProgramOp::kMax:
      case ProgramOp::kMin:
        return reduce(block, n, rows);
      case ProgramOp::kSoftmax:
        return normalize_along(block, n, rows);
      case ProgramOp::kTranspose:
        return transpose(block, n, rows);
      case ProgramOp::kDot:
        return dot(block, n, rows);
      case ProgramOp::kAttention: {
        Layout memory(block.memory + scratch_);
        return attend(block, n, rows, lay_out_scores(n, memory));
      }
      default:
        return each_row(block, n, rows);
    }
  }

  void run_lstm(const Block& block, Index n, Index rows) {
    Layout memory(block.memory + scratch_);
    // So little that meeting after each step would cost more than it saves.
    const Index units = nodes_[n].columns;
    const bool alone = static_cast<double>(rows * units * units) * 4 < kWorthMeeting * kEach;
    const Team team = alone ? Team{0, 1, nullptr} : block.team;
    if (!alone || block.team.me == 0) run_lstm_on(block, team, n, rows, memory, nullptr, nullptr);
    block.team.meet();
    copy_states(block, n, rows);
  }

  // Runs two LSTMs beside each other, each on half of the threads.
  void run_pair(Block& block, Index n, Index rows) {
    const Index partner = run_.links[n].partner;
    const bool follows = inputs_of(partner)[0] == n;
    const int half = block.team.count / 2, second = block.team.me >= half ? 1 : 0;
    const Team team{block.team.me - second * half, second == 1 ? block.team.count - half : half,
                    &halves_[second]};
    Layout memory(block.memory + scratch_);
    if (second == 1) lay_out_lstm(n, run_.rows_of_block, memory);
    Progress* leads = follows && second == 0 ? &progress_ : nullptr;
    const Progress* after = follows && second == 1 ? &progress_ : nullptr;
    run_lstm_on(block, team, second == 1 ? partner : n, rows, memory, after, leads);
    if (follows) block.progress += static_cast<long>(shape(n).steps);
    block.team.meet();
    copy_states(block, n, rows);
    copy_states(block, partner, rows);
  }

  void run_lstm_on(const Block& block, const Team& team, Index n, Index rows, Layout& memory,
                   const Progress* follows, Progress* leads) {
    const ProgramNode& node = nodes_[n];
    LstmTask task;
    task.rows = rows;
    task.steps = shape(node.inputs[0]).steps;
    task.masked_output = node.masked_output;
    task.go_backwards = node.go_backwards;
    task.return_sequences = node.return_sequences;
    task.natural = run_.links[n].natural;
    task.follows = follows;
    task.leads = leads;
    task.base = block.progress;
    if (run_.links[node.inputs[0]].looked_up) {
      task.ids = values<int32_t>(block, inputs_of(node.inputs[0])[0]);
    } else {
      task.x = frames(block, node.inputs[0], rows);
    }
    if (node.inputs[1] >= 0) task.mask = values<uint8_t>(block, node.inputs[1]);
    Frames h0, c0;
    if (node.inputs[2] >= 0) {
      h0 = frames(block, node.inputs[2], rows);
      c0 = frames(block, node.inputs[3], rows);
      task.h0 = &h0;
      task.c0 = &c0;
    }
    if (run_.links[n].wanted) task.outputs = frames(block, n, rows);
    if (const Index h = state_of(n, false); h >= 0) task.h_T = frames(block, h, rows);
    if (const Index c = state_of(n, true); c >= 0) task.c_T = frames(block, c, rows);
    LstmRun<kPrecision> work(layers_[n].lstm, task, team);
    work.lay_out(memory);
    work.run();
  }

  bool is_state_of(Index state, Index n, bool cell) const {
    return nodes_[state].op == ProgramOp::kLstmState && nodes_[state].inputs[0] == n &&
           nodes_[state].cell == cell && run_.links[state].wanted;
  }
  // The first node that asks for a state of an LSTM, or -1; the LSTM writes it there.
  Index state_of(Index n, bool cell) const {
    for (Index state = n + 1; state < run_.count; ++state) {
      if (is_state_of(state, n, cell)) return state;
    }
    return -1;
  }
  // Gives the states of an LSTM to the other nodes that ask for them.
  void copy_states(const Block& block, Index n, Index rows) {
    const Range mine = block.team.share_of(rows);
    for (int which = 0; which < 2; ++which) {
      const bool cell = which == 1;
      const Index first = state_of(n, cell);
      for (Index state = first + 1; first >= 0 && state < run_.count; ++state) {
        if (!is_state_of(state, n, cell)) continue;
        const Frames from = frames(block, first, rows), to = frames(block, state, rows);
        for (Index row = mine.begin; row < mine.end; ++row)
          copy_floats(from.at(0, row), to.at(0, row), to.features);
      }
    }
  }

  // The memory of a dense layer: its inputs as words, some rows at a time.
  struct DenseMemory {
    Index chunk, row;
    float* words = nullptr;
    float* scales = nullptr;

    DenseMemory(const ValueShape& shape, Index rows, Index inputs, Layout& memory) {
      const Index all = rows * (shape.steps == 0 ? 1 : shape.steps);
      chunk = kPrecision == Precision::kFloat32 ? all : smaller(all, kRowsAtOnce);
      row = spread(ceil_div(round_up(inputs, kLanes), kEach));
      if (kPrecision == Precision::kFloat32) return;
      words = memory.take<float>(static_cast<size_t>(chunk * row));
      scales = memory.take<float>(static_cast<size_t>(chunk));
    }
  };

  void run_dense(const Block& block, Index n, Index rows) {
    const ProgramNode& node = nodes_[n];
    const PackedLayer& layer = layers_[n];
    const Frames x = frames(block, node.inputs[0], rows), to = frames(block, n, rows);
    Layout layout(block.memory + scratch_);
    const DenseMemory memory(shape(n), rows, node.rows, layout);
    const Range panels = block.team.share_of(layer.kernel.columns_panels);
    for (Index begin = 0; begin < x.all(); begin += memory.chunk) {
      const Index count = smaller(memory.chunk, x.all() - begin);
      StepRows left{x.data + begin * x.stride, x.stride, nullptr};
      if (memory.words != nullptr) {
        const Range mine = block.team.share_of(count);
        for (Index row = mine.begin; row < mine.end; ++row) {
          memory.scales[row] = row_to_words<kPrecision>(x.data + (begin + row) * x.stride, node.rows,
                                                        memory.words + row * memory.row);
        }
        left = {memory.words, memory.row, kPrecision == Precision::kInt8 ? memory.scales : nullptr};
        block.team.meet();
      }
      for_blocks({0, count}, panels, false, [&](auto tile, auto side, Index row, Index panel) {
        constexpr int kCount = decltype(tile)::value, kPanels = decltype(side)::value;
        Sums<kCount, kPanels> sums;
        for (int r = 0; r < kCount; ++r) {
          for (int j = 0; j < 4 * kPanels; ++j)
            sums[r][j] = Simd::load(layer.bias + panel * kWidth + j * kLanes);
        }
        add_product<kPrecision, kCount, kPanels>(left, row, layer.kernel, panel, sums);
        for (int r = 0; r < kCount; ++r) {
          float* out = to.data + (begin + row + r) * to.stride;
          for (int j = 0; j < 4 * kPanels; ++j) {
            const Index column = panel * kWidth + j * kLanes;
            if (column >= node.columns) break;
            store_upto<Storage::kFloat32>(out, finished(node, sums[r][j]), column, node.columns);
          }
        }
      });
      // The next chunk overwrites the words.
      if (memory.words != nullptr) block.team.meet();
    }
    if (node.normalizer == Normalizer::kNone) return;
    block.team.meet();
    const Range mine = block.team.share_of(to.all());
    for (Index row = mine.begin; row < mine.end; ++row)
      normalize(node.normalizer, to.data + row * to.stride, to.features);
  }

  // The activation of a sum, or a cap of logits.
  static F finished(const ProgramNode& node, F x) {
    if (node.number > 0) {
      const F cap = set(node.number);
      return Simd::mul(hyperbolic_tangent(Simd::div(x, cap)), cap);
    }
    return activate(node.activation, x);
  }

  static constexpr int32_t kAnyId = 0;
  // Multiplications of a step that take about ten times as long as it takes threads to meet.
  static constexpr double kWorthMeeting = 1e5;

  // Of the one team that has several threads, and of its halves.
  Barrier barrier_, halves_[2];
  Progress progress_;  // of the first of two layers that follow each other
  std::byte* memory_ = nullptr;
  size_t scratch_ = 0,
         team_bytes_ = 0;  // where the working memory of a node begins, and that of the next team
};

template <Precision kPrecision>
void run_program_as(const std::byte* packed, const ProgramRun& run) {
  if constexpr (kAlike<kPrecision>) {
    CELLERATE_ALIKE::kProgramKernels.run(packed, run);
  } else {
    ProgramJob<kPrecision> job(*reinterpret_cast<const PackedProgram*>(packed), run);
    const Workspace workspace([&](Layout& layout) { job.lay_out(layout); });
    run_on(run.teams * run.members, job, true);
  }
}

inline size_t pack_program(const ProgramGraph& graph, std::byte* memory) {
  const WithoutDenormals guard;
  return ProgramPacker(graph, memory).pack();
}

inline void run_program(const std::byte* packed, const ProgramRun& run) {
  const Precision precision = reinterpret_cast<const PackedProgram*>(packed)->precision;
  if (precision == Precision::kFloat32) return run_program_as<Precision::kFloat32>(packed, run);
  if (precision == Precision::kBfloat16) return run_program_as<Precision::kBfloat16>(packed, run);
  run_program_as<Precision::kInt8>(packed, run);
}

}  // namespace cellerate::CELLERATE_TARGET
