// Checks the graph of a program, and links its nodes.
#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "engine/program.h"
#include "engine/program_table.h"

namespace cellerate {
namespace {

// The most inputs for which the integer sums of byte products stay below 2^31.
constexpr int64_t kMostInputs = 65536;
// Two layers run beside each other if neither has more than this many times the work of the other.
constexpr double kBalanced = 3;

bool has_matrix(const ProgramNode& node) {
  return node.op == ProgramOp::kEmbedding || node.op == ProgramOp::kLstm || is_dense(node.op);
}

ValueKind kind_of(const ProgramNode& node) { return node.ids ? ValueKind::kIds : row(node.op).gives; }

}  // namespace

[[noreturn]] void refuse_node(size_t node, const std::string& what) {
  throw std::invalid_argument("node " + std::to_string(node) + ": " + what);
}

void take_inputs(std::vector<ProgramNode>& nodes, std::vector<int32_t>& all) {
  for (const ProgramNode& node : nodes) all.insert(all.end(), node.inputs, node.inputs + node.input_count);
  const int32_t* sources = all.data();
  for (size_t n = 0; n < nodes.size(); ++n) {
    ProgramNode& node = nodes[n];
    node.inputs = sources;
    sources += node.input_count;
    const auto count = static_cast<size_t>(node.input_count);
    const ProgramOpRow& rules = row(node.op);
    if (rules.reads_many() ? count < 1 : count != rules.count_of_inputs())
      refuse_node(n, std::string("wrong number of inputs for ") + rules.name);
    for (size_t input = 0; input < count; ++input) {
      const int32_t source = node.inputs[input];
      if (source == -1 && rules.is_optional(input)) continue;
      if (source < 0 || source >= static_cast<int32_t>(n))
        refuse_node(n, "expected inputs from earlier nodes, got node " + std::to_string(source));
      if (kind_of(nodes[source]) != rules.kind_of_input(input))
        refuse_node(n, std::string("an input has the wrong kind for ") + rules.name);
    }
    const bool lacks =
        has_matrix(node) && (node.rows < 1 || node.columns < 1 || node.kernel == nullptr ||
                             (node.op == ProgramOp::kLstm && node.recurrent_kernel == nullptr));
    if (lacks) refuse_node(n, std::string("expected the weights of ") + rules.name + ", got none");
  }
}

void check_states(const std::vector<ProgramNode>& nodes, size_t n) {
  const ProgramNode& node = nodes[n];
  if (node.op == ProgramOp::kLstmState && nodes[node.inputs[0]].op != ProgramOp::kLstm)
    refuse_node(n, "expected an LSTM as input, because the node is a state");
  if (node.op == ProgramOp::kLstm && (node.inputs[2] < 0) != (node.inputs[3] < 0))
    refuse_node(n, "expected both h0 and c0 or neither, got one");
}

void check_ids(const std::vector<ProgramNode>& nodes, const ValueShape* shapes, const void* const* inputs,
               int64_t batch) {
  size_t input = 0;
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n].op != ProgramOp::kInput) continue;
    const auto* ids = static_cast<const int32_t*>(inputs[input++]);
    if (!nodes[n].ids) continue;
    int64_t most = std::numeric_limits<int32_t>::max();
    for (size_t reader = n + 1; reader < nodes.size(); ++reader) {
      if (nodes[reader].op == ProgramOp::kEmbedding && nodes[reader].inputs[0] == static_cast<int32_t>(n))
        most = std::min(most, nodes[reader].rows - 1);
    }
    uint32_t largest = 0;  // unsigned, so that a negative id is larger than all others
    for (int64_t place = 0; place < batch * shapes[n].steps; ++place)
      largest = std::max(largest, static_cast<uint32_t>(ids[place]));
    if (static_cast<int64_t>(largest) > most) throw std::out_of_range("an id is not a row of its table");
  }
}

void CompiledProgram::check_graph(Precision precision) {
  take_inputs(nodes_, sources_);
  for (size_t n = 0; n < nodes_.size(); ++n) {
    const ProgramNode& node = nodes_[n];
    const ProgramOpRow& rules = row(node.op);
    if (!rules.predicts) refuse_node(n, std::string("packed models do not compute ") + rules.name);
    check_states(nodes_, n);
    if (precision == Precision::kInt8 && has_matrix(node) && node.op != ProgramOp::kEmbedding &&
        std::max(node.rows, node.columns) > kMostInputs)
      refuse_node(n, "expected at most " + std::to_string(kMostInputs) + " inputs in int8");
    if (node.op == ProgramOp::kInput) ++inputs_;
  }
  if (outputs_.empty()) throw std::invalid_argument("outputs: expected at least one");
  for (const int32_t output : outputs_) {
    if (output < 0 || output >= static_cast<int32_t>(nodes_.size()) ||
        kind_of(nodes_[output]) != ValueKind::kNumbers)
      throw std::invalid_argument("outputs: expected nodes that give numbers");
  }
}

