#include "training/lookups.h"

#include <algorithm>

#include "training/step.h"

namespace cellerate {
namespace {

// Multiplying a whole table by the kernel pays if its rows are at most this share of a piece's positions.
constexpr double kTableShare = 0.5;
// Finding the distinct rows of pieces pays if they are at most this share of the positions. The share is smaller in
// bfloat16, where products of positions take half the time but products of distinct rows stay in float32.
constexpr double kRowsShare = 0.7, kNarrowRowsShare = 0.35;

int64_t times_read(const ProgramNode& node, size_t other) {
  return std::count(node.inputs, node.inputs + node.input_count, static_cast<int32_t>(other));
}

}  // namespace

void Lookup::turn_off() {
  whole_ = false;
  // Keep the memory for the next batch.
  if (distinct()) std::swap(pieces_, spare_);
  pieces_.clear();
}

void Lookup::take_distinct(const int32_t* ids, int64_t rows, int64_t steps, int64_t pieces,
                           int64_t vocabulary, double share) {
  found_.resize(static_cast<size_t>(vocabulary));
  spare_.resize(static_cast<size_t>(pieces));
  size_t all = 0;
  most_rows_ = 0;
  for (int64_t n = 0; n < pieces; ++n) {
    const PieceRows of = rows_of_piece(rows, pieces, n);
    auto& [known, places] = spare_[static_cast<size_t>(n)];
    known.clear();
    places.clear();
    for (int64_t at = of.first * steps; at < (of.first + of.count) * steps; ++at) {
      // found_ may still hold an index from an earlier piece. It is valid only if `known` has this id at the index.
      int32_t& place = found_[static_cast<size_t>(ids[at])];
      if (static_cast<size_t>(place) >= known.size() || known[static_cast<size_t>(place)] != ids[at]) {
        place = static_cast<int32_t>(known.size());
        known.push_back(ids[at]);
      }
      places.push_back(place);
    }
    all += known.size();
    most_rows_ = std::max(most_rows_, static_cast<int64_t>(known.size()));
  }
  if (static_cast<double>(all) <= share * static_cast<double>(rows * steps)) std::swap(pieces_, spare_);
}

const Lookup* TrainingProgram::lookup_of(int32_t lstm) const {
  const int32_t x = parts_[static_cast<size_t>(lstm)].moving.node;
  return x >= 0 && lookups_[static_cast<size_t>(x)].active() ? &lookups_[static_cast<size_t>(x)] : nullptr;
}

// Whether other nodes read the table of an embedding, too.
bool TrainingProgram::shares_table(size_t node) const {
  return std::count_if(nodes_.begin(), nodes_.end(),
                       [&](const ProgramNode& each) { return each.kernel == nodes_[node].kernel; }) > 1;
}

// Whether an LSTM reads a value only as its inputs, without dropout.
bool TrainingProgram::is_input_of(size_t lstm, size_t node, bool training) const {
  const ProgramNode& of = nodes_[lstm];
  return of.op == ProgramOp::kLstm && of.inputs[0] == static_cast<int32_t>(node) &&
         times_read(of, node) == 1 && (!training || rates_[lstm].inputs == 0);
}

// Whether check(reader) holds for all readers of a value; false without readers, or if the value is an output.
template <class Check>
bool TrainingProgram::all_readers(size_t node, const Check& check) const {
  bool found = false;
  for (size_t reader = node + 1; reader < nodes_.size(); ++reader) {
    if (times_read(nodes_[reader], node) == 0) continue;
    if (!check(reader)) return false;
    found = true;
  }
  return found && !is_output(node);
}

// Splits the inputs of an LSTM into parts if they are a repeated vector, a concatenation of features, or the sum of an
// embedding and vectors that are the same at all steps. Such a sum is split only if the embedding has a lookup.
InputParts TrainingProgram::parts_of(size_t lstm, const TrainingBatch& batch, bool training) const {
  const int32_t x = nodes_[lstm].inputs[0];
  const ProgramNode& of = nodes_[static_cast<size_t>(x)];
  const int64_t rows = nodes_[lstm].rows, steps = batch.shapes[x].positions();
  const InputParts whole{{x, 0, rows}, {}};
  const bool joins = of.op == ProgramOp::kConcatenate, repeats = of.op == ProgramOp::kRepeatVector;
  if (!joins && !repeats && of.op != ProgramOp::kAdd) return whole;
  const auto is_its_input = [&](size_t reader) {
    return is_input_of(reader, static_cast<size_t>(x), training);
  };
  if (!all_readers(static_cast<size_t>(x), is_its_input)) return whole;
  if (repeats) return {{-1, 0, 0}, {{of.inputs[0], 0, rows}}};
  InputParts found;
  int64_t first = 0;
  for (int32_t n = 0; n < of.input_count; ++n) {
    const int32_t input = of.inputs[n];
    const ProgramNode& part = nodes_[static_cast<size_t>(input)];
    const ValueShape& shape = batch.shapes[input];
    if (!joins && shape.features != rows) return whole;
    const int64_t begin = joins ? first : 0;
    if (part.op == ProgramOp::kRepeatVector) {
      found.still.push_back({part.inputs[0], begin, shape.features});
    } else if (!joins && shape.positions() < steps) {
      found.still.push_back({input, begin, shape.features});
    } else if (found.moving.node < 0 && (joins || part.op == ProgramOp::kEmbedding)) {
      found.moving = {input, begin, shape.features};
    } else {
      return whole;
    }
    if (shape.positions() != steps && (joins || shape.positions() > 1)) return whole;
    first += shape.features;
  }
  return found.still.empty() || (joins && first != rows) ? whole : found;
}

// Finds the values that are not needed, because LSTMs read their parts.
void TrainingProgram::find_skipped() {
  for (size_t n = nodes_.size(); n-- > 0;) {
    const ProgramOp op = nodes_[n].op;
    const bool repeats = op == ProgramOp::kRepeatVector;
    skipped_[n] = (repeats || op == ProgramOp::kConcatenate || op == ProgramOp::kAdd) &&
                  all_readers(n, [&](size_t reader) {
                    if (nodes_[reader].op != ProgramOp::kLstm) return repeats && skipped_[reader] != 0;
                    return parts_[reader].moving.node != nodes_[reader].inputs[0];
                  });
  }
}

// Splits the inputs of LSTMs into parts, and chooses the embeddings whose products are faster to look up.
void TrainingProgram::choose_lookups(const TrainingBatch& batch, int64_t pieces, bool training) {
  for (Lookup& lookup : lookups_) lookup.turn_off();
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n].op == ProgramOp::kLstm) parts_[n] = parts_of(n, batch, training);
  }
  find_skipped();
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n].op == ProgramOp::kEmbedding) choose_lookup(n, batch, pieces, training);
  }
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n].op != ProgramOp::kLstm || parts_[n].still.empty()) continue;
    const int32_t moving = parts_[n].moving.node;
    const bool adds = nodes_[static_cast<size_t>(nodes_[n].inputs[0])].op == ProgramOp::kAdd;
    // Without a lookup, splitting saves nothing: the product of the sum takes as long as the product of the part.
    if (adds && moving >= 0 && !lookups_[static_cast<size_t>(moving)].active())
      parts_[n] = {{nodes_[n].inputs[0], 0, nodes_[n].rows}, {}};
  }
  find_skipped();
}

