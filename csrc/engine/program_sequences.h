// The operations of a program across steps, or along either axis of a value: windows, pooling, reductions and softmax.
//
// A value with three axes, (N, T, F), holds its N sequences one after the other, as N·T steps.
#pragma once

#include "engine/program_operations.h"

namespace cellerate::CELLERATE_TARGET {

class SequenceOperations : public ProgramOperations {
 public:
  using ProgramOperations::ProgramOperations;

  // Copies the steps of each window side by side.
  void gather_windows(const Block& block, Index n, Index rows) {
    const Windows windows(*this, n);
    const Frames x = frames(block, inputs_of(n)[0], rows), to = frames(block, n, rows);
    const Range mine = block.team.share_of(to.all());
    for (Index place = mine.begin; place < mine.end; ++place) {
      float* out = to.data + place * to.stride;
      for (Index tap = 0; tap < windows.size; ++tap, out += x.features) {
        const Index step = windows.step(place / rows, tap);
        if (step < 0) {
          for (Index i = 0; i < x.features; ++i) out[i] = 0;
        } else {
          copy_floats(x.at(step, place % rows), out, x.features);
        }
      }
    }
  }

  void pool(const Block& block, Index n, Index rows) {
    const Windows windows(*this, n);
    const Frames x = frames(block, inputs_of(n)[0], rows), to = frames(block, n, rows);
    const bool mean = nodes_[n].op == ProgramOp::kAveragePool;
    const Range mine = block.team.share_of(to.all());
    for (Index place = mine.begin; place < mine.end; ++place) {
      float* out = to.data + place * to.stride;
      for (Index first = 0; first < x.features; first += kAtOnce) {
        Reduced reduced(mean ? ProgramOp::kMean : ProgramOp::kMax, smaller(kAtOnce, x.features - first));
        for (Index tap = 0; tap < windows.size; ++tap) {
          const Index step = windows.step(place / rows, tap);
          if (step >= 0) reduced.add(x.at(step, place % rows) + first);
        }
        for (Index i = 0; i < reduced.count; ++i) out[first + i] = reduced.result(i);
      }
    }
  }

  // Sums, means and extremes along an axis.
  void reduce(const Block& block, Index n, Index rows) {
    const Frames x = frames(block, inputs_of(n)[0], rows), to = frames(block, n, rows);
    const Index sequences = sequences_of(inputs_of(n)[0]), steps = x.steps / sequences;
    const Range mine = block.team.share_of(rows);
    for (Index row = mine.begin; row < mine.end; ++row) {
      for (Index step = 0; along_features(n) && step < x.steps; ++step) {
        Reduced reduced(nodes_[n].op, 1);
        for (Index i = 0; i < x.features; ++i) reduced.add(x.at(step, row) + i);
        number(to, row, step) = reduced.result(0);
      }
      for (Index sequence = 0; !along_features(n) && sequence < sequences; ++sequence) {
        for (Index first = 0; first < x.features; first += kAtOnce) {
          Reduced reduced(nodes_[n].op, smaller(kAtOnce, x.features - first));
          for (Index step = 0; step < steps; ++step) reduced.add(x.at(sequence * steps + step, row) + first);
          for (Index i = 0; i < reduced.count; ++i)
            number(to, row, sequence * x.features + first + i) = reduced.result(i);
        }
      }
    }
  }

  // Softmax along an axis.
  void normalize_along(const Block& block, Index n, Index rows) {
    const Frames x = frames(block, inputs_of(n)[0], rows), to = frames(block, n, rows);
    const Index sequences = sequences_of(n), steps = x.steps / sequences;
    const Range mine = block.team.share_of(rows);
    for (Index row = mine.begin; row < mine.end; ++row) {
      for (Index step = 0; along_features(n) && step < x.steps; ++step) {
        copy_floats(x.at(step, row), to.at(step, row), x.features);
        normalize(Normalizer::kSoftmax, to.at(step, row), x.features);
      }
      for (Index sequence = 0; !along_features(n) && sequence < sequences; ++sequence) {
        for (Index first = 0; first < x.features; first += kLanes)
          normalize_steps(x, to, row, {sequence * steps, (sequence + 1) * steps}, first);
      }
    }
  }

