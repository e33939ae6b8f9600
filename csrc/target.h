// Instantiates the kernels for one target. A target_*.cpp sets CELLERATE_TARGET, includes its vectors, then this.
#pragma once

#include "dense.h"
#include "lstm_backward.h"
#include "lstm_forward.h"
#include "peak.h"
#include "step_model.h"

// A target whose fma rounds twice uses the steps of another target, so that their numbers are the same everywhere.
#ifdef CELLERATE_STEPS
namespace cellerate::CELLERATE_STEPS {
extern const StepKernels kStepKernels;
}
#else
#define CELLERATE_STEPS CELLERATE_TARGET
#include "step_kernels.h"
#endif

namespace cellerate::CELLERATE_TARGET {

constexpr bool kPairsOfBfloat16 = Simd::kBfloat16Products;

size_t reserve_bytes(const LstmInputs& in) {
  if (in.storage == Storage::kFloat32) return Reserve<Storage::kFloat32, false>(in, nullptr).bytes;
  return Reserve<Storage::kBfloat16, kPairsOfBfloat16>(in, nullptr).bytes;
}

void forward(const LstmForward& in) {
  if (in.storage == Storage::kFloat32) return forward_as<Storage::kFloat32, false>(in);
  forward_as<Storage::kBfloat16, kPairsOfBfloat16>(in);
}

void backward(const LstmBackward& in) {
  if (in.storage == Storage::kFloat32) return backward_as<Storage::kFloat32, false>(in);
  backward_as<Storage::kBfloat16, kPairsOfBfloat16>(in);
}

void dense_forward(const DenseForward& in) {
  if (in.storage == Storage::kFloat32) return run_dense<DenseForwardJob<Storage::kFloat32, false>>(in);
  run_dense<DenseForwardJob<Storage::kBfloat16, kPairsOfBfloat16>>(in);
}

void dense_backward(const DenseBackward& in) {
  if (in.storage == Storage::kFloat32) return run_dense<DenseBackwardJob<Storage::kFloat32, false>>(in);
  run_dense<DenseBackwardJob<Storage::kBfloat16, kPairsOfBfloat16>>(in);
}

double peak(bool bfloat16, int threads, int64_t rounds) {
  if (bfloat16) return peak_operations<kPairsOfBfloat16>(threads, rounds);
  return peak_operations<false>(threads, rounds);
}

extern const Target kTarget{CELLERATE_STRING(CELLERATE_TARGET),
                            kPairsOfBfloat16,
                            reserve_bytes,
                            forward,
                            backward,
                            dense_forward,
                            dense_backward,
                            peak,
                            &CELLERATE_STEPS::kStepKernels};

}  // namespace cellerate::CELLERATE_TARGET
