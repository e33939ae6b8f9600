// The operations of a program without matrix products: they copy or move the values of a block, or compute row by row.
#pragma once

#include <numeric>

#include "engine/functions.h"
#include "engine/program_lstm.h"
#include "products/normalise.h"

namespace cellerate::CELLERATE_TARGET {

// Softmax, or its logarithm, of n numbers.
inline void normalize(Normalizer normalizer, float* row, Index n) {
  float largest = row[0];
  for (Index i = 1; i < n; ++i) largest = row[i] > largest ? row[i] : largest;
  double sum = 0;
  const bool softmax = normalizer == Normalizer::kSoftmax;
  for (Index first = 0; first < n; first += kLanes) {
    const F x = Simd::sub(load_upto<Storage::kFloat32>(row, first, n), set(largest));
    float lanes[kLanes];
    Simd::store(lanes, exponential(x, 0.0f));
    const int count = lanes_before(first, n);
    for (int lane = 0; lane < count; ++lane) {
      sum += static_cast<double>(lanes[lane]);
      if (softmax) row[first + lane] = lanes[lane];
    }
  }
  const auto total = static_cast<float>(sum);
  const float logarithm = softmax ? 0 : logf(total);
  for (Index i = 0; i < n; ++i) row[i] = softmax ? row[i] / total : (row[i] - largest) - logarithm;
}

// A block of rows, as a thread of the team sees it.
struct Block {
  Team team;
  std::byte* memory;
  Range rows{0, 0};
  const int32_t* drawn = nullptr;  // the drawn ids of a step, in place of the first input
  // In a drawn step, the outputs of the last LSTM as words, and the index of this LSTM, or -1.
  StepRows words{};
  Index words_of = -1;
  // Whether the team must meet before the next node, because other threads may still use its memory.
  bool apart = false;
  long progress = 0;  // the steps so far of pairs of LSTMs that follow each other
};

class ProgramOperations {
 public:
  ProgramOperations(const PackedProgram& program, const ProgramRun& run)
      : layers_(program.layers), static_scales_(program.static_scales), run_(run), nodes_(run.nodes) {}

  const ValueShape& shape(Index n) const { return run_.call.shapes[n]; }
  const int32_t* inputs_of(Index n) const { return nodes_[n].inputs; }

  template <class T>
  T* values(const Block& block, Index n) const {
    const ValuePlace& place = run_.places[n];
    const void* from = block.memory + place.offset;
    Index first = 0;
    if (place.input == 0 && block.drawn != nullptr) {
      from = block.drawn;
    } else if (place.input >= 0 || place.output >= 0) {
      from = place.input >= 0 ? run_.call.inputs[place.input] : run_.call.outputs[place.output];
      first = block.rows.begin * place.stride;
    }
    return static_cast<T*>(const_cast<void*>(from)) + first + place.column;
  }
  Frames frames(const Block& block, Index n, Index rows) const {
    const Index steps = shape(n).steps == 0 ? 1 : shape(n).steps;
    return {values<float>(block, n), rows, steps, shape(n).features, run_.places[n].stride};
  }

  bool is_state_of(Index state, Index n, bool cell) const {
    return nodes_[state].op == ProgramOp::kLstmState && nodes_[state].inputs[0] == n &&
           nodes_[state].cell == cell && run_.links[state].wanted;
  }
  // The first node that reads a state of an LSTM, or -1; the LSTM writes the state to the memory of this node.
  Index state_of(Index n, bool cell) const {
    for (Index state = n + 1; state < run_.count; ++state) {
      if (is_state_of(state, n, cell)) return state;
    }
    return -1;
  }

  // Copies the rows of an input, (B, T, F) or ids (B, T), into the order of a block, unless it is read in place.
  void take(const Block& block, Index n, Index count) {
    Index input = 0;
    for (Index before = 0; before < n; ++before) input += nodes_[before].op == ProgramOp::kInput;
    const Range rows = block.rows;
    const void* from = run_.call.inputs[input];
    const Index steps = shape(n).steps == 0 ? 1 : shape(n).steps;
    const Index row_size = row_of(run_.call.input_rows, input, steps * shape(n).features);
    const Range mine = block.team.share_of(count);
    if (nodes_[n].ids) {
      auto* to = values<int32_t>(block, n);
      for (Index row = mine.begin; row < mine.end; ++row) {
        const auto* ids = static_cast<const int32_t*>(from) + (rows.begin + row) * row_size;
        for (Index step = 0; step < steps; ++step) to[step * count + row] = ids[step];
      }
      return;
    }
    const Frames to = frames(block, n, count);
    for (Index row = mine.begin; row < mine.end; ++row) {
      const auto* x = static_cast<const float*>(from) + (rows.begin + row) * row_size;
      for (Index step = 0; step < steps; ++step)
        copy_floats(x + step * to.features, to.at(step, row), to.features);
    }
  }

