// The calls of the LSTM: checks their arrays and fills the structures of lstm.h.
#include "bindings/calls.h"
#include "cells/lstm.h"
#include "simd/dispatch.h"

namespace cellerate {
namespace {

constexpr const char* kOptions[] = {"activation",           "its first parameter",  "its second parameter",
                                    "its third parameter",  "recurrent_activation", "its first parameter",
                                    "its second parameter", "its third parameter",  "masked_output",
                                    "go_backwards",         "return_sequences"};
constexpr const char* kForwardArguments[] = {"x",  "ids", "embeddings", "kernel",  "recurrent_kernel", "bias",
                                             "h0", "c0",  "mask",       "dropout", "recurrent_dropout"};
constexpr const char* kForwardResults[] = {"outputs", "h_T", "c_T", "reserve"};
constexpr const char* kBackwardArguments[] = {
    "x",    "ids",     "embeddings",        "kernel",  "recurrent_kernel", "bias",      "h0",    "c0",
    "mask", "dropout", "recurrent_dropout", "outputs", "reserve",          "d_outputs", "d_h_T", "d_c_T"};
constexpr const char* kBackwardResults[] = {"d_x",    "d_embeddings", "d_kernel", "d_recurrent_kernel",
                                            "d_bias", "d_h0",         "d_c0"};
constexpr const char* kSizes[] = {"batch", "steps", "units", "masked"};

void fill_options(Options options, LstmInputs& in) {
  in.activation = activation_option("activation", options.first(kActivationOptions));
  options = options.subspan(kActivationOptions);
  in.recurrent_activation = activation_option("recurrent_activation", options.first(kActivationOptions));
  options = options.subspan(kActivationOptions);
  in.masked_output = option<MaskedOutput>("masked_output", options[0]);
  in.go_backwards = option("go_backwards", options[1]);
  in.return_sequences = option("return_sequences", options[2]);
}

// The inputs that forward and backward share.
void fill_inputs(Options options, Checker& arrays, LstmInputs& in) {
  fill_options(options, in);
  const bool lookup = arrays.has("ids");
  if (!lookup && !arrays.has("x")) {
    throw std::invalid_argument("expected x, or ids with embeddings, got neither");
  }
  if (lookup && arrays.has("dropout")) {
    throw std::invalid_argument("dropout: expected none with ids; look the rows up and pass them as x");
  }
  if (lookup) {
    in.ids = arrays.need<int32_t>("ids", "B T");
    in.embeddings = arrays.need<float>("embeddings", "V D");
    in.vocabulary = arrays.size('V', "vocabulary");
    arrays.get<void>("x", "B T D");
  } else {
    in.x = arrays.need<void>("x", "B T D");
  }
  in.recurrent_kernel = arrays.need<float>("recurrent_kernel", "H 4H");
  in.units = arrays.size('H', "units");
  in.kernel = arrays.need<float>("kernel", "D 4H");
  in.bias = arrays.get<float>("bias", "4H");
  in.h0 = arrays.get<void>("h0", "B H");
  in.c0 = arrays.get<void>("c0", "B H");
  in.mask = arrays.get<uint8_t>("mask", "B T");
  in.dropout = arrays.get<float>("dropout", "4 B D");
  in.recurrent_dropout = arrays.get<float>("recurrent_dropout", "4 B H");
  in.batch = arrays.size('B', "batch");
  in.steps = arrays.size('T', "steps");
  in.inputs = arrays.size('D', "inputs");
}

const char* outputs_axes(const LstmInputs& in) { return in.return_sequences ? "B T H" : "B H"; }

// The reserve; its size follows from all other arrays and options.
void* get_reserve(Checker& arrays, LstmInputs& in) {
  in.storage = arrays.storage();
  arrays.set_size('R', static_cast<int64_t>(target().lstm->reserve_bytes(in)));
  return arrays.get<std::byte>("reserve", "R");
}

Run prepare_forward(Options options, Checker& arrays) {
  LstmForward call;
  fill_inputs(options, arrays, call);
  call.outputs = arrays.need<void>("outputs", outputs_axes(call));
  call.h_T = arrays.need<void>("h_T", "B H");
  call.c_T = arrays.need<void>("c_T", "B H");
  call.reserve = get_reserve(arrays, call);
  return [call] { forward(call); };
}

Run prepare_backward(Options options, Checker& arrays) {
  LstmBackward call;
  fill_inputs(options, arrays, call);
  call.outputs = call.return_sequences ? arrays.need<void>("outputs", outputs_axes(call))
                                       : arrays.get<void>("outputs", outputs_axes(call));
  call.d_outputs = arrays.get<void>("d_outputs", outputs_axes(call));
  call.d_h_T = arrays.get<void>("d_h_T", "B H");
  call.d_c_T = arrays.get<void>("d_c_T", "B H");
  call.d_x = arrays.has("x") ? arrays.get<void>("d_x", "B T D") : nullptr;
  call.d_embeddings =
      call.ids != nullptr && !arrays.has("x") ? arrays.need<float>("d_embeddings", "V D") : nullptr;
  call.d_kernel = arrays.need<float>("d_kernel", "D 4H");
  call.d_recurrent_kernel = arrays.need<float>("d_recurrent_kernel", "H 4H");
  call.d_bias = arrays.get<float>("d_bias", "4H");
  call.d_h0 = arrays.get<void>("d_h0", "B H");
  call.d_c0 = arrays.get<void>("d_c0", "B H");
  call.reserve = get_reserve(arrays, call);
  if (call.reserve == nullptr)
    throw std::invalid_argument("reserve: expected the reserve that forward wrote, got none");
  return [call] { backward(call); };
}

size_t bytes_kept(Storage storage, Options options, Options sizes) {
  static constexpr uint8_t kMask = 0;
  LstmInputs in;
  fill_options(options, in);
  in.storage = storage;
  in.batch = sizes[0];
  in.steps = sizes[1];
  in.units = sizes[2];
  in.mask = sizes[3] != 0 ? &kMask : nullptr;
  return target().lstm->reserve_bytes(in);
}

constexpr Call kCalls[] = {
    {"lstm_forward", kOptions, kForwardArguments, kForwardResults, prepare_forward, bytes_kept, kSizes},
    {"lstm_backward", kOptions, kBackwardArguments, kBackwardResults, prepare_backward},
};

void check_ids(const LstmInputs& in) {
  if (in.ids == nullptr) return;
  for (int64_t n = 0; n < in.batch * in.steps; ++n) {
    if (in.ids[n] < 0 || in.ids[n] >= in.vocabulary) {
      throw std::out_of_range("ids: expected values in [0, " + std::to_string(in.vocabulary) +
                              "), the rows of the embeddings; got " + std::to_string(in.ids[n]));
    }
  }
}

}  // namespace

extern constinit const std::span<const Call> kLstmCalls = kCalls;

void forward(const LstmForward& in) {
  check_ids(in);
  target().lstm->forward(in);
}

void backward(const LstmBackward& in) {
  check_ids(in);
  target().lstm->backward(in);
}

}  // namespace cellerate
