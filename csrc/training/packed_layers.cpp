// The weights of LSTMs, packed once for all pieces of a step.
#include "simd/dispatch.h"
#include "training/piece.h"

namespace cellerate {
namespace {

// Stands for any array where packing depends only on whether the array is null.
float present;

}  // namespace

PackedLayers::PackedLayers(const TrainingProgram& program, bool training, bool packs)
    : program_(program), training_(training) {
  for (size_t n = 0; packs && n < program.nodes_.size(); ++n) {
    if (program.nodes_[n].op != ProgramOp::kLstm) continue;
    for (const bool backward : {false, true}) {
      if (backward && (!training || program.differentiable_[n] == 0)) continue;
      const Part& part = parts_.emplace_back(Part{static_cast<int32_t>(n), backward, bytes_});
      bytes_ += pack_part(part, nullptr);
    }
  }
}

template <class Call>
Call PackedLayers::call_of(int32_t n) const {
  const ProgramNode& of = program_.nodes_[static_cast<size_t>(n)];
  const InputParts& parts = program_.parts_[static_cast<size_t>(n)];
  const Rates& rates = program_.rates_[static_cast<size_t>(n)];
  Call call;
  call.batch = call.steps = 1;
  call.inputs = parts.moving.rows;
  call.units = of.columns;
  call.storage = program_.storage_of(n);
  if (const Lookup* lookup = program_.lookup_of(n)) {
    const ProgramNode& table = program_.nodes_[static_cast<size_t>(parts.moving.node)];
    call.ids = reinterpret_cast<const int32_t*>(&present);
    call.embeddings = table.kernel;
    call.vocabulary = table.rows;
    call.packs_table = !lookup->distinct();
  }
  call.kernel = of.kernel + parts.moving.first * 4 * of.columns;
  call.recurrent_kernel = of.recurrent_kernel;
  call.bias = parts.still.empty() ? of.bias : nullptr;
  if (of.inputs[2] >= 0) call.h0 = call.c0 = &present;
  // An evaluation drops nothing, and the weights lie in another order then.
  if (training_ && rates.state > 0) {
    call.recurrent_dropout = &present;
    if (rates.inputs > 0) call.dropout = &present;
  }
  return call;
}

size_t PackedLayers::pack_part(const Part& part, std::byte* memory) const {
  const LstmKernels& kernels = *program_.target_->lstm;
  if (!part.backward) return kernels.pack_forward(call_of<LstmForward>(part.node), memory);
  auto call = call_of<LstmBackward>(part.node);
  const int32_t x = program_.parts_[static_cast<size_t>(part.node)].moving.node;
  const bool looks_up = program_.lookup_of(part.node) != nullptr && !program_.rules_.rows_apart;
  if (looks_up) {
    if (program_.use_of(static_cast<size_t>(x), 0) != nullptr) call.d_embeddings = &present;
  } else if (x >= 0 && program_.differentiable_[static_cast<size_t>(x)] != 0) {
    call.d_x = &present;
  }
  return kernels.pack_backward(call, memory);
}

void PackedLayers::pack(int64_t n) const {
  const Part& part = parts_[static_cast<size_t>(n)];
  pack_part(part, memory_ + part.offset);
}

const std::byte* PackedLayers::at(int32_t node, bool backward) const {
  for (const Part& part : parts_) {
    if (part.node == node && part.backward == backward) return memory_ + part.offset;
  }
  return nullptr;
}

}  // namespace cellerate
