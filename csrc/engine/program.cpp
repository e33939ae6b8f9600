#include "engine/program.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "simd/dispatch.h"
#include "systems/threads.h"

namespace cellerate {
namespace {

// The most bytes for the values of a block, so that they stay in a core's own cache beside some weights.
constexpr size_t kBlockBytes = size_t{512} << 10;
// A block has at least kGoodRows rows, with which a product nearly reaches its full speed, and enough rows for each
// step to read at most kBytesOfRow bytes of weights for each row.
constexpr int64_t kMostRows = 192, kGoodRows = 12, kBytesOfRow = int64_t{128} << 10;
// If each thread's rows read more bytes than this, all threads share a block.
constexpr int64_t kMostBytesOfRow = int64_t{256} << 10;
constexpr int64_t kTiledRows = 6;  // a multiple of the rows that any target multiplies at once in vectors
constexpr int64_t kLongRow = 128;  // numbers
// With fewer multiplications than this, a thread costs more than it saves.
constexpr double kWorthAThread = 1e5;
// The same limit for a step that draws ids, where threads are awake and meet after each layer.
constexpr double kWorthADrawnStep = 4e4;
constexpr size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Adds the time since the last mark to that of a node.
struct Clock {
  using Now = std::chrono::steady_clock;
  double* seconds;
  Now::time_point last = Now::now();

