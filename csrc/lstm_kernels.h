// The LSTM's kernels of one target.
#pragma once

#include "lstm_backward.h"
#include "lstm_forward.h"

namespace cellerate::CELLERATE_TARGET {

constexpr LstmKernels kLstmKernels{
    [](const LstmInputs& in) {
      return by_storage(in.storage, [&]<Storage kStorage>() {
        return Reserve<kStorage, kPairsOf<kStorage>>(in, nullptr).bytes;
      });
    },
    [](const LstmForward& in) {
      by_storage(in.storage, [&]<Storage kStorage>() { forward_as<kStorage, kPairsOf<kStorage>>(in); });
    },
    [](const LstmBackward& in) {
      by_storage(in.storage, [&]<Storage kStorage>() { backward_as<kStorage, kPairsOf<kStorage>>(in); });
    },
};

}  // namespace cellerate::CELLERATE_TARGET
