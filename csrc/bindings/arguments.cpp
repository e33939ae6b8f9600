#include "bindings/arguments.h"

#include <algorithm>
#include <cstring>

#include "systems/scratch.h"

namespace cellerate {

size_t place_among(const char* what, std::string_view name, std::span<const char* const> names) {
  std::string known;
  for (size_t n = 0; n < names.size(); ++n) {
    if (name == names[n]) return n;
    known += (n > 0 ? ", " : "") + std::string(names[n]);
  }
  throw std::invalid_argument(std::string(what) + ": expected one of " + known + "; got " +
                              std::string(name));
}
namespace {

// One axis of a rule: a factor times the size of a letter, or only the factor.
struct Axis {
  int64_t factor = 1;
  char letter = 0;
};

// Takes the next axis off a rule; the rule must not be at its end.
Axis next_axis(const char*& rule) {
  Axis axis;
  while (*rule == ' ') ++rule;
  if (*rule >= '0' && *rule <= '9') axis.factor = 0;
  for (; *rule >= '0' && *rule <= '9'; ++rule) axis.factor = 10 * axis.factor + (*rule - '0');
  if (*rule != ' ' && *rule != '\0') axis.letter = *rule++;
  return axis;
}

size_t rank(const char* rule) {
  return 1 + static_cast<size_t>(std::count(rule, rule + std::strlen(rule), ' '));
}

size_t bytes_of(const Array& array) {
  size_t bytes = row(array.type).bytes;
  for (const int64_t size : array.shape) bytes *= static_cast<size_t>(size);
  return bytes;
}

std::string list(const std::vector<std::string>& parts) {
  std::string text = "(";
  for (size_t n = 0; n < parts.size(); ++n) text += (n > 0 ? ", " : "") + parts[n];
  return text + (parts.size() == 1 ? ",)" : ")");
}

void check_count(Arrays arrays, Names names) {
  if (arrays.size() == names.size()) return;
  throw std::invalid_argument("expected " + std::to_string(names.size()) + " arrays, got " +
                              std::to_string(arrays.size()));
}

}  // namespace

Checker::Checker(Names names, Arrays arguments, Names result_names, Arrays results) {
  std::fill(std::begin(sizes_), std::end(sizes_), kUnknown);
  check_count(arguments, names);
  check_count(results, result_names);
  arrays_.reserve(arguments.size() + results.size());
  for (size_t n = 0; n < arguments.size(); ++n) {
    if (arguments[n].present) arrays_.emplace_back(names[n], &arguments[n]);
  }
  for (size_t n = 0; n < results.size(); ++n) {
    if (!results[n].present) continue;
    arrays_.emplace_back(result_names[n], &results[n]);
    use_huge_pages(results[n].data, bytes_of(results[n]));
  }
}

int64_t Checker::size(char letter, const char* what) const {
  const int64_t size = sizes_[index(letter)];
  if (size < 1) throw std::invalid_argument(std::string(what) + ": expected at least 1, got 0");
  return size;
}

const Array* Checker::find(const char* name) const {
  for (const auto& [each, array] : arrays_) {
    if (std::strcmp(each, name) == 0) return array;
  }
  return nullptr;
}

void Checker::check(const Array& array, const char* name, const char* axes, Accepted accepted) {
  if (!right_type(array.type, accepted)) {
    throw std::invalid_argument(std::string(name) + ": expected dtype " + expected_type(accepted) + ", got " +
                                row(array.type).name);
  }
  bool right = array.shape.size() == rank(axes);
  const char* rule = axes;
  for (size_t n = 0; right && n < array.shape.size(); ++n) {
    const Axis axis = next_axis(rule);
    const int64_t size = array.shape[n];
    if (axis.letter == 0) {
      right = size == axis.factor;
      continue;
    }
    int64_t& known = sizes_[index(axis.letter)];
    if (known == kUnknown && axis.factor == 1) known = size;
    right = known != kUnknown && size == axis.factor * known;
  }
  if (!right) refuse_shape(array, name, axes);
}

void Checker::refuse_shape(const Array& array, const char* name, const char* axes) const {
  std::vector<std::string> names, sizes, got;
  for (const char* rule = axes; *rule != '\0';) {
    const Axis axis = next_axis(rule);
    const std::string factor = axis.letter == 0 || axis.factor != 1 ? std::to_string(axis.factor) : "";
    names.push_back(axis.letter == 0 ? factor : factor + axis.letter);
    const int64_t known = axis.letter == 0 ? 1 : sizes_[index(axis.letter)];
    sizes.push_back(known == kUnknown ? names.back() : std::to_string(axis.factor * known));
  }
  for (const int64_t size : array.shape) got.push_back(std::to_string(size));
  throw std::invalid_argument(std::string(name) + ": expected shape " + list(names) + " = " + list(sizes) +
                              ", got " + list(got));
}

bool Checker::right_type(Type type, Accepted accepted) {
  switch (accepted) {
    case Accepted::kStorage:
      if (storage_ == Type::kOther && type < Type(Storage::kCount)) storage_ = type;
      return type == storage_ && type != Type::kOther;
    case Accepted::kFloat32:
      return type == Type::kFloat32;
    case Accepted::kInt32:
      return type == Type::kInt32;
    case Accepted::kBool:
      return type == Type::kBool || type == Type::kByte;
    default:
      return type == Type::kByte;
  }
}

std::string Checker::expected_type(Accepted accepted) const {
  switch (accepted) {
    case Accepted::kStorage: {
      if (storage_ != Type::kOther) return row(storage_).name;
      std::string names;
      for (int32_t n = 0; n < static_cast<int32_t>(Storage::kCount); ++n) {
        names += (n > 0 ? " or " : "") + std::string(kTypes[n].name);
      }
      return names;
    }
    case Accepted::kFloat32:
      return "float32";
    case Accepted::kInt32:
      return "int32";
    case Accepted::kBool:
      return "bool";
    default:
      return "uint8";
  }
}

}  // namespace cellerate