  // Copies an output's rows to (B, T, F).
  void give(const Block& block, Index output) {
    const Index n = run_.outputs[output];
    const Frames from = frames(block, n, block.rows.size());
    const Index row_size = row_of(run_.call.output_rows, output, from.steps * from.features);
    const Range mine = block.team.share_of(block.rows.size());
    for (Index row = mine.begin; row < mine.end; ++row) {
      float* out = run_.call.outputs[output] + (block.rows.begin + row) * row_size;
      for (Index step = 0; step < from.steps; ++step)
        copy_floats(from.at(step, row), out + step * from.features, from.features);
    }
  }

  static Index row_of(const int64_t* rows, Index n, Index dense) { return rows == nullptr ? dense : rows[n]; }

  static void copy_floats(const float* from, float* to, Index count) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
  }

  void embed(const Block& block, Index n, Index rows) {
    const Frames to = frames(block, n, rows);
    const auto* ids = values<int32_t>(block, inputs_of(n)[0]);
    const Range mine = block.team.share_of(to.all());
    for (Index row = mine.begin; row < mine.end; ++row)
      copy_floats(layers_[n].factors + larger(ids[row], 0) * to.features, to.data + row * to.stride,
                  to.features);
  }

  void make_mask(const Block& block, Index n, Index rows) {
    auto* to = values<uint8_t>(block, n);
    const Index source = inputs_of(n)[0], steps = shape(n).steps;
    const Range mine = block.team.share_of(steps * rows);
    for (Index place = mine.begin; place < mine.end; ++place) {
      if (nodes_[n].op == ProgramOp::kIdsMask) {
        to[place] = values<int32_t>(block, source)[place] > static_cast<int32_t>(nodes_[n].number);
      } else if (nodes_[n].op == ProgramOp::kFlipMask) {
        to[place] = values<uint8_t>(block, source)[(steps - 1 - place / rows) * rows + place % rows];
      } else if (nodes_[n].op == ProgramOp::kAnyMask) {
        uint8_t any = 0;
        for (int32_t input = 0; input < nodes_[n].input_count; ++input)
          any |= values<uint8_t>(block, inputs_of(n)[input])[place];
        to[place] = any;
      } else {
        const Frames x = frames(block, source, rows);
        bool any = false;
        for (Index i = 0; i < x.features; ++i) any |= x.data[place * x.stride + i] != nodes_[n].number;
        to[place] = any;
      }
    }
  }

  void concatenate(const Block& block, Index n, Index rows) {
    const Frames to = frames(block, n, rows);
    const Range mine = block.team.share_of(to.all());
    Index column = 0, step = 0;
    for (int32_t input = 0; input < nodes_[n].input_count; ++input) {
      const Index part = inputs_of(n)[input];
      const Frames from = frames(block, part, rows);
      if (from.steps < to.steps) {  // joined along time
        const Range its = block.team.share_of(from.all());
        for (Index place = its.begin; place < its.end; ++place)
          copy_floats(from.data + place * from.stride, to.data + (step * rows + place) * to.stride,
                      to.features);
        step += from.steps;
        continue;
      }
      if (run_.links[part].owner != n) {
        for (Index row = mine.begin; row < mine.end; ++row)
          copy_floats(from.data + row * from.stride, to.data + row * to.stride + column, from.features);
      }
      column += from.features;
    }
  }

  // Copies the numbers in their order, as many at once as are neighbours in both values.
  void reshape(const Block& block, Index n, Index rows) {
    const Frames from = frames(block, inputs_of(n)[0], rows), to = frames(block, n, rows);
    const Index together = std::gcd(from.features, to.features);
    const Range mine = block.team.share_of(rows);
    for (Index row = mine.begin; row < mine.end; ++row) {
      for (Index i = 0; i < to.steps * to.features; i += together) {
        copy_floats(from.at(i / from.features, row) + i % from.features,
                    to.at(i / to.features, row) + i % to.features, together);
      }
    }
  }

