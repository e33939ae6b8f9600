// Which target runs the floats of this one. A target may name another one that multiplies them in the same way
// (CELLERATE_ALIKE), so that the same instructions are not compiled twice.
#pragma once

#include "cells/lstm.h"
#include "engine/program.h"
#include "products/dense.h"
#include "products/pack.h"

namespace cellerate {
struct Target;  // target.h
}

#ifdef CELLERATE_ALIKE
namespace cellerate::CELLERATE_ALIKE {
extern const Target kTarget;
extern const ProgramKernels kProgramKernels;
extern const LstmKernels kLstmKernels;
extern const DenseKernels kDenseKernels;
}  // namespace cellerate::CELLERATE_ALIKE
namespace cellerate::CELLERATE_TARGET {
// bfloat16 without products of its own is widened and multiplied as floats.
template <Precision kPrecision>
constexpr bool kAlike =
    kPrecision == Precision::kFloat32 || (kPrecision == Precision::kBfloat16 && !Simd::kBfloat16Products);
}  // namespace cellerate::CELLERATE_TARGET
#else
#define CELLERATE_ALIKE CELLERATE_TARGET
namespace cellerate::CELLERATE_TARGET {
extern const Target kTarget;
extern const ProgramKernels kProgramKernels;
extern const LstmKernels kLstmKernels;
extern const DenseKernels kDenseKernels;
template <Precision>
constexpr bool kAlike = false;
}  // namespace cellerate::CELLERATE_TARGET
#endif

namespace cellerate::CELLERATE_TARGET {
// Whether the other target runs layers with this storage.
template <Storage kStorage>
constexpr bool kLayerAlike = kAlike<Precision::kBfloat16>;
template <>
inline constexpr bool kLayerAlike<Storage::kFloat32> = kAlike<Precision::kFloat32>;

// Gives own.operator()<kStorage>() for the storage of a layer, or alike() where the other target runs it.
template <class Own, class Alike>
auto own_or_alike(Storage storage, const Own& own, const Alike& alike) {
  return by_storage(storage, [&]<Storage kStorage>() {
    if constexpr (kLayerAlike<kStorage>) {
      return alike();
    } else {
      return own.template operator()<kStorage>();
    }
  });
}
}  // namespace cellerate::CELLERATE_TARGET
