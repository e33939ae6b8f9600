// The kernels of program.h: they take blocks of rows through the graph.
//
// The numbers of a block are in the order (step, row), so that the rows of one step, or of several steps, are one
// matrix. The threads of a team divide its columns or its rows, and meet between two nodes.
#pragma once

#include <new>

#include "engine/exponentials.h"
#include "engine/program_attention.h"
#include "simd/alike.h"

namespace cellerate::CELLERATE_TARGET {

template <Precision kPrecision>
class ProgramJob : AttentionOperations {
  static constexpr int kEach = elements_of_word(kPrecision);
  static constexpr Index kRowsAtOnce = 96;  // that a dense layer converts to words

 public:
  ProgramJob(const PackedProgram& program, const ProgramRun& run)
      : AttentionOperations(program, run),
        barrier_(run.members),
        halves_{Barrier(run.members / 2), Barrier(run.members - run.members / 2)} {}

  // Takes the working memory of all teams. The first call is without memory, and only counts the bytes.
  void lay_out(Layout& memory) {
    if (team_bytes_ == 0) {
      Layout drawn(nullptr);
      if (draws()) DrawnStep(*this, run_.rows_of_block, drawn);
      size_t most = 0;
      for (int32_t place = 0; place < run_.order_count; ++place) {
        Layout sizes(nullptr);
        lay_out_node(run_.order[place], run_.rows_of_block, sizes);
        most = sizes.bytes() > most ? sizes.bytes() : most;
      }
      values_ = (run_.bytes + 63) / 64 * 64;
      scratch_ = values_ + drawn.bytes();
      team_bytes_ = scratch_ + most;
    }
    memory_ = memory.take<std::byte>(team_bytes_ * static_cast<size_t>(run_.teams));
  }

  void run(int index) {
    Block block{{index % run_.members, run_.members, &barrier_},
                memory_ + team_bytes_ * static_cast<size_t>(index / run_.members)};
    const Range mine = share(run_.call.batch, index / run_.members, run_.teams);
    for (Index first = mine.begin; first < mine.end; first += run_.rows_of_block) {
      block.rows = {first, smaller(mine.end, first + run_.rows_of_block)};
      draws() ? draw(block) : run_block(block, index == 0);
      // The next block overwrites the values.
      block.apart = true;
    }
  }

 private:
  // Whether an LSTM runs beside its partner, and not before or after it.
  bool is_paired(Index n) const {
    return run_.members > 1 && runs_beside(nodes_, run_.links, run_.call.shapes, static_cast<int32_t>(n));
  }

  // Takes the working memory of node n for `rows` rows.
  void lay_out_node(Index n, Index rows, Layout& memory) {
    const ProgramNode& node = nodes_[n];
    if (node.op == ProgramOp::kLstm) {
      if (draws()) return;
      lay_out_lstm(n, rows, memory);
      if (is_paired(n)) lay_out_lstm(run_.links[n].partner, rows, memory);
    } else if (node.op == ProgramOp::kDense) {
      if (kPrecision != Precision::kFloat32)
        RowWords<kPrecision>().lay_out(dense_rows(n, rows), node.rows, {0, run_.members, nullptr}, memory);
    } else if (node.op == ProgramOp::kAttention) {
      lay_out_scores(n, memory);
    }
  }
  Index dense_rows(Index n, Index rows) const {
    return smaller(rows * (shape(n).steps == 0 ? 1 : shape(n).steps), kRowsAtOnce);
  }

  void lay_out_lstm(Index n, Index rows, Layout& memory) const {
    const Index source = nodes_[n].inputs[0];
    LstmTask task;
    task.rows = rows;
    task.steps = shape(source).steps;
    task.ids = run_.links[source].looked_up ? &kAnyId : nullptr;
    task.x.stride = run_.places[source].stride;
    LstmRun<kPrecision>(layers_[n].lstm, task, {0, run_.members, nullptr}).lay_out(memory);
  }

  // Lets the threads of a team meet, if the next node needs it.
  static void join(Block& block) {
    if (block.apart) block.team.meet();
    block.apart = false;
  }

  void run_block(Block& block, bool first) {
    run_nodes(block, first, nullptr);
    if (run_.call.first_output == FirstOutput::kScored) score(block);
    for (int32_t output = 0; output < run_.output_count; ++output) {
      if (output == 0 && run_.call.first_output != FirstOutput::kGiven) continue;
      if (run_.places[run_.outputs[output]].output == output) continue;
      join(block);
      give(block, output);
    }
  }