  // Copies steps, or all features of each step in reverse order; padding becomes zeros.
  void move_steps(const Block& block, Index n, Index rows) {
    const Frames from = frames(block, inputs_of(n)[0], rows), to = frames(block, n, rows);
    const ProgramOp op = nodes_[n].op;
    const Index begin = run_.call.begins[n];
    const bool flips_features = op == ProgramOp::kFlip && nodes_[n].flips_features();
    const Range mine = block.team.share_of(to.all());
    for (Index place = mine.begin; place < mine.end; ++place) {
      Index step = place / rows;
      if (op == ProgramOp::kRepeatVector) step = 0;
      if (op == ProgramOp::kCrop) step += begin;
      if (op == ProgramOp::kPad) step -= begin;
      if (op == ProgramOp::kFlip && !flips_features) step = from.steps - 1 - step;
      float* out = to.data + place * to.stride;
      if (step < 0 || step >= from.steps) {
        std::memset(out, 0, static_cast<size_t>(to.features) * sizeof(float));
      } else if (flips_features) {
        const float* x = from.at(step, place % rows);
        for (Index i = 0; i < to.features; ++i) out[i] = x[to.features - 1 - i];
      } else {
        copy_floats(from.at(step, place % rows), out, to.features);
      }
    }
  }

  // Copies some entries along features or time.
  void take_entries(const Block& block, Index n, Index rows) {
    const Frames from = frames(block, inputs_of(n)[0], rows), to = frames(block, n, rows);
    const int64_t* taken = nodes_[n].taken.data();
    const bool of_features = run_.call.begins[n] != 0;
    const Index size = of_features ? from.features : from.steps;
    const auto entry = [&](Index i) { return taken[i] < 0 ? taken[i] + size : taken[i]; };
    const Range mine = block.team.share_of(to.all());
    for (Index place = mine.begin; place < mine.end; ++place) {
      float* out = to.data + place * to.stride;
      if (!of_features) {
        copy_floats(from.at(entry(place / rows), place % rows), out, to.features);
        continue;
      }
      const float* x = from.data + place * from.stride;
      for (Index i = 0; i < to.features; ++i) out[i] = x[entry(i)];
    }
  }

  void over_time(const Block& block, Index n, Index rows) {
    const Frames x = frames(block, inputs_of(n)[0], rows), to = frames(block, n, rows);
    const bool mean = nodes_[n].op == ProgramOp::kMeanOverTime;
    const auto* mask = mean && inputs_of(n)[1] >= 0 ? values<uint8_t>(block, inputs_of(n)[1]) : nullptr;
    const Range mine = block.team.share_of(rows);
    for (Index row = mine.begin; row < mine.end; ++row) {
      Index live = 0;
      for (Index step = 0; step < x.steps; ++step) live += mask == nullptr || mask[step * rows + row] != 0;
      for (Index i = 0; i < x.features; ++i) {
        double sum = 0;
        float most = x.at(0, row)[i];
        for (Index step = 0; step < x.steps; ++step) {
          const float each = x.at(step, row)[i];
          if (mask == nullptr || mask[step * rows + row] != 0) sum += static_cast<double>(each);
          most = each > most || each != each ? each : most;
        }
        to.at(0, row)[i] = mean ? static_cast<float>(sum / static_cast<double>(live)) : most;
      }
    }
  }

  // The operations that compute a matrix row by row.
  void each_row(const Block& block, Index n, Index rows) {
    const ProgramNode& node = nodes_[n];
    const Frames x = frames(block, node.inputs[0], rows), to = frames(block, n, rows);
    const Range mine = block.team.share_of(to.all());
    for (Index row = mine.begin; row < mine.end; ++row) {
      const float* from = x.data + row * x.stride;
      float* out = to.data + row * to.stride;
      if (node.op == ProgramOp::kLayerNorm) {
        normalise_row(from, layers_[n].factors, layers_[n].bias, node.number, to.features, out);
        continue;
      }
      if (node.op == ProgramOp::kCumsum) {
        float sum = 0;
        for (Index i = 0; i < to.features; ++i) out[i] = sum += from[i];
        continue;
      }
      const bool chooses = node.op == ProgramOp::kMasked || node.op == ProgramOp::kWhere;
      const bool live = !chooses || values<uint8_t>(block, node.inputs[1])[row] != 0;
      for (Index first = 0; first < to.features; first += kLanes) {
        F value = load_upto<Storage::kFloat32>(from, first, to.features);
        if (node.op == ProgramOp::kMasked) {
          if (!live) value = set(0.0f);
        } else if (node.op == ProgramOp::kWhere) {
          const Frames other = frames(block, node.inputs[2], rows);
          if (!live)
            value = load_upto<Storage::kFloat32>(other.data + row * other.stride, first, to.features);
        } else if (node.op == ProgramOp::kActivation) {
          value = activate(node.activation, value);
        } else if (node.op == ProgramOp::kFunction) {
          value = function_of(node.function(), node.number, value);
        } else {
          value = Simd::fma(value, load_upto<Storage::kFloat32>(layers_[n].factors, first, to.features),
                            load_upto<Storage::kFloat32>(layers_[n].bias, first, to.features));
        }
        store_upto<Storage::kFloat32>(out, value, first, to.features);
      }
      if (node.normalizer != Normalizer::kNone) normalize(node.normalizer, out, to.features);
    }
  }

