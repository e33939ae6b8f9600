// Every target against the layer written out in double precision, over shapes and variants.
//
// Results start as NaN, so that what a kernel forgets to write shows. Errors are root mean squares relative to the
// expected values'.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "naive.h"
#include "simd/dispatch.h"
#include "systems/threads.h"
#include "workers.h"

namespace {

using cellerate::Activation;
using cellerate::LstmBackward;
using cellerate::LstmForward;
using cellerate::LstmInputs;
using cellerate::MaskedOutput;
using cellerate::Storage;
using naive::Vector;

float from_bf16(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// An array in storage, in memory of exactly its size, so that sanitizers see a byte too many.
class Stored {
 public:
  Stored(Storage storage, size_t count) : storage_(storage), count_(count) {
    bytes_.assign(count * (storage == Storage::kFloat32 ? 4 : 2), 0xff);  // NaN in both
  }
  Stored(Storage storage, const Vector& values) : Stored(storage, values.size()) {
    for (size_t n = 0; n < count_; ++n) {
      if (storage_ == Storage::kFloat32) {
        const auto value = static_cast<float>(values[n]);
        std::memcpy(&bytes_[n * 4], &value, 4);
      } else {
        const uint16_t value = to_bf16(static_cast<float>(values[n]));
        std::memcpy(&bytes_[n * 2], &value, 2);
      }
    }
  }
  Vector values() const {
    Vector all(count_);
    for (size_t n = 0; n < count_; ++n) {
      float wide;
      uint16_t narrow;
      if (storage_ == Storage::kFloat32) {
        std::memcpy(&wide, &bytes_[n * 4], 4);
      } else {
        std::memcpy(&narrow, &bytes_[n * 2], 2);
        wide = from_bf16(narrow);
      }
      all[n] = wide;
    }
    return all;
  }
  void* data() { return bytes_.empty() ? nullptr : bytes_.data(); }
  float* floats() { return static_cast<float*>(data()); }

 private:
  Storage storage_;
  size_t count_;
  std::vector<unsigned char> bytes_;
};

double error(const Vector& got, const Vector& expected) {
  double difference = 0, size = 0;
  for (size_t n = 0; n < expected.size(); ++n) {
    difference += (got[n] - expected[n]) * (got[n] - expected[n]);
    size += expected[n] * expected[n];
  }
  return std::sqrt(difference / (size > 0 ? size : 1));
}

struct Variant {
  const char* name;
  bool bias = true, states = false, mask = false, dropout = false, recurrent_dropout = false,
       sequences = true, backwards = false, lookup = false;
  MaskedOutput masked_output = MaskedOutput::kPreviousOutput;
  Activation activation = Activation::kTanh, recurrent_activation = Activation::kSigmoid;
  double scale = 1;  // of the weights: unbounded activations grow rounding errors from step to step
};

const Variant kVariants[] = {
    {.name = "plain"},
    {.name = "states", .states = true},
    {.name = "no bias, last output", .bias = false, .sequences = false},
    {.name = "backwards", .states = true, .backwards = true},
    {.name = "mask", .states = true, .mask = true},
    {.name = "mask, previous state, backwards",
     .states = true,
     .mask = true,
     .backwards = true,
     .masked_output = MaskedOutput::kPreviousState},
    {.name = "mask, zero, last output",
     .states = true,
     .mask = true,
     .sequences = false,
     .masked_output = MaskedOutput::kZero},
    {.name = "recurrent dropout", .states = true, .recurrent_dropout = true},
    {.name = "dropout", .dropout = true},
    {.name = "both dropouts, mask", .mask = true, .dropout = true, .recurrent_dropout = true},
    {.name = "relu", .activation = Activation::kRelu},
    {.name = "silu everywhere",
     .activation = Activation::kSilu,
     .recurrent_activation = Activation::kSilu,
     .scale = 0.5},
    {.name = "lookup", .states = true, .lookup = true},
    {.name = "lookup, mask, recurrent dropout, no bias, backwards",
     .bias = false,
     .mask = true,
     .recurrent_dropout = true,
     .backwards = true,
     .lookup = true},
};

struct Shape {
  long B, T, D, H;
};
const Shape kShapes[] = {{1, 1, 5, 9},    {1, 2, 3, 20},   {3, 5, 7, 10},
                         {2, 9, 40, 100}, {17, 4, 33, 65}, {37, 3, 16, 64}};

// A variant of one shape: its inputs, and the results written out in double precision.
struct Problem {
  static constexpr long V = 11;
  const Variant& variant;
  const Shape& shape;
  naive::Case in;
  Vector embeddings, d_outputs, d_h_T, d_c_T;
  std::vector<int32_t> ids;
  naive::Results results;
  naive::Gradients expected;

  Problem(const Variant& of, const Shape& sizes) : variant(of), shape(sizes) {
    std::mt19937 random(static_cast<unsigned>(shape.B * 1000 + shape.H));
    std::normal_distribution<double> normal;
    const auto draw = [&](long count, double scale) {
      // Values that both storage types hold exactly.
      Vector all(static_cast<size_t>(count));
      for (double& value : all) value = from_bf16(to_bf16(static_cast<float>(normal(random) * scale)));
      return all;
    };
    const auto [B, T, D, H] = shape;
    in.sizes.batch = B;
    in.sizes.steps = T;
    in.sizes.inputs = D;
    in.sizes.units = H;
    in.sizes.activation = variant.activation;
    in.sizes.recurrent_activation = variant.recurrent_activation;
    in.sizes.masked_output = variant.masked_output;
    in.sizes.go_backwards = variant.backwards;
    in.sizes.return_sequences = variant.sequences;
    in.kernel = draw(D * 4 * H, variant.scale / std::sqrt(static_cast<double>(D)));
    in.recurrent_kernel = draw(H * 4 * H, 0.7 * variant.scale / std::sqrt(static_cast<double>(H)));
    if (variant.bias) in.bias = draw(4 * H, 0.5);
    if (variant.states) {
      in.h0 = draw(B * H, 0.5);
      in.c0 = draw(B * H, 0.5);
    }
    const auto drop = [&](long count) {
      Vector factors(static_cast<size_t>(count));
      for (double& factor : factors) factor = random() % 4 == 0 ? 0 : 1.5;
      return factors;
    };
    if (variant.dropout) in.dropout = drop(4 * B * D);
    if (variant.recurrent_dropout) in.recurrent_dropout = drop(4 * B * H);
    if (variant.mask) {
      in.mask.resize(static_cast<size_t>(B * T));
      for (long n = 0; n < B * T; ++n) in.mask[n] = n / T == 1 ? 0 : random() % 3 != 0;  // row 1: all masked
    }
    embeddings = draw(V * D, 1);
    ids.resize(static_cast<size_t>(B * T));
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % V);
    in.x = draw(B * T * D, 1);
    if (variant.lookup) {
      for (long n = 0; n < B * T * D; ++n) in.x[n] = embeddings[ids[n / D] * D + n % D];
    }
    d_outputs = draw((variant.sequences ? T : 1) * B * H, 1);
    d_h_T = draw(B * H, 1);
    d_c_T = draw(B * H, 1);
    expected = naive::run(in, d_outputs, d_h_T, d_c_T, results);
  }
};

// Runs a problem on the target in use and compares all results.
void compare(const Problem& problem, Storage storage, const std::string& where) {
  const auto& [variant, shape, in, embeddings, d_outputs, d_h_T, d_c_T, ids, results, expected] = problem;
  const auto [B, T, D, H] = shape;
  const Storage f32 = Storage::kFloat32;
  Stored x(storage, in.x), kernel(f32, in.kernel), recurrent(f32, in.recurrent_kernel), bias(f32, in.bias);
  Stored h0(storage, in.h0), c0(storage, in.c0), dropout(f32, in.dropout);
  Stored recurrent_dropout(f32, in.recurrent_dropout), rows(f32, embeddings);
  std::vector<unsigned char> mask = in.mask;
  LstmForward forward;
  static_cast<LstmInputs&>(forward) = in.sizes;
  forward.storage = storage;
  if (variant.lookup) {
    forward.ids = ids.data();
    forward.embeddings = rows.floats();
    forward.vocabulary = Problem::V;
  } else {
    forward.x = x.data();
  }
  forward.kernel = kernel.floats();
  forward.recurrent_kernel = recurrent.floats();
  forward.bias = bias.floats();
  forward.h0 = h0.data();
  forward.c0 = c0.data();
  forward.mask = mask.empty() ? nullptr : mask.data();
  forward.dropout = dropout.floats();
  forward.recurrent_dropout = recurrent_dropout.floats();
  Stored outputs(storage, d_outputs.size()), h_T(storage, d_h_T.size()), c_T(storage, d_c_T.size());
  std::vector<unsigned char> reserve(cellerate::target().lstm->reserve_bytes(forward), 0xff);
  forward.outputs = outputs.data();
  forward.h_T = h_T.data();
  forward.c_T = c_T.data();
  Stored inferred(storage, d_outputs.size());
  {
    LstmForward inference = forward;
    inference.outputs = inferred.data();
    cellerate::forward(inference);
  }
  forward.reserve = reserve.data();
  cellerate::forward(forward);

  // RMS against double. In bfloat16 nine numbers of a step are rounded by up to 2^-9 each: the four factors of two
  // products, x and h after dropout, a gate, h and c. As tests/support/rounding.py counts them that makes 6.8e-3, and
  // 1e-2 where the smallest layer has 20 results, whose RMS varies by 16 %: that is three times this much more.
  const bool exact = storage == Storage::kFloat32;
  const double forward_limit = exact ? 1e-6 : 1e-2, backward_limit = exact ? 5e-6 : 2e-2;
  const auto near = [&](const char* what, const Stored& got, const Vector& wanted, double limit) {
    const double found = error(got.values(), wanted);
    if (found <= limit) return;
    std::fprintf(stderr, "%s, %s, B%ld-T%ld-D%ld-H%ld: %s is off by %.2g\n", where.c_str(), variant.name, B,
                 T, D, H, what, found);
    CHECK(found <= limit);
  };
  near("outputs", outputs, results.outputs, forward_limit);
  near("outputs of inference", inferred, results.outputs, forward_limit);
  near("h_T", h_T, results.h_T, forward_limit);
  near("c_T", c_T, results.c_T, forward_limit);

  LstmBackward backward;
  static_cast<LstmInputs&>(backward) = forward;
  Stored cotangents(storage, d_outputs), d_h(storage, d_h_T), d_c(storage, d_c_T);
  backward.outputs = variant.sequences ? outputs.data() : nullptr;
  backward.reserve = reserve.data();
  backward.d_outputs = cotangents.data();
  backward.d_h_T = d_h.data();
  backward.d_c_T = d_c.data();
  // Twice: what was saved must still be there. A lookup gives the gradient of its table first, then that of its inputs.
  for (int round = 0; round < 2; ++round) {
    Stored d_x(storage, expected.x.size()), d_kernel(f32, expected.kernel.size());
    Stored d_recurrent(f32, expected.recurrent_kernel.size()), d_bias(f32, expected.bias.size());
    Stored d_h0(storage, expected.h0.size()), d_c0(storage, expected.c0.size()),
        d_rows(f32, embeddings.size());
    const bool of_table = variant.lookup && round == 0;
    backward.d_x = of_table ? nullptr : d_x.data();
    backward.d_embeddings = of_table ? d_rows.floats() : nullptr;
    backward.d_kernel = d_kernel.floats();
    backward.d_recurrent_kernel = d_recurrent.floats();
    backward.d_bias = variant.bias ? d_bias.floats() : nullptr;
    backward.d_h0 = d_h0.data();
    backward.d_c0 = d_c0.data();
    cellerate::backward(backward);
    if (of_table) {
      Vector summed(embeddings.size());
      for (long n = 0; n < B * T * D; ++n) summed[ids[n / D] * D + n % D] += expected.x[n];
      near("d_embeddings", d_rows, summed, backward_limit);
    } else {
      near("d_x", d_x, expected.x, backward_limit);
    }
    near("d_kernel", d_kernel, expected.kernel, backward_limit);
    near("d_recurrent_kernel", d_recurrent, expected.recurrent_kernel, backward_limit);
    if (variant.bias) near("d_bias", d_bias, expected.bias, backward_limit);
    near("d_h0", d_h0, expected.h0, backward_limit);
    near("d_c0", d_c0, expected.c0, backward_limit);
  }
}

// Every target, variant and storage; whatever the size, on so many threads.
void compare_all(std::initializer_list<int> thread_counts, std::span<const Shape> shapes,
                 cellerate::Sharing sharing) {
  // Written out once for all targets: it takes longer than the kernels do.
  std::vector<Problem> problems;
  for (const Shape& shape : shapes) {
    for (const Variant& variant : kVariants) problems.emplace_back(variant, shape);
  }
  cellerate::set_sharing(sharing);
  for (const std::string& target : cellerate::available_targets()) {
    cellerate::set_target(target);
    for (const int threads : thread_counts) {
      cellerate::set_thread_count(threads);
      for (const Problem& problem : problems) {
        for (const Storage storage : {Storage::kFloat32, Storage::kBfloat16}) {
          compare(problem, storage,
                  target + ", " + std::to_string(threads) + " threads, " +
                      (storage == Storage::kFloat32 ? "float32" : "bfloat16"));
        }
      }
    }
  }
  cellerate::set_sharing(cellerate::Sharing::kByWork);
}

TEST(every_target_equals_the_naive_layer) { compare_all({1, 2, 3}, kShapes, cellerate::Sharing::kAlways); }

TEST(every_target_in_many_pieces_equals_the_naive_layer) {
  compare_all({2}, kShapes, cellerate::Sharing::kAlwaysPieces);
}

// What valgrind runs, in bearable time: rows on two threads, and units on two.
TEST(a_short_run_equals_the_naive_layer) {
  constexpr Shape kShort[] = {{6, 2, 7, 10}, {2, 5, 20, 140}};
  compare_all({2}, kShort, cellerate::Sharing::kAlways);
}

// A layer's arrays, of numbers that matter little, for calls whose time and threads are looked at.
struct Layer {
  LstmForward forward;
  LstmBackward backward;
  std::vector<std::vector<float>> arrays;

