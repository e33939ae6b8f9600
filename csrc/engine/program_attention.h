// Attention and dot products in a program, in float32.
#pragma once

#include "engine/program_sequences.h"

namespace cellerate::CELLERATE_TARGET {

class AttentionOperations : public SequenceOperations {
 public:
  using SequenceOperations::SequenceOperations;

  // The scores of a query, for each thread of a team.
  float* lay_out_scores(Index n, Layout& memory) const {
    return memory.take<float>(run_.members * scores_of(n));
  }

  void attend(const Block& block, Index n, Index rows, float* memory) {
    const ProgramNode& node = nodes_[n];
    const Frames query = frames(block, node.inputs[0], rows), key = frames(block, node.inputs[1], rows),
                 value = frames(block, node.inputs[2], rows), to = frames(block, n, rows);
    const Index heads = node.whole[0], width = key.features / heads, wide = value.features / heads;
    float* scores = memory + block.team.me * scores_of(n);
    const Range mine = block.team.share_of(to.all());
    for (Index place = mine.begin; place < mine.end; ++place) {
      const Index step = place / rows, row = place % rows;
      const Counted counted(*this, block, n, step, row, rows);
      for (Index head = 0; head < heads; ++head) {
        const float* from = query.data + place * query.stride + head * width;
        for (Index s = 0; s < counted.keys; ++s) {
          const float* with = key.at(s, row) + head * width;
          const float score =
              node.number * (layers_[n].factors == nullptr ? product(from, with, width)
                                                           : additive(layers_[n].factors, from, with, width));
          // Like Keras, subtract 1e9 from masked scores: if all keys are masked, all get the same weight.
          scores[s] = counted(s) ? score : score - 1e9f;
        }
        normalize(Normalizer::kSoftmax, scores, counted.keys);
        if (node.whole[2] != 0) {
          for (Index s = 0; s < counted.keys; ++s) scores[s] = counted(s) ? scores[s] : 0;
        }
        float* out = to.data + place * to.stride + head * wide;
        for (Index first = 0; first < wide; first += kLanes) {
          F sum = set(0.0f);
          for (Index s = 0; s < counted.keys; ++s) {
            const F x = load_upto<Storage::kFloat32>(value.at(s, row) + head * wide, first, wide);
            sum = Simd::fma(set(scores[s]), x, sum);
          }
          store_upto<Storage::kFloat32>(out, sum, first, wide);
        }
      }
    }
  }

  // The dot product of two values over an axis of each.
  void dot(const Block& block, Index n, Index rows) {
    const Side left(*this, block, n, 0, rows), right(*this, block, n, 1, rows);
    const Frames to = frames(block, n, rows);
    const Range mine = block.team.share_of(rows * left.count);
    for (Index place = mine.begin; place < mine.end; ++place) {
      const Index row = place % rows, m = place / rows;
      for (Index other = 0; other < right.count; ++other) {
        float& out = number(to, row, m * right.count + other);
        if (left.over_features && right.over_features) {
          out = product(left.x.at(m, row), right.x.at(other, row), left.summed);
          continue;
        }
        float sum = 0;
        for (Index k = 0; k < left.summed; ++k) sum += left.at(m, k, row) * right.at(other, k, row);
        out = sum;
      }
    }
  }

 private:
  Index scores_of(Index n) const { return round_up(shape(inputs_of(n)[1]).steps, kLanes); }

  static float product(const float* a, const float* b, Index count) {
    F sum = set(0.0f);
    for (Index first = 0; first < count; first += kLanes)
      sum = Simd::fma(load_upto<Storage::kFloat32>(a, first, count),
                      load_upto<Storage::kFloat32>(b, first, count), sum);
    return total(sum);
  }
  static float additive(const float* weights, const float* a, const float* b, Index count) {
    F sum = set(0.0f);
    for (Index first = 0; first < count; first += kLanes) {
      const F x = Simd::add(load_upto<Storage::kFloat32>(a, first, count),
                            load_upto<Storage::kFloat32>(b, first, count));
      sum = Simd::fma(load_upto<Storage::kFloat32>(weights, first, count), hyperbolic_tangent(x), sum);
    }
    return total(sum);
  }
  static float total(F sum) {
    float lanes[kLanes], all = 0;
    Simd::store(lanes, sum);
    for (int lane = 0; lane < kLanes; ++lane) all += lanes[lane];
    return all;
  }

  // Tells which keys are not masked for a query.
  struct Counted {
    const uint8_t* mask = nullptr;
    bool any = true, causal;
    Index step, row, rows, keys;

    Counted(const AttentionOperations& of, const Block& block, Index n, Index at, Index of_row, Index all)
        : causal(of.nodes_[n].whole[1] != 0), step(at), row(of_row), rows(all) {
      const int32_t* inputs = of.inputs_of(n);
      keys = of.shape(inputs[1]).steps;
      if (inputs[3] >= 0) mask = of.values<uint8_t>(block, inputs[3]);
      if (inputs[4] >= 0) any = of.values<uint8_t>(block, inputs[4])[step * rows + row] != 0;
      // Without masks the first key is never masked, so the weights of keys after the query are exactly 0.
      if (causal && inputs[3] < 0 && inputs[4] < 0) keys = smaller(keys, step + 1);
    }
    bool operator()(Index s) const {
      return any && (!causal || s <= step) && (mask == nullptr || mask[s * rows + row] != 0);
    }
  };

  // One of the two values of a dot product, and the axis of its sum.
  struct Side {
    Frames x;
    bool over_features;
    Index count, summed;

    Side(const AttentionOperations& of, const Block& block, Index n, Index input, Index rows)
        : x(of.frames(block, of.inputs_of(n)[input], rows)),
          over_features(of.shape(of.inputs_of(n)[input]).steps == 0 || of.nodes_[n].whole[input] == 2),
          count(over_features ? x.steps : x.features),
          summed(over_features ? x.features : x.steps) {}
    float at(Index place, Index k, Index row) const {
      return over_features ? x.at(place, row)[k] : x.at(k, row)[place];
    }
  };
};

}  // namespace cellerate::CELLERATE_TARGET