  static void mark(void* clock, int32_t node) {
    auto& self = *static_cast<Clock*>(clock);
    const auto now = Now::now();
    self.seconds[node] += std::chrono::duration<double>(now - self.last).count();
    self.last = now;
  }
};

}  // namespace

CompiledProgram::CompiledProgram(std::vector<ProgramNode> nodes, std::vector<int32_t> outputs,
                                 Precision precision, const ProgramOptions& options)
    : target_(&cellerate::target()),
      kernels_(options.same_everywhere ? target_->same_programs : target_->programs),
      nodes_(std::move(nodes)),
      outputs_(std::move(outputs)) {
  check_graph(precision);
  link(options.largest_table);
  const ProgramGraph graph{nodes_.data(), links_.data(), static_cast<int32_t>(nodes_.size()), precision,
                           options.static_scales};
  constexpr int64_t kBytes[] = {4, 2, 1, 1};  // of an element, in the order of Precision
  for (const ProgramNode& node : nodes_) {
    if (node.op != ProgramOp::kLstm) continue;
    const int64_t bytes = 4 * node.columns * node.columns * kBytes[static_cast<int>(precision)];
    bytes_of_step_ = std::max(bytes_of_step_, bytes);
  }
  if (precision == Precision::kBfloat16 || precision == Precision::kInt8) tile_rows_ = kernels_->tile_rows;
  bytes_ = kernels_->pack(graph, nullptr);
  if (bytes_ > options.most_bytes) {
    throw std::invalid_argument("the packed weights would take " + std::to_string(bytes_) +
                                " bytes; expected at most " + std::to_string(options.most_bytes));
  }
  packed_ = packed_memory(bytes_);
  kernels_->pack(graph, packed_.get());
  for (ProgramNode& node : nodes_) node.kernel = node.recurrent_kernel = node.bias = nullptr;
}

const char* CompiledProgram::target() const { return target_->name; }

const Exponentials& CompiledProgram::exponentials() const { return kernels_->exponentials; }

namespace {

// The multiplications for a row of an operation without weights.
double products_of(const ProgramNode& node, const ValueShape* shapes, const ValueShape& shape) {
  if (node.op != ProgramOp::kDot && node.op != ProgramOp::kAttention) return 0;
  const ValueShape &first = shapes[node.inputs[0]], &second = shapes[node.inputs[1]];
  if (node.op == ProgramOp::kDot)
    return static_cast<double>(first.positions() * first.features * second.positions() * second.features) /
           static_cast<double>(node.whole[0] == 1 && first.steps > 0 ? first.steps : first.features);
  const auto pairs = static_cast<double>(first.steps * second.steps);
  return pairs * static_cast<double>(first.features + shape.features);
}

}  // namespace

// Places each value of a block of `rows` rows in memory that no value still in use holds. Returns the bytes of a block.
size_t CompiledProgram::place(const ProgramCall& call, int64_t rows, std::vector<ValuePlace>& places) const {
  struct Held {
    size_t begin, end;
    int32_t last_use;
  };
  const auto count = static_cast<int32_t>(nodes_.size());
  places.assign(nodes_.size(), {});
  std::vector<Held> held;  // in the order of their places
  std::vector<bool> placed(nodes_.size(), false);
  size_t most = 0;
  // Finds values that have the same layout in the caller's arrays as in a block.
  const auto find_outside = [&](int32_t owner) {
    const ValueShape& shape = call.shapes[owner];
    const bool numbers = links_[owner].kind == ValueKind::kNumbers;
    const auto fits = [&](const int64_t* rows, size_t n) {
      ValuePlace& found = places[owner];
      found.stride = rows == nullptr || (numbers && shape.steps > 0) ? shape.features : rows[n];
      if (call.batch == 1) return true;
      return shape.positions() == 1 &&
             (numbers ? rows != nullptr || shape.features < kLongRow : found.stride == 1);
    };
    if (nodes_[owner].op == ProgramOp::kInput) {
      const size_t n = input_of(owner);
      if (fits(call.input_rows, n)) places[owner].input = static_cast<int32_t>(n);
      return places[owner].input >= 0;
    }
    const auto output = std::ranges::find(outputs_, owner);
    const auto n = static_cast<size_t>(output - outputs_.begin());
    if (output == outputs_.end() || (n == 0 && call.first_output != FirstOutput::kGiven)) return false;
    if (fits(call.output_rows, n)) places[owner].output = static_cast<int32_t>(n);
    return places[owner].output >= 0;
  };
  const auto give = [&](int32_t owner, int32_t now) {
    if (placed[owner]) return;
    placed[owner] = true;
    if (find_outside(owner)) return;
    const ValueShape& shape = call.shapes[owner];
    int64_t stride = 1;
    size_t each = sizeof(int32_t);
    if (links_[owner].kind == ValueKind::kNumbers) {
      // Long rows take an odd number of cache lines, so that adjacent rows do not share a set of the cache.
      stride = shape.features < kLongRow ? shape.features : ((shape.features + 15) / 16 | 1) * 16;
    } else if (links_[owner].kind == ValueKind::kMask) {
      each = 1;
    }
    const size_t bytes = round_up(static_cast<size_t>(shape.positions() * rows * stride) * each);
    size_t begin = 0;
    for (const Held& other : held) {
      if (other.begin >= begin + bytes) break;
      begin = std::max(begin, other.end);
    }
    places[owner] = {begin, stride, 0};
    most = std::max(most, begin + bytes);
    // Another thread may still draw from the logits of the last step, so in drawn steps values share no memory.
    const bool stays = call.first_output == FirstOutput::kDrawn;
    const int32_t last_use = stays ? std::numeric_limits<int32_t>::max() : links_[owner].last_use;
    const Held mine{begin, begin + bytes, std::max(last_use, now)};
    held.insert(std::ranges::upper_bound(held, begin, {}, &Held::begin), mine);
  };
  for (int32_t n = 0; n < count; ++n) {
    std::erase_if(held, [n](const Held& other) { return other.last_use < n; });
    if (links_[n].wanted && !links_[n].looked_up) give(links_[n].owner, n);
    if (nodes_[n].op != ProgramOp::kLstm) continue;
    const int32_t partner = std::max(links_[n].partner, n);
    // The partner of a node writes its value at the same time.
    if (links_[partner].wanted) give(links_[partner].owner, n);
    for (int32_t state = n + 1; state < count; ++state) {
      const bool written = nodes_[state].op == ProgramOp::kLstmState &&
                           (nodes_[state].inputs[0] == n || nodes_[state].inputs[0] == partner);
      if (written && links_[state].wanted) give(state, n);
    }
  }
  for (int32_t n = 0; n < count; ++n) places[n] = places[links_[n].owner];
  // The parts of a concatenation are side by side.
  for (int32_t n = 0; n < count; ++n) {
    if (nodes_[n].op != ProgramOp::kConcatenate) continue;
    int64_t column = 0;
    for (int32_t input = 0; input < nodes_[n].input_count; ++input) {
      const int32_t part = nodes_[n].inputs[input];
      if (links_[part].owner == n) {
        places[part].column = column;
        // If the part is only another name for a value, the node that writes the value needs the column too.
        if (links_[part].nothing) places[nodes_[part].inputs[0]].column = column;
      }
      column += call.shapes[part].features;
    }
  }
  return most;
}

std::vector<int32_t> CompiledProgram::order(const ProgramCall& call,
                                            const std::vector<ValuePlace>& places) const {
  std::vector<int32_t> found;
  const bool all = call.first_output != FirstOutput::kNone;
  const int32_t last =
      all ? static_cast<int32_t>(nodes_.size()) - 1 : *std::max_element(outputs_.begin() + 1, outputs_.end());
  for (int32_t n = 0; n <= last; ++n) {
    const ValueLink& link = links_[n];
    const bool is_lstm = nodes_[n].op == ProgramOp::kLstm;
    if (link.nothing || link.looked_up || (!link.wanted && !is_lstm) || places[n].input >= 0) continue;
    found.push_back(n);
  }
  return found;
}

size_t CompiledProgram::input_of(int32_t node) const {
  return static_cast<size_t>(
      std::count_if(nodes_.begin(), nodes_.begin() + node,
                    [](const ProgramNode& before) { return before.op == ProgramOp::kInput; }));
}

size_t CompiledProgram::node_of_input(size_t n) const {
  size_t node = 0;
  for (;; ++node) {
    if (nodes_[node].op == ProgramOp::kInput && n-- == 0) return node;
  }
}

// Plans how the threads divide a call.
void CompiledProgram::divide(const ProgramCall& call, ProgramPlan& plan) const {
  double products = 0;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    const ProgramNode& node = nodes_[n];
    if (node.op == ProgramOp::kLstm) {
      const bool looked_up = links_[node.inputs[0]].looked_up;
      products += 4.0 * static_cast<double>(node.columns * call.shapes[node.inputs[0]].steps) *
                  static_cast<double>(node.columns + (looked_up ? 0 : node.rows));
    } else if (node.op == ProgramOp::kDense) {
      products += static_cast<double>(node.rows * node.columns * call.shapes[n].positions());
    } else {
      products += products_of(node, call.shapes, call.shapes[n]);
    }
  }
  plan.products = products * static_cast<double>(call.batch);
  plan.threads = call.threads > 0 ? call.threads : thread_count();
  const double worth_one = call.first_output == FirstOutput::kDrawn ? kWorthADrawnStep : kWorthAThread;
  const auto worth = static_cast<int64_t>(std::min(plan.products / worth_one, 1e6));
  const auto threads = call.threads > 0 ? call.threads : std::clamp<int64_t>(worth, 1, plan.threads);
  // Each thread gets rows of its own if there are enough for fast products; else the threads share a block, and each
  // reads only its part of the weights.
  const int64_t rows = call.batch / threads;
  plan.apart = call.together || rows < 2 ? 1 : threads;
  plan.teams = bytes_of_step_ > rows * kMostBytesOfRow ? 1 : plan.apart;
  plan.members = threads / plan.teams;
}