  Layer(long B, long T, long D, long H) {
    forward.batch = B;
    forward.steps = T;
    forward.inputs = D;
    forward.units = H;
    forward.x = fresh(B * T * D);
    forward.kernel = fresh(D * 4 * H);
    forward.recurrent_kernel = fresh(H * 4 * H);
    forward.bias = fresh(4 * H);
    forward.outputs = fresh(B * T * H);
    forward.h_T = fresh(B * H);
    forward.c_T = fresh(B * H);
    forward.reserve = fresh(static_cast<long>(cellerate::target().lstm->reserve_bytes(forward) / 4 + 1));
    static_cast<LstmInputs&>(backward) = forward;
    backward.outputs = forward.outputs;
    backward.reserve = forward.reserve;
    backward.d_outputs = fresh(B * T * H);
    backward.d_x = fresh(B * T * D);
    backward.d_kernel = fresh(D * 4 * H);
    backward.d_recurrent_kernel = fresh(H * 4 * H);
    backward.d_bias = fresh(4 * H);
  }
  void step() const {
    cellerate::forward(forward);
    cellerate::backward(backward);
  }
  double best_of(int times) const {
    double least = 1e9;
    for (int n = 0; n < times; ++n) {
      const auto start = std::chrono::steady_clock::now();
      step();
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      least = std::min(least, taken.count());
    }
    return least;
  }

