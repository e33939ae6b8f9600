// An LSTM layer of a piece, forward and backward, in float32 or bfloat16.
#include "simd/dispatch.h"
#include "training/piece.h"

namespace cellerate {

NarrowLstm::NarrowLstm(Layout& layout, const NarrowSizes& sizes) {
  const auto take = [&](int64_t count) {
    return count == 0 ? nullptr : layout.take<uint16_t>(static_cast<size_t>(count));
  };
  inputs = take(sizes.inputs);
  outputs = take(sizes.outputs);
  last = take(sizes.states);
  first = take(sizes.first);
}

void Piece::draw_factors(int32_t n) {
  const NodeMemory& to = layout_.nodes[n];
  const Rates& rates = program_.rates_[n];
  const TrainingKernels& kernels = *program_.target_->training;
  const int64_t inputs = rows_ * node(n).rows, states = rows_ * node(n).columns;
  for (int gate = 0; gate < (to.input_factors == nullptr ? 0 : to.dropped != nullptr ? 1 : 4); ++gate) {
    kernels.draw_factors(draws(n, node(n).rows, 1 + static_cast<uint64_t>(gate)), rates.inputs,
                         to.input_factors + gate * inputs, inputs);
  }
  for (int gate = 0; gate < (to.state_factors == nullptr ? 0 : 4); ++gate) {
    kernels.draw_factors(draws(n, node(n).columns, 5 + static_cast<uint64_t>(gate)), rates.state,
                         to.state_factors + gate * states, states);
  }
}

namespace {

// The array that the LSTM reads or writes, from index `first` on: `narrow`, or `wide` if `narrow` is null.
void* place_of(float* wide, uint16_t* narrow, int64_t first = 0) {
  if (narrow != nullptr) return narrow + first;
  return wide + first;
}

}  // namespace

// The numbers in the type of the LSTM: rounded to bfloat16 in `to`, or `from` itself if `to` is null.
const void* Piece::narrowed(const float* from, uint16_t* to, int64_t count) const {
  if (from == nullptr || to == nullptr) return from;
  program_.target_->training->narrow(from, to, count);
  return to;
}

// Widens bfloat16 results to float32; does nothing if `from` is null.
void Piece::widened(const uint16_t* from, float* to, int64_t count) const {
  if (from != nullptr) program_.target_->training->widen(from, to, count);
}

void Piece::multiply_inputs(int32_t n, const float* from, float* to) const {
  const int64_t inputs = node(n).rows, steps = shape(source(n)).steps;
  for (int64_t place = 0; place < rows_ * steps; ++place) {
    program_.target_->training->multiply(from + place * inputs,
                                         layout_.nodes[n].input_factors + place / steps * inputs,
                                         to + place * inputs, inputs);
  }
}

void Piece::fill_lstm(int32_t n, LstmInputs& call) const {
  const ProgramNode& of = node(n);
  const NodeMemory& memory = layout_.nodes[n];
  const NarrowLstm& narrow = memory.narrow;
  const InputParts& parts = program_.parts_[n];
  const int32_t x = parts.moving.node;
  call.batch = rows_;
  call.steps = shape(source(n)).steps;
  call.inputs = parts.moving.rows;
  call.units = of.columns;
  call.storage = program_.storage_of(n);
  call.activation = of.activation;
  call.recurrent_activation = of.recurrent_activation;
  call.masked_output = of.masked_output;
  call.go_backwards = of.go_backwards;
  call.return_sequences = of.return_sequences;
  if (const Lookup* lookup = program_.lookup_of(n)) {
    const Table rows = table(x);
    call.ids = rows.places;
    call.embeddings = rows.rows;
    call.vocabulary = rows.count;
    call.packs_table = !lookup->distinct();
  } else if (narrow.inputs != nullptr) {
    call.x = narrow.inputs;
  } else if (x >= 0) {
    call.x = memory.dropped != nullptr ? memory.dropped : value(x);
  }
  if (narrow.first != nullptr) {
    call.h0 = narrow.first;
    call.c0 = narrow.first + rows_ * of.columns;
  } else if (of.inputs[2] >= 0) {
    call.h0 = value(source(n, 2));
    call.c0 = value(source(n, 3));
  }
  call.kernel = of.kernel + parts.moving.first * 4 * of.columns;
  call.recurrent_kernel = of.recurrent_kernel;
  call.bias = parts.still.empty() ? of.bias : nullptr;
  call.row_bias = memory.row_bias;
  call.mask = mask(source(n, 1));
  call.dropout = memory.dropped != nullptr ? nullptr : memory.input_factors;
  call.recurrent_dropout = memory.state_factors;
}

void Piece::forward_lstm(int32_t n) {
  const NodeMemory& to = layout_.nodes[n];
  const NarrowLstm& narrow = to.narrow;
  const int32_t x = program_.parts_[n].moving.node;
  const int64_t states = rows_ * node(n).columns;
  draw_factors(n);
  if (to.row_bias != nullptr) multiply_still(n);
  if (to.dropped != nullptr) multiply_inputs(n, value(x), to.dropped);
  if (narrow.inputs != nullptr)
    narrowed(to.dropped != nullptr ? to.dropped : value(x), narrow.inputs, size(x));
  if (narrow.first != nullptr) {
    narrowed(value(source(n, 2)), narrow.first, states);
    narrowed(value(source(n, 3)), narrow.first + states, states);
  }
  LstmForward call;
  fill_lstm(n, call);
  call.outputs = place_of(to.value, narrow.outputs);
  call.h_T = place_of(to.states, narrow.last);
  call.c_T = place_of(to.states, narrow.last, states);
  call.reserve = to.reserve;
  call.packed = packed_.forward(n);
  program_.target_->lstm->forward(call);
  widened(narrow.outputs, to.value, size(n));
  widened(narrow.last, to.states, 2 * states);
}

// Computes row_bias: the products of the inputs that are the same at all steps, plus the bias.
void Piece::multiply_still(int32_t n) const {
  const ProgramNode& of = node(n);
  float* const to = layout_.nodes[n].row_bias;
  std::vector<float> more;
  for (const InputParts::Part& part : program_.parts_[n].still) {
    const bool first = &part == program_.parts_[n].still.data();
    DenseForward call;
    call.rows = rows_;
    call.inputs = part.rows;
    call.outputs = 4 * of.columns;
    call.x = value(part.node);
    call.kernel = of.kernel + part.first * call.outputs;
    call.bias = first ? of.bias : nullptr;
    if (!first) more.resize(static_cast<size_t>(rows_ * call.outputs));
    call.y = first ? to : more.data();
    program_.target_->dense->forward(call);
    if (!first) program_.target_->training->add(more.data(), to, rows_ * call.outputs);
  }
}

// The gradients of the inputs that are the same at all steps, and of their rows of the kernel, from d_row_bias.
void Piece::still_back(int32_t n) {
  const ProgramNode& of = node(n);
  const InputParts& parts = program_.parts_[n];
  const bool sums_up = node(source(n)).op == ProgramOp::kAdd;
  std::vector<float> more;
  for (const InputParts::Part& part : parts.still) {
    const bool first = &part == parts.still.data();
    DenseBackward call;
    call.rows = rows_;
    call.inputs = part.rows;
    call.outputs = 4 * of.columns;
    call.x = value(part.node);
    call.kernel = of.kernel + part.first * call.outputs;
    call.d_y = layout_.nodes[n].d_row_bias;
    call.d_bias = first ? gradient_of(n, 2) : nullptr;
    float* const d_kernel = gradient_of(n, 0) + part.first * call.outputs;
    // The parts of a sum share the rows of the kernel, so their gradients are added.
    const bool adds = sums_up && (!first || parts.moving.node >= 0);
    if (adds) more.resize(static_cast<size_t>(part.rows * call.outputs));
    call.d_kernel = adds ? more.data() : d_kernel;
    const auto write = [&](float* to) {
      call.d_x = to;
      program_.target_->dense->backward(call);
    };
    wants_gradient(part.node) ? give(part.node, write) : write(nullptr);
    if (adds) program_.target_->training->add(more.data(), d_kernel, part.rows * call.outputs);
  }
}

// Gives the gradient of a state node to its LSTM.
void Piece::state_back(int32_t n) {
  const bool cell = node(n).cell;
  float* to = layout_.nodes[source(n)].d_states + (cell ? size(n) : 0);
  bool& reached = reached_states_[source(n)][cell];
  if (reached) {
    program_.target_->training->add(layout_.nodes[n].gradient, to, size(n));
  } else {
    copy(layout_.nodes[n].gradient, to, size(n));
  }
  reached = true;
}

void Piece::backward_lstm(int32_t n) {
  const NodeMemory& memory = layout_.nodes[n];
  const NarrowLstm spare = memory.narrow.outputs != nullptr ? layout_.narrow : NarrowLstm();
  const InputParts& parts = program_.parts_[n];
  const int32_t x = parts.moving.node;
  LstmBackward call;
  fill_lstm(n, call);
  call.outputs = place_of(memory.value, memory.narrow.outputs);
  call.reserve = memory.reserve;
  call.packed = packed_.backward(n);
  const int64_t states = rows_ * node(n).columns;
  const auto& [h, c] = reached_states_[n];
  if (reached_[n] != 0) call.d_outputs = narrowed(memory.gradient, spare.outputs, size(n));
  if (h) call.d_h_T = narrowed(memory.d_states, spare.last, states);
  uint16_t* const last_c = spare.last == nullptr ? nullptr : spare.last + states;
  if (c) call.d_c_T = narrowed(memory.d_states + states, last_c, states);
  if (memory.d_first != nullptr) {
    call.d_h0 = place_of(memory.d_first, spare.first);
    call.d_c0 = place_of(memory.d_first, spare.first, states);
  }
  call.d_kernel = gradient_of(n, 0) + parts.moving.first * 4 * node(n).columns;
  call.d_recurrent_kernel = gradient_of(n, 1);
  call.d_bias = parts.still.empty() ? gradient_of(n, 2) : nullptr;
  call.d_row_bias = memory.d_row_bias;
  const Lookup* const lookup = program_.lookup_of(n);
  if (lookup != nullptr && !program_.rules_.rows_apart) {
    float* const rows = lookup->distinct() ? layout_.nodes[x].gradient : gradient_of(x, 0);
    // Another LSTM may already have written its gradient there.
    const bool adds = rows != nullptr && reached_[x] != 0;
    call.d_embeddings = adds ? layout_.spare : rows;
    program_.target_->lstm->backward(call);
    if (adds) program_.target_->training->add(layout_.spare, rows, call.vocabulary * node(x).columns);
    reached_[x] = 1;
  } else if (!wants_gradient(x)) {
    program_.target_->lstm->backward(call);
  } else {
    give(x, [&](float* to) {
      call.d_x = place_of(to, spare.inputs);
      program_.target_->lstm->backward(call);
      widened(spare.inputs, to, size(x));
      if (memory.dropped != nullptr) multiply_inputs(n, to, to);
    });
  }
  if (!parts.still.empty()) still_back(n);
  if (memory.d_first == nullptr) return;
  widened(spare.first, memory.d_first, 2 * states);
  for (int state = 0; state < 2; ++state)
    give(source(n, 2 + state), [&](float* to) { copy(memory.d_first + state * states, to, states); });
}

}  // namespace cellerate