  // Runs all nodes. In a drawn step the LSTMs continue from their states.
  void run_nodes(Block& block, bool first, LstmRun<kPrecision>* lstms) {
    const Index rows = block.rows.size();
    bool after_input = false;
    for (int32_t place = 0; place < run_.order_count; ++place) {
      const Index n = run_.order[place];
      const ProgramOp op = nodes_[n].op;
      if (!after_input || op != ProgramOp::kInput) join(block);
      after_input = op == ProgramOp::kInput;
      if (op == ProgramOp::kLstm && lstms != nullptr) {
        lstms->step(given(block, inputs_of(n)[0]));
        block.words = (lstms++)->words();
        block.words_of = n;
      } else if (op == ProgramOp::kLstm && is_paired(n)) {
        if (run_.links[n].partner < n) continue;
        run_pair(block, n, rows);
      } else if (op == ProgramOp::kLstm) {
        run_lstm(block, n, rows);
      } else {
        run_node(block, n, rows);
        block.apart = true;
      }
      if (run_.clock == nullptr) continue;
      join(block);
      if (first) run_.mark(run_.clock, static_cast<int32_t>(n));
    }
  }

  bool draws() const { return run_.call.first_output == FirstOutput::kDrawn; }

  // The memory for drawing ids, for each thread of a team: an id for each row, and LSTMs that run step by step.
  struct DrawnStep {
    int32_t* ids;
    LstmRun<kPrecision>* lstms;

    DrawnStep(const ProgramJob& job, Index rows, Layout& memory) {
      ids = memory.take<int32_t>(rows);
      lstms = memory.take<LstmRun<kPrecision>>(job.lstms() * job.run_.members);
      if (lstms != nullptr) return;
      for (int32_t n = 0; n < job.run_.count; ++n) {
        if (job.nodes_[n].op == ProgramOp::kLstm) job.lay_out_lstm(n, rows, memory);
      }
    }
  };
  // Whether the outputs of an LSTM in a chain are read only as words.
  bool is_only_multiplied(Index n) const {
    const auto reads = [&](const ProgramNode& node) {
      return node.op != ProgramOp::kLstmState && node.input_count > 0 && node.inputs[0] == n;
    };
    Index reader = n + 1;
    while (reader < run_.count && !reads(nodes_[reader])) ++reader;
    return reader < run_.count &&
           (nodes_[reader].op == ProgramOp::kLstm || nodes_[reader].op == ProgramOp::kDense);
  }
  Index lstms() const {
    Index count = 0;
    for (int32_t n = 0; n < run_.count; ++n) count += nodes_[n].op == ProgramOp::kLstm;
    return count;
  }

  // Draws an id for each row of a block and reads it, again and again, until all sequences have ended.
  void draw(Block& block) {
    Generation& generation = *run_.call.text->generation;
    const Index rows = block.rows.size(), node = run_.outputs[0], count = shape(node).features;
    const bool single = run_.call.batch == 1;
    const Range mine = block.team.share_of(rows);
    join(block);
    Layout memory(block.memory + values_);
    const DrawnStep drawn(*this, rows, memory);
    int32_t id = -1;
    block.drawn = single ? &id : drawn.ids;
    LstmRun<kPrecision>* const lstms_of_mine = drawn.lstms + lstms() * block.team.me;
    LstmRun<kPrecision>* next = lstms_of_mine;
    for (int32_t n = 0; n < run_.count; ++n) {
      if (nodes_[n].op != ProgramOp::kLstm) continue;
      LstmTask task = task_of(block, n, rows);
      // Drawn ids are never masked.
      if (single && task.masked_id < 0) task.mask_ids = nullptr;
      if (is_only_multiplied(n)) task.outputs = {};
      new (next) LstmRun<kPrecision>(layers_[n].lstm, task, block.team);
      next->lay_out(memory);
      (next++)->begin();
    }
    block.apart = true;
    float* const given = run_.call.outputs[0] + block.rows.begin * count;
    Frames logits{given, rows, 1, count, count};
    for (Index step = 0;; ++step) {
      if (single) {
        // Each thread draws the id itself. The logits do not change until all threads have met again.
        id = generation.next(block.team.me, logits.data);
        if (id < 0) break;
        // Alternates between two places: other threads may still read one while this thread writes the next.
        if (block.team.me == 0) cancelled_[step % 2] = generation.cancelled();
        if (node == run_.order[0]) block.apart = true;
      } else {
        for (Index row = mine.begin; row < mine.end; ++row)
          drawn.ids[row] = generation.next(block.rows.begin + row, logits.at(0, row));
        block.team.meet();
        bool any = false;
        for (Index row = 0; row < rows; ++row) any |= drawn.ids[row] >= 0;
        if (!any) break;
      }
      run_nodes(block, false, lstms_of_mine);
      join(block);
      logits = frames(block, node, rows);
      if (single && cancelled_[step % 2]) break;
    }
    for (const LstmRun<kPrecision>* each = lstms_of_mine; each < next; ++each) each->end();
    for (Index row = mine.begin; row < mine.end && logits.data != given; ++row) {
      if (generation.drawn(block.rows.begin + row) > 0)
        copy_floats(logits.at(0, row), given + row * count, count);
    }
    block.drawn = nullptr;
    block.words_of = -1;
  }

