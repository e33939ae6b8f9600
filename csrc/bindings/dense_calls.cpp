// The calls of the dense layer: checks their arrays and fills the structures of dense.h.
#include "bindings/calls.h"
#include "products/dense.h"
#include "simd/dispatch.h"

namespace cellerate {
namespace {

constexpr const char* kForwardArguments[] = {"x", "kernel", "bias"};
constexpr const char* kForwardResults[] = {"y"};
constexpr const char* kBackwardArguments[] = {"x", "kernel", "bias", "d_y"};
constexpr const char* kBackwardResults[] = {"d_x", "d_kernel", "d_bias"};

void fill_inputs(Checker& arrays, DenseInputs& in) {
  in.x = arrays.need<void>("x", "M K");
  in.kernel = arrays.need<float>("kernel", "K N");
  in.bias = arrays.get<float>("bias", "N");
  in.rows = arrays.size('M', "rows");
  in.inputs = arrays.size('K', "inputs");
  in.outputs = arrays.size('N', "outputs");
  in.storage = arrays.storage();
}

Run prepare_forward(Options, Checker& arrays) {
  DenseForward call;
  fill_inputs(arrays, call);
  call.y = arrays.need<void>("y", "M N");
  return [call] { target().dense->forward(call); };
}

Run prepare_backward(Options, Checker& arrays) {
  DenseBackward call;
  fill_inputs(arrays, call);
  call.d_y = arrays.need<void>("d_y", "M N");
  call.d_x = arrays.get<void>("d_x", "M K");
  call.d_kernel = arrays.need<float>("d_kernel", "K N");
  call.d_bias = arrays.get<float>("d_bias", "N");
  return [call] { target().dense->backward(call); };
}

constexpr Call kCalls[] = {
    {"dense_forward", {}, kForwardArguments, kForwardResults, prepare_forward},
    {"dense_backward", {}, kBackwardArguments, kBackwardResults, prepare_backward},
};

}  // namespace

extern constinit const std::span<const Call> kDenseCalls = kCalls;

}  // namespace cellerate