  // Swaps two axes: the last two, or the two before the last.
  void transpose(const Block& block, Index n, Index rows) {
    const Frames from = frames(block, inputs_of(n)[0], rows), to = frames(block, n, rows);
    const bool features = along_features(n);
    const Index first = features ? to.features : to.steps / sequences_of(n),  // sizes in x
        second = from.steps / sequences_of(inputs_of(n)[0]);
    const Range mine = block.team.share_of(to.all());
    for (Index place = mine.begin; place < mine.end; ++place) {
      float* out = to.data + place * to.stride;
      const Index step = place / rows, row = place % rows;
      if (features) {
        const Index column = step % from.features, before = step / from.features * to.features;
        for (Index i = 0; i < to.features; ++i) out[i] = from.at(before + i, row)[column];
      } else {
        const Index within = step % (first * second), before = step - within;
        copy_floats(from.at(before + within % first * second + within / first, row), out, from.features);
      }
    }
  }

 protected:
  // The number of sequences in a row of a value.
  Index sequences_of(Index n) const { return shape(n).sequences == 0 ? 1 : shape(n).sequences; }
  // Number `place` of a row, counted over steps and features.
  static float& number(const Frames& of, Index row, Index place) {
    return of.at(place / of.features, row)[place % of.features];
  }

 private:
  static constexpr Index kAtOnce = 16;  // features

  bool along_features(Index n) const { return run_.call.begins[n] != 0; }

  // The steps in the windows of a node.
  struct Windows {
    Index size, strides, dilation, before, windows, steps;

    Windows(const SequenceOperations& of, Index n)
        : size(of.nodes_[n].whole[0]),
          strides(of.nodes_[n].whole[1]),
          dilation(of.nodes_[n].whole[2]),
          before(of.run_.call.begins[n]),
          windows(of.shape(n).steps / of.sequences_of(n)),
          steps(of.shape(of.inputs_of(n)[0]).steps / of.sequences_of(n)) {}
    // The step of the input at a tap of a window, or -1 in the padding.
    Index step(Index window, Index tap) const {
      const Index at = window % windows * strides + tap * dilation - before;
      return at < 0 || at >= steps ? -1 : window / windows * steps + at;
    }
  };

  // The sum or extreme of several numbers, for some adjacent features at once.
  struct Reduced {
    ProgramOp op;
    Index count, numbers = 0;
    double sums[kAtOnce] = {};
    float most[kAtOnce] = {};

    Reduced(ProgramOp how, Index features) : op(how), count(features) {}

    void add(const float* x) {
      if (op == ProgramOp::kSum || op == ProgramOp::kMean) {
        for (Index i = 0; i < count; ++i) sums[i] += static_cast<double>(x[i]);
      } else if (numbers == 0) {
        for (Index i = 0; i < count; ++i) most[i] = x[i];
      } else if (op == ProgramOp::kMax) {
        // Keeps NaN.
        for (Index i = 0; i < count; ++i) most[i] = x[i] > most[i] || x[i] != x[i] ? x[i] : most[i];
      } else {
        for (Index i = 0; i < count; ++i) most[i] = x[i] < most[i] || x[i] != x[i] ? x[i] : most[i];
      }
      ++numbers;
    }
    float result(Index i) const {
      if (op == ProgramOp::kSum) return static_cast<float>(sums[i]);
      if (op == ProgramOp::kMean) return static_cast<float>(sums[i] / static_cast<double>(numbers));
      return most[i];
    }
  };

  // Softmax over steps, for the features of one vector from `first` on.
  static void normalize_steps(const Frames& x, const Frames& to, Index row, Range steps, Index first) {
    const auto load = [&](const Frames& from, Index step) {
      return load_upto<Storage::kFloat32>(from.at(step, row), first, x.features);
    };
    const auto keep = [&](F value, Index step) {
      store_upto<Storage::kFloat32>(to.at(step, row), value, first, x.features);
    };
    F largest = load(x, steps.begin);
    for (Index step = steps.begin + 1; step < steps.end; ++step) largest = Simd::max(load(x, step), largest);
    double sums[kLanes] = {};
    for (Index step = steps.begin; step < steps.end; ++step) {
      float lanes[kLanes];
      Simd::store(lanes, exponential(Simd::sub(load(x, step), largest), 0.0f));
      for (int lane = 0; lane < kLanes; ++lane) sums[lane] += static_cast<double>(lanes[lane]);
      keep(Simd::load(lanes), step);
    }
    float total[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) total[lane] = static_cast<float>(sums[lane]);
    for (Index step = steps.begin; step < steps.end; ++step)
      keep(Simd::div(load(to, step), Simd::load(total)), step);
  }
};

}  // namespace cellerate::CELLERATE_TARGET