  // Writes the log probability of the id after each step.
  void score(Block& block) {
    const TextCall& text = *run_.call.text;
    const Index rows = block.rows.size();
    const Frames logits = frames(block, run_.outputs[0], rows);
    join(block);
    const Range mine = block.team.share_of(text.scored * rows);
    for (Index place = mine.begin; place < mine.end; ++place) {
      const Index step = place / rows, row = block.rows.begin + place % rows;
      const int32_t id = text.next[row * text.next_row + step];
      text.log_probabilities[row * text.log_probabilities_row + step] =
          id < 0 ? 0.0f
                 : static_cast<float>(
                       log_softmax(kExponentials, logits.data + place * logits.stride, logits.features, id));
    }
  }

  void run_node(const Block& block, Index n, Index rows) {
    const ProgramNode& node = nodes_[n];
    switch (node.op) {
      case ProgramOp::kInput:
        return take(block, n, rows);
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
      case ProgramOp::kPad:
        return move_steps(block, n, rows);
      case ProgramOp::kTake:
        return take_entries(block, n, rows);
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
        return is_merge(node.op) ? merge(block, n, rows) : each_row(block, n, rows);
    }
  }

  void run_lstm(Block& block, Index n, Index rows) {
    Layout memory(block.memory + scratch_);
    // With so little work, meeting after each step would cost more than it saves.
    const Index units = nodes_[n].columns;
    const bool alone =
        block.team.count > 1 && static_cast<double>(rows * units * units) * 4 < kWorthMeeting * kEach;
    const Team team = alone ? Team{0, 1, nullptr} : block.team;
    if (!alone || block.team.me == 0) run_lstm_on(task_of(block, n, rows), team, n, memory);
    if (alone) block.team.meet();
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
    LstmTask task = task_of(block, second == 1 ? partner : n, rows);
    if (follows && second == 1) task.follows = &progress_;
    if (follows && second == 0) task.leads = &progress_;
    run_lstm_on(task, team, second == 1 ? partner : n, memory);
    if (follows) block.progress += static_cast<long>(shape(n).steps);
    block.team.meet();
    copy_states(block, n, rows);
    copy_states(block, partner, rows);
  }

  void run_lstm_on(const LstmTask& task, const Team& team, Index n, Layout& memory) {
    LstmRun<kPrecision> work(layers_[n].lstm, task, team);
    work.lay_out(memory);
    work.run();
  }

  LstmTask task_of(const Block& block, Index n, Index rows) const {
    const ProgramNode& node = nodes_[n];
    const auto ids_of = [&](Index source) { return values<int32_t>(block, inputs_of(source)[0]); };
    LstmTask task;
    task.rows = rows;
    task.steps = shape(node.inputs[0]).steps;
    task.masked_output = node.masked_output;
    task.go_backwards = node.go_backwards;
    task.return_sequences = shape(n).steps > 0;
    task.natural = run_.links[n].natural;
    task.base = block.progress;
    task.states = gives_states(node.inputs[0]);
    if (run_.links[node.inputs[0]].looked_up) {
      task.ids = ids_of(node.inputs[0]);
    } else {
      task.x = frames(block, node.inputs[0], rows);
    }
    if (const Index mask = node.inputs[1]; mask >= 0 && run_.links[mask].looked_up) {
      task.mask_ids = ids_of(mask);
      task.masked_id = static_cast<int32_t>(nodes_[mask].number);
    } else if (mask >= 0) {
      task.mask = values<uint8_t>(block, mask);
    }
    if (node.inputs[2] >= 0) {
      task.h0 = frames(block, node.inputs[2], rows);
      task.c0 = frames(block, node.inputs[3], rows);
    }
    if (run_.links[n].wanted) task.outputs = frames(block, n, rows);
    if (const Index h = state_of(n, false); h >= 0) task.h_T = frames(block, h, rows);
    if (const Index c = state_of(n, true); c >= 0) task.c_T = frames(block, c, rows);
    return task;
  }

  // Copies the states of an LSTM to all further nodes that read them.
  void copy_states(Block& block, Index n, Index rows) {
    const Range mine = block.team.share_of(rows);
    for (int which = 0; which < 2; ++which) {
      const bool cell = which == 1;
      const Index first = state_of(n, cell);
      for (Index state = first + 1; first >= 0 && state < run_.count; ++state) {
        if (!is_state_of(state, n, cell)) continue;
        block.apart = true;
        const Frames from = frames(block, first, rows), to = frames(block, state, rows);
        for (Index row = mine.begin; row < mine.end; ++row)
          copy_floats(from.at(0, row), to.at(0, row), to.features);
      }
    }
  }