std::vector<int32_t> CompiledProgram::partners(const ProgramCall& call) const {
  ProgramPlan plan;
  divide(call, plan);
  std::vector<int32_t> found(nodes_.size(), -1);
  for (int32_t n = 0; plan.members > 1 && n < static_cast<int32_t>(nodes_.size()); ++n) {
    if (runs_beside(nodes_.data(), links_.data(), call.shapes, n)) found[n] = links_[n].partner;
  }
  return found;
}

ProgramPlan CompiledProgram::plan(const ProgramCall& call) const {
  check_shapes(nodes_, call.shapes, call.begins);
  ProgramPlan plan;
  divide(call, plan);
  const size_t one = place(call, 1, plan.places);
  const auto affordable = static_cast<int64_t>(kBlockBytes / std::max<size_t>(one, 1));
  const int64_t good = std::max(kGoodRows, tile_rows_);
  const int64_t least = std::clamp(bytes_of_step_ / kBytesOfRow, good, kMostRows);
  int64_t rows = std::clamp(affordable, least, kMostRows);
  // Blocks of about equal size.
  const int64_t of_team = std::max<int64_t>((call.batch + plan.teams - 1) / plan.teams, 1);
  const int64_t blocks = (of_team + rows - 1) / rows;
  rows = (of_team + blocks - 1) / blocks;
  // Several blocks have whole tiles of rows on every target.
  const int64_t tile = tile_rows_ > 0 ? tile_rows_ : kTiledRows;
  if (blocks > 1) rows = (rows + tile - 1) / tile * tile;
  plan.rows = rows;
  plan.bytes = place(call, rows, plan.places);
  plan.order = order(call, plan.places);
  return plan;
}

void CompiledProgram::run(const ProgramCall& call, const ProgramPlan& plan) const {
  if (call.batch < 1) return;
  if (call.text == nullptr) check_ids(nodes_, call.shapes, call.inputs, call.batch);
  ProgramRun run;
  run.call = call;
  run.nodes = nodes_.data();
  run.links = links_.data();
  run.places = plan.places.data();
  run.count = static_cast<int32_t>(nodes_.size());
  run.order = plan.order.data();
  run.order_count = static_cast<int32_t>(plan.order.size());
  run.outputs = outputs_.data();
  run.output_count = static_cast<int32_t>(outputs_.size());
  run.bytes = plan.bytes;
  run.rows_of_block = plan.rows;
  run.teams = static_cast<int>(plan.teams);
  run.members = static_cast<int>(plan.members);
  Clock clock{call.seconds};
  if (call.seconds != nullptr) {
    run.mark = &Clock::mark;
    run.clock = &clock;
  }
  const bool chosen = call.threads > 0 || call.first_output == FirstOutput::kDrawn || call.seconds != nullptr;
  if (plan.members == 1 || chosen) return kernels_->run(packed_.get(), run);
  Pace& pace = paces_[std::min(kKinds - 1, static_cast<size_t>(std::log2(plan.products)))];
  pace.take([&](bool several, bool) {
    if (!several) {
      run.teams = static_cast<int>(plan.apart);
      run.members = 1;
    }
    kernels_->run(packed_.get(), run);
    return int64_t{1};
  });
}

}  // namespace cellerate