void CompiledProgram::link(int64_t largest_table) {
  const auto count = static_cast<int32_t>(nodes_.size());
  links_.resize(nodes_.size());
  std::vector<std::vector<int32_t>> readers(nodes_.size());
  std::vector<bool> is_output(nodes_.size(), false);
  for (const int32_t output : outputs_) is_output[output] = true;
  for (int32_t n = 0; n < count; ++n) {
    const ProgramNode& node = nodes_[n];
    links_[n].kind = kind_of(node);
    links_[n].owner = n;
    // An LSTM writes its states itself.
    links_[n].nothing = node.op == ProgramOp::kLstmState;
    if (links_[n].nothing) continue;
    for (int32_t input = 0; input < node.input_count; ++input) {
      if (node.inputs[input] >= 0) readers[node.inputs[input]].push_back(n);
    }
  }
  const auto only_read_once = [&](int32_t n) { return readers[n].size() == 1 && !is_output[n]; };
  for (int32_t n = 0; n < count; ++n) {
    const ProgramNode& node = nodes_[n];
    links_[n].wanted = is_output[n] || !readers[n].empty();
    if (node.op == ProgramOp::kEmbedding || node.op == ProgramOp::kIdsMask) {
      const int32_t place = node.op == ProgramOp::kEmbedding ? 0 : 1;
      links_[n].looked_up = !is_output[n] && std::ranges::all_of(readers[n], [&](int32_t reader) {
        return nodes_[reader].op == ProgramOp::kLstm && nodes_[reader].inputs[place] == n;
      });
    }
    // A flip of the outputs of a backward layer: the layer itself may write them in order.
    if (node.op != ProgramOp::kFlip || node.flips_features()) continue;
    const int32_t source = node.inputs[0];
    const ProgramNode& from = nodes_[source];
    if (from.op != ProgramOp::kLstm || !from.return_sequences || !from.go_backwards ||
        !only_read_once(source))
      continue;
    links_[source].natural = links_[n].nothing = true;
    links_[n].owner = source;
  }
  for (int32_t n = 0; n < count; ++n) {
    if (nodes_[n].op != ProgramOp::kConcatenate) continue;
    // A layer whose outputs are only concatenated writes them into the result.
    for (int32_t input = 0; input < nodes_[n].input_count; ++input) {
      const int32_t part = nodes_[n].inputs[input], owner = links_[part].owner;
      if (nodes_[owner].op != ProgramOp::kLstm || !only_read_once(part) || !only_read_once(owner)) continue;
      // Concatenated along time.
      if (nodes_[n].number == 1 && nodes_[owner].return_sequences) continue;
      links_[part].owner = links_[owner].owner = n;
    }
  }
  for (int32_t n = 0; n < count; ++n) {
    const ProgramNode& node = nodes_[n];
    if (node.op != ProgramOp::kLstm || !links_[node.inputs[0]].looked_up) continue;
    links_[n].tabled = nodes_[node.inputs[0]].rows * 16 * node.columns <= largest_table;
  }
  for (int32_t n = 0; n < count; ++n) pair_up(n);
  for (int32_t n = 0; n < count; ++n) {
    for (int32_t input = 0; input < nodes_[n].input_count; ++input) {
      const int32_t source = nodes_[n].inputs[input];
      if (source < 0) continue;
      // A node that looks ids up reads the ids and not the embedding.
      const int32_t read = links_[source].looked_up ? nodes_[source].inputs[0] : source;
      links_[links_[read].owner].last_use = n;
    }
  }
  for (const int32_t output : outputs_)
    links_[links_[output].owner].last_use = std::numeric_limits<int32_t>::max();
}

// Finds a later LSTM that can run beside LSTM n.
void CompiledProgram::pair_up(int32_t n) {
  const auto is_free = [&](int32_t m) { return nodes_[m].op == ProgramOp::kLstm && links_[m].partner < 0; };
  if (!is_free(n)) return;
  const auto work = [&](const ProgramNode& node) {
    return static_cast<double>(node.columns) * static_cast<double>(node.columns + node.rows);
  };
  for (int32_t m = n + 1; m < static_cast<int32_t>(nodes_.size()); ++m) {
    if (!is_free(m) || work(nodes_[m]) > kBalanced * work(nodes_[n]) ||
        work(nodes_[n]) > kBalanced * work(nodes_[m]))
      continue;
    const ProgramNode &first = nodes_[n], &second = nodes_[m];
    const bool follows = second.inputs[0] == n && !first.go_backwards && !second.go_backwards;
    bool ready = true;
    for (int32_t input = follows ? 1 : 0; input < second.input_count; ++input) {
      // An input that only names a part of another node's memory may be written late.
      ready &= second.inputs[input] < n;
    }
    // LSTMs beside each other need the same number of steps.
    if (!ready || (!follows && first.inputs[0] != second.inputs[0])) continue;
    links_[n].partner = m;
    links_[m].partner = n;
    return;
  }
}

}  // namespace cellerate