  // The outputs of node n as words, if n is the LSTM that has just run a drawn step; else null.
  static const StepRows* given(const Block& block, Index n) {
    return block.words_of == n ? &block.words : nullptr;
  }
  // Whether the words of a value have a scale of 1/127 in int8.
  bool gives_states(Index n) const {
    return static_scales_ && nodes_[n].op == ProgramOp::kLstm && layers_[n].lstm.bounded;
  }

  void run_dense(const Block& block, Index n, Index rows) {
    const ProgramNode& node = nodes_[n];
    const PackedLayer& layer = layers_[n];
    const Frames x = frames(block, node.inputs[0], rows), to = frames(block, n, rows);
    constexpr bool kFloats = kPrecision == Precision::kFloat32;
    const StepRows* as_words = given(block, node.inputs[0]);
    const bool as_they_are = kFloats || as_words != nullptr;
    const Index chunk = as_they_are ? x.all() : dense_rows(n, rows);
    Layout layout(block.memory + scratch_);
    RowWords<kPrecision> words;
    const bool linear = node.activation == Activation::kLinear && node.number == 0;
    const bool states = gives_states(node.inputs[0]);
    if (!as_they_are) words.lay_out(chunk, node.rows, block.team, layout);
    const Range panels = block.team.share_of(layer.kernel.columns_panels);
    for (Index begin = 0; begin < x.all(); begin += chunk) {
      const Index count = smaller(chunk, x.all() - begin);
      const float* first = x.data + begin * x.stride;
      if (!as_they_are && begin > 0) block.team.meet();
      const auto row_at = [&](Index row) { return first + row * x.stride; };
      const StepRows left = as_words != nullptr ? *as_words
                            : kFloats           ? StepRows{first, x.stride, nullptr}
                                                : words.make(block.team, count, states, row_at);
      const auto give_column = [&](Index row, Index column, F sum) {
        const F y = linear ? sum : finished(node, sum);
        store_upto<Storage::kFloat32>(to.data + (begin + row) * to.stride, y, column, node.columns);
      };
      for_sums<kPrecision>(left, count, layer.kernel, layer.bias, node.columns, panels, give_column);
    }
    if (node.normalizer == Normalizer::kNone) return;
    block.team.meet();
    const Range mine = block.team.share_of(to.all());
    for (Index row = mine.begin; row < mine.end; ++row)
      normalize(node.normalizer, to.data + row * to.stride, to.features);
  }

  static constexpr int32_t kAnyId = 0;
  // The multiplications of a step that take a few times as long as a meeting of the threads. Even a layer of 128 units
  // in float32 gains, because each thread keeps its half of the weights in its own cache.
  static constexpr double kWorthMeeting = 2.5e4;

  // For the one team that has several threads, and for its halves.
  Barrier barrier_, halves_[2];
  Progress progress_;  // of the first of two layers that follow each other
  bool cancelled_[2] = {};
  std::byte* memory_ = nullptr;
  // The offsets of the memory after DrawnStep, of the working memory of a node, and of the next team.
  size_t values_ = 0, scratch_ = 0, team_bytes_ = 0;
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

// Whether no value of a call has several steps.
inline bool is_one_step(const ProgramRun& run) {
  for (int32_t n = 0; n < run.count; ++n) {
    if (run.call.shapes[n].steps > 1) return false;
  }
  return true;
}

inline void run_program(const std::byte* packed, const ProgramRun& run) {
  const Precision precision = reinterpret_cast<const PackedProgram*>(packed)->precision;
  if constexpr (Simd::kTiles) {
    // Vectors multiply a few rows of bytes, and a step of theirs is not worth the time that preparing tiles takes.
    const bool few = precision == Precision::kInt8 && run.rows_of_block < kFewRows && is_one_step(run);
    if (few || precision == Precision::kInt4) return CELLERATE_ALIKE::kProgramKernels.run(packed, run);
  }
  if (precision == Precision::kFloat32) return run_program_as<Precision::kFloat32>(packed, run);
  if (precision == Precision::kBfloat16)
    return run_program_as<kWidens ? Precision::kFloat32 : Precision::kBfloat16>(packed, run);
  run_program_as<Precision::kInt8>(packed, run);
}

extern const ProgramKernels kProgramKernels{pack_program, run_program, kExponentials,
                                            Simd::kTiles ? kBlockRows : 0};

}  // namespace cellerate::CELLERATE_TARGET
