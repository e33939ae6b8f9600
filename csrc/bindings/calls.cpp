#include "bindings/calls.h"

namespace cellerate {

// One row for each algorithm: its calls, defined in <algorithm>_calls.cpp.
extern const std::span<const Call> kLstmCalls;
extern const std::span<const Call> kDenseCalls;

namespace {

constexpr const std::span<const Call>* kAlgorithms[] = {
    &kLstmCalls,
    &kDenseCalls,
};

void check_count(const char* what, Options given, Names names) {
  if (given.size() == names.size()) return;
  throw std::invalid_argument(std::string(what) + ": expected " + std::to_string(names.size()) + ", got " +
                              std::to_string(given.size()));
}

}  // namespace

std::vector<const Call*> calls() {
  std::vector<const Call*> all;
  for (const auto* algorithm : kAlgorithms) {
    for (const Call& call : *algorithm) all.push_back(&call);
  }
  return all;
}

const Call& call_named(std::string_view name) {
  for (const auto* algorithm : kAlgorithms) {
    for (const Call& call : *algorithm) {
      if (call.name == name) return call;
    }
  }
  throw std::invalid_argument("there is no call \"" + std::string(name) + "\"");
}

Run prepare(const Call& call, Options options, Arrays arguments, Arrays results) {
  check_count("options", options, call.options);
  Checker arrays(call.arguments, arguments, call.results, results);
  return call.prepare(options, arrays);
}

size_t reserve_bytes(const Call& call, std::string_view storage, Options options, Options sizes) {
  if (call.reserve_bytes == nullptr) throw std::invalid_argument(std::string(call.name) + " keeps nothing");
  check_count("options", options, call.options);
  check_count("sizes", sizes, call.sizes);
  const Type type = type_where([&](const TypeRow& row) { return row.name == storage; });
  if (type >= Type(Storage::kCount)) {
    throw std::invalid_argument("dtype: expected a type of states, got " + std::string(storage));
  }
  return call.reserve_bytes(Storage(type), options, sizes);
}

}  // namespace cellerate
