// An LSTM layer of a piece, forward and backward, in the type that it computes in.
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

// Where a layer keeps some numbers, from `first` on: in bfloat16, if there is a place for that.
void* place_of(float* wide, uint16_t* narrow, int64_t first = 0) {
  if (narrow != nullptr) return narrow + first;
  return wide + first;
}

}  // namespace

// The numbers as the layer takes them: themselves, or narrowed into `to`.
const void* Piece::narrowed(const float* from, uint16_t* to, int64_t count) const {
  if (from == nullptr || to == nullptr) return from;
  program_.target_->training->narrow(from, to, count);
  return to;
}

// Moves what the layer has given to where it is wanted, if it is not there.
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
  const int32_t x = source(n);
  call.batch = rows_;
  call.steps = shape(x).steps;
  call.inputs = of.rows;
  call.units = of.columns;
  call.storage = program_.storage_of(n);
  call.activation = of.activation;
  call.recurrent_activation = of.recurrent_activation;
  call.masked_output = of.masked_output;
  call.go_backwards = of.go_backwards;
  call.return_sequences = of.return_sequences;
  if (program_.lookups_[x].active()) {
    const Table rows = table(x);
    call.ids = rows.places;
    call.embeddings = rows.rows;
    call.vocabulary = rows.count;
    call.packs_table = !program_.lookups_[x].distinct();
  } else if (narrow.inputs != nullptr) {
    call.x = narrow.inputs;
  } else {
    call.x = memory.dropped != nullptr ? memory.dropped : value(x);
  }
  if (narrow.first != nullptr) {
    call.h0 = narrow.first;
    call.c0 = narrow.first + rows_ * of.columns;
  } else if (of.inputs[2] >= 0) {
    call.h0 = value(source(n, 2));
    call.c0 = value(source(n, 3));
  }
  call.kernel = of.kernel;
  call.recurrent_kernel = of.recurrent_kernel;
  call.bias = of.bias;
  call.mask = mask(source(n, 1));
  call.dropout = memory.dropped != nullptr ? nullptr : memory.input_factors;
  call.recurrent_dropout = memory.state_factors;
}

void Piece::forward_lstm(int32_t n) {
  const NodeMemory& to = layout_.nodes[n];
  const NarrowLstm& narrow = to.narrow;
  const int32_t x = source(n);
  const int64_t states = rows_ * node(n).columns;
  draw_factors(n);
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

// Hands the gradient of a state to its LSTM.
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
  const int32_t x = source(n);
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
  call.d_kernel = gradient_of(n, 0);
  call.d_recurrent_kernel = gradient_of(n, 1);
  call.d_bias = gradient_of(n, 2);
  const Lookup& lookup = program_.lookups_[x];
  if (lookup.active() && !program_.rules_.rows_apart) {
    float* const rows = lookup.distinct() ? layout_.nodes[x].gradient : gradient_of(x, 0);
    // Another LSTM may have given its part.
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
  if (memory.d_first == nullptr) return;
  widened(spare.first, memory.d_first, 2 * states);
  for (int state = 0; state < 2; ++state)
    give(source(n, 2 + state), [&](float* to) { copy(memory.d_first + state * states, to, states); });
}

}  // namespace cellerate