void TrainingProgram::choose_lookup(size_t n, const TrainingBatch& batch, int64_t pieces, bool training) {
  bool narrow = false;
  const auto takes_it = [&](size_t lstm) {
    narrow |= storage_of(static_cast<int32_t>(lstm)) != Storage::kFloat32;
    return nodes_[lstm].op == ProgramOp::kLstm && parts_[lstm].moving.node == static_cast<int32_t>(n);
  };
  const bool only_lstms = all_readers(n, [&](size_t reader) {
    return skipped_[reader] != 0 ? all_readers(reader, takes_it)
                                 : is_input_of(reader, n, training) && takes_it(reader);
  });
  // rows_apart needs the gradients of the outputs, and sums them for one embedding only.
  if (!only_lstms || (rules_.rows_apart && shares_table(n))) return;
  const int64_t steps = batch.shapes[n].steps, most_rows = (batch.rows + pieces - 1) / pieces;
  if (kTableShare * static_cast<double>(most_rows * steps) >= static_cast<double>(nodes_[n].rows)) {
    lookups_[n].take_whole();
  } else if (!shares_table(n)) {
    lookups_[n].take_distinct(ids_of(batch, nodes_[n].inputs[0]), batch.rows, steps, pieces, nodes_[n].rows,
                              narrow ? kNarrowRowsShare : kRowsShare);
  }
}

}  // namespace cellerate