  static bool is_merge(ProgramOp op) {
    return (op >= ProgramOp::kAdd && op <= ProgramOp::kMinimum) || op == ProgramOp::kDivide ||
           op == ProgramOp::kCompare || op == ProgramOp::kChoose;
  }
  // Merges values two by two; broadcasts values of fewer steps or one feature.
  void merge(const Block& block, Index n, Index rows) {
    const ProgramNode& node = nodes_[n];
    const Frames to = frames(block, n, rows);
    const Range mine = block.team.share_of(to.all());
    for (Index place = mine.begin; place < mine.end; ++place) {
      float* out = to.data + place * to.stride;
      for (Index first = 0; first < to.features; first += kLanes) {
        const auto read = [&](int32_t input) {
          const Frames x = frames(block, node.inputs[input], rows);
          const Index its = x.steps == to.steps ? place
                            : x.steps == 1      ? place % rows
                                                : place / rows % x.steps * rows + place % rows;
          const float* from = x.data + its * x.stride;
          if (x.features < to.features) return set(*from);
          return load_upto<Storage::kFloat32>(from, first, to.features);
        };
        F value = read(0);
        if (node.op == ProgramOp::kChoose) {
          value = chosen(value, read(1), read(2));
        } else {
          for (int32_t input = 1; input < node.input_count; ++input) value = merged(node, value, read(input));
        }
        if (node.op == ProgramOp::kAverage)
          value = Simd::div(value, set(static_cast<float>(node.input_count)));
        store_upto<Storage::kFloat32>(out, value, first, to.features);
      }
    }
  }

  // Lane by lane, because NaN must stay NaN.
  template <class Function>
  static F each_pair(F a, F b, Function function) {
    float x[kLanes], y[kLanes];
    Simd::store(x, a);
    Simd::store(y, b);
    for (int lane = 0; lane < kLanes; ++lane) x[lane] = function(x[lane], y[lane]);
    return Simd::load(x);
  }

  static F merged(const ProgramNode& node, F a, F b) {
    switch (node.op) {
      case ProgramOp::kCompare:
        return each_pair(a, b, [&](float x, float y) { return function_of(node.function(), y, x); });
      case ProgramOp::kSubtract:
        return Simd::sub(a, b);
      case ProgramOp::kMultiply:
        return Simd::mul(a, b);
      case ProgramOp::kDivide:
        return Simd::div(a, b);
      case ProgramOp::kMaximum:
        return each_pair(a, b, [](float x, float y) { return x > y || x != x ? x : y; });
      case ProgramOp::kMinimum:
        return each_pair(a, b, [](float x, float y) { return x < y || x != x ? x : y; });
      default:
        return Simd::add(a, b);
    }
  }

  static F chosen(F condition, F yes, F no) {
    float all[3][kLanes];
    Simd::store(all[0], condition);
    Simd::store(all[1], yes);
    Simd::store(all[2], no);
    for (int lane = 0; lane < kLanes; ++lane) all[1][lane] = all[0][lane] != 0 ? all[1][lane] : all[2][lane];
    return Simd::load(all[1]);
  }

  // The activation of a sum, or the cap of logits.
  static F finished(const ProgramNode& node, F x) {
    if (node.number > 0) {
      const F cap = set(node.number);
      return Simd::mul(hyperbolic_tangent(Simd::div(x, cap)), cap);
    }
    return activate(node.activation, x);
  }

 protected:
  const PackedLayer* layers_;
  const bool static_scales_;
  const ProgramRun& run_;
  const ProgramNode* nodes_;
};

}  // namespace cellerate::CELLERATE_TARGET
