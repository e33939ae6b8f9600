// A target, which is an instruction set: the structure of its name and algorithms, and below, the definition for each.
//
// A target_*.cpp sets CELLERATE_TARGET, then includes its vectors and this header, which else has only the structure.
#pragma once

#include "cells/lstm.h"
#include "products/dense.h"
#include "types.h"

namespace cellerate {

struct ProgramKernels;   // program.h
struct TrainingKernels;  // training/kernels.h

struct Target {
  const char* name;
  bool bfloat16_products;  // whether bfloat16 storage is multiplied as bfloat16; otherwise as float
  // Runs `rounds` rounds of multiply-adds on each thread, and returns the number of operations; see peak.h.
  double (*peak)(Precision precision, int threads, int64_t rounds);
  // Reads `count` floats `rounds` times, each thread its own part.
  void (*read)(const float* from, int64_t count, int threads, int64_t rounds);

  const LstmKernels* lstm;
  const DenseKernels* dense;
  const ProgramKernels* programs;
  const ProgramKernels* same_programs;  // programs whose numbers are the same on every target
  const TrainingKernels* training;
};

}  // namespace cellerate

#ifdef CELLERATE_TARGET

#define CELLERATE_STRING_OF(name) #name
#define CELLERATE_STRING(name) CELLERATE_STRING_OF(name)

#include "engine/program.h"
#include "simd/peak.h"
#include "training/kernels.h"

#ifdef CELLERATE_PROGRAMS
namespace cellerate::CELLERATE_PROGRAMS {
extern const ProgramKernels kProgramKernels;
}
#else
#define CELLERATE_PROGRAMS CELLERATE_TARGET
#include "engine/program_kernels.h"
#endif

// A target whose fma rounds twice also has the programs of another target, whose numbers are the same everywhere.
#ifdef CELLERATE_SAME_PROGRAMS
namespace cellerate::CELLERATE_SAME_PROGRAMS {
extern const ProgramKernels kProgramKernels;
}
#else
#define CELLERATE_SAME_PROGRAMS CELLERATE_PROGRAMS
#endif

// A target that differs from another one only in products of bytes uses its layers, which do not multiply bytes.
#ifdef CELLERATE_LAYERS
namespace cellerate::CELLERATE_LAYERS {
extern const LstmKernels kLstmKernels;
extern const DenseKernels kDenseKernels;
}  // namespace cellerate::CELLERATE_LAYERS
#else
#define CELLERATE_LAYERS CELLERATE_TARGET
#include "cells/lstm_backward.h"
#include "cells/lstm_forward.h"
#include "products/dense_kernels.h"

namespace cellerate::CELLERATE_TARGET {
extern const LstmKernels kLstmKernels{reserve_bytes, forward, backward, pack_forward, pack_backward};
extern const DenseKernels kDenseKernels{forward, backward};
}  // namespace cellerate::CELLERATE_TARGET
#endif

// Besides its layers, a training step computes only in float32, so such a target uses the other one's code here too.
#ifdef CELLERATE_TRAINING
namespace cellerate::CELLERATE_TRAINING {
extern const TrainingKernels kTrainingKernels;
}
#else
#define CELLERATE_TRAINING CELLERATE_TARGET
#include "training/updates.h"

namespace cellerate::CELLERATE_TARGET {
extern const TrainingKernels kTrainingKernels{
    .derivative_needs_input = derivative_needs_input,
    .activate = activate_all,
    .activate_back = activate_back,
    .function = function_all,
    .function_back = function_back,
    .compare = compare,
    .normalize = normalize_all,
    .normalize_back = normalize_back,
    .layer_norm = layer_norm,
    .layer_norm_back = layer_norm_back,
    .drop = drop,
    .draw_factors = draw_factors,
    .draw_normals = draw_normals,
    .add = add_all,
    .raise = raise_all,
    .raise_back = raise_back,
    .additive_scores = additive_scores,
    .additive_back = additive_back,
    .add_squares = add_squares,
    .add_sizes = add_sizes,
    .multiply = multiply_all,
    .narrow = narrow_all,
    .widen = widen_all,
    .loss = loss_of,
    .measure = measure_of,
    .sum = sum_gradients,
    .update = update_rows,
};
}  // namespace cellerate::CELLERATE_TARGET
#endif

namespace cellerate::CELLERATE_TARGET {

extern const Target kTarget{
    .name = CELLERATE_STRING(CELLERATE_TARGET),
    .bfloat16_products = Simd::kBfloat16Products,
    .peak = peak,
    .read = read_memory,
    .lstm = &CELLERATE_LAYERS::kLstmKernels,
    .dense = &CELLERATE_LAYERS::kDenseKernels,
    .programs = &CELLERATE_PROGRAMS::kProgramKernels,
    .same_programs = &CELLERATE_SAME_PROGRAMS::kProgramKernels,
    .training = &CELLERATE_TRAINING::kTrainingKernels,
};

}  // namespace cellerate::CELLERATE_TARGET

#endif  // CELLERATE_TARGET