 private:
  float* fresh(long count) {
    std::vector<float>& array = arrays.emplace_back(static_cast<size_t>(count));
    for (size_t n = 0; n < array.size(); ++n) array[n] = 0.01f * static_cast<float>(n % 13) - 0.06f;
    return array.data();
  }
};

TEST(a_call_uses_threads_only_for_enough_work) {
  for (const std::string& target : cellerate::available_targets()) {
    cellerate::set_target(target);
    const auto workers_of = [](const Layer& layer) {
      cellerate::set_thread_count(1);
      CHECK(workers::workers_left(0));
      cellerate::set_thread_count(2);
      // Another program may have been in the way of earlier calls.
      while (cellerate::cores_are_wanted()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      layer.step();
      return workers::workers_alive();
    };
    CHECK(workers_of(Layer(1, 3, 1, 64)) == 0);
    CHECK(workers_of(Layer(1, 10, 1, 64)) == 0);
    CHECK(workers_of(Layer(1, 2000, 1, 32)) == 0);  // long, but of steps that are not worth a meeting
    CHECK(workers_of(Layer(32, 60, 64, 64)) == 1);
    CHECK(workers_of(Layer(1, 30, 256, 512)) == 1);
  }
}

TEST(a_call_whose_worker_has_no_core_takes_the_time_of_one_thread) {
  cellerate::set_target(cellerate::available_targets().front());
  cellerate::set_sharing(cellerate::Sharing::kAlways);
  const workers::OneProcessor only;
  cellerate::set_thread_count(1);
  const Layer by_units(1, 100, 64, 256), by_rows(32, 30, 64, 64);
  for (const Layer* layer : {&by_units, &by_rows}) {
    cellerate::set_thread_count(1);
    layer->step();
    const double alone = layer->best_of(20);
    const std::vector<std::vector<float>> expected = layer->arrays;
    cellerate::set_thread_count(2);
    layer->step();
    CHECK(workers::make_workers_wait() == 1);
    // Other programs may have the processor for a while; one that waits for the worker waits in every call.
    double shared = layer->best_of(20);
    // A sanitizer's checks take longer than the work.
    for (int more = 0; more < 20 && shared >= 1.3 * alone && !kSanitized; ++more)
      shared = std::min(shared, layer->best_of(20));
    CHECK(shared < 1.3 * alone || kSanitized);
    CHECK(layer->arrays == expected);
  }
  cellerate::set_thread_count(1);
  cellerate::set_sharing(cellerate::Sharing::kByWork);
}

TEST(an_unknown_target_is_an_error) {
  const std::string message = CHECK_THROWS(std::invalid_argument, cellerate::set_target("sse9"));
  CHECK(message.find("sse9") != std::string::npos && message.find("scalar") != std::string::npos);
}

TEST(an_id_beyond_the_vocabulary_is_an_error) {
  const int32_t ids[] = {0, 3};
  LstmForward forward;
  forward.batch = 1;
  forward.steps = 2;
  forward.ids = ids;
  forward.vocabulary = 3;
  const std::string message = CHECK_THROWS(std::out_of_range, cellerate::forward(forward));
  CHECK(message.find("got 3") != std::string::npos);
}

}  // namespace
