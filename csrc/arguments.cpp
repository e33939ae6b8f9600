#include "arguments.h"

#include <cstring>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>

#include "dispatch.h"

namespace cellerate {
namespace {

// What an array must be. Dimensions: B, T, D, H, V, G for 4H, R for the bytes of the reserve. Type s is the storage.
struct Rule {
  const char* name;
  const char* dimensions;
  char type;
};
constexpr Rule kRules[] = {
    {"x", "BTD", 's'},
    {"ids", "BT", 'i'},
    {"embeddings", "VD", 'f'},
    {"kernel", "DG", 'f'},
    {"recurrent_kernel", "HG", 'f'},
    {"bias", "G", 'f'},
    {"h0", "BH", 's'},
    {"c0", "BH", 's'},
    {"mask", "BT", 'b'},
    {"dropout", "4BD", 'f'},
    {"recurrent_dropout", "4BH", 'f'},
    {"outputs", "O", 's'},
    {"h_T", "BH", 's'},
    {"c_T", "BH", 's'},
    {"reserve", "R", 'y'},
    {"d_outputs", "O", 's'},
    {"d_h_T", "BH", 's'},
    {"d_c_T", "BH", 's'},
    {"d_x", "BTD", 's'},
    {"d_embeddings", "VD", 'f'},
    {"d_kernel", "DG", 'f'},
    {"d_recurrent_kernel", "HG", 'f'},
    {"d_bias", "G", 'f'},
    {"d_h0", "BH", 's'},
    {"d_c0", "BH", 's'},
};

const char* type_name(Type type) {
  switch (type) {
    case Type::kFloat32:
      return "float32";
    case Type::kBfloat16:
      return "bfloat16";
    case Type::kInt32:
      return "int32";
    case Type::kBool:
      return "bool";
    case Type::kByte:
      return "uint8";
    default:
      return "another type";
  }
}

std::string list(const std::vector<std::string>& parts) {
  std::string text = "(";
  for (size_t n = 0; n < parts.size(); ++n) text += (n > 0 ? ", " : "") + parts[n];
  return text + (parts.size() == 1 ? ",)" : ")");
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> parts;
  for (const int64_t size : shape) parts.push_back(std::to_string(size));
  return list(parts);
}

// Looks arrays up by name and checks them against the rules as they come.
class Checker {
 public:
  Checker(const Options& options, LstmInputs& in) : in_(in), sequences_(options.return_sequences) {
    in.activation = code<Activation>("activation", options.activation);
    in.recurrent_activation = code<Activation>("recurrent_activation", options.recurrent_activation);
    in.masked_output = code<MaskedOutput>("masked_output", options.masked_output);
    in.go_backwards = options.go_backwards;
    in.return_sequences = options.return_sequences;
  }

  template <size_t kCount>
  void add(const char* const (&names)[kCount], std::span<const Array> arrays) {
    if (arrays.size() != kCount) {
      throw std::invalid_argument("expected " + std::to_string(kCount) + " arrays, got " +
                                  std::to_string(arrays.size()));
    }
    for (size_t n = 0; n < kCount; ++n) {
      if (arrays[n].present) arrays_[names[n]] = &arrays[n];
    }
  }

  // What forward and backward are both given; sets the dimensions.
  void check_inputs() {
    const bool lookup = arrays_.count("ids") != 0;
    if (lookup == (arrays_.count("x") != 0)) {
      throw std::invalid_argument("expected either x or ids with embeddings, got " +
                                  std::string(lookup ? "both" : "neither"));
    }
    if (lookup) {
      in_.ids = get<int32_t>("ids", true);
      in_.embeddings = get<float>("embeddings", true);
    } else {
      in_.x = get<void>("x", true);
    }
    in_.recurrent_kernel = get<float>("recurrent_kernel", true);
    if (sizes_['G'] != 4 * sizes_['H']) {
      throw std::invalid_argument("recurrent_kernel: expected shape (H, 4H), got (" +
                                  std::to_string(sizes_['H']) + ", " + std::to_string(sizes_['G']) + ")");
    }
    in_.kernel = get<float>("kernel", true);
    in_.bias = get<float>("bias");
    in_.h0 = get<void>("h0");
    in_.c0 = get<void>("c0");
    in_.mask = get<uint8_t>("mask");
    in_.dropout = get<float>("dropout");
    in_.recurrent_dropout = get<float>("recurrent_dropout");
    if (lookup && in_.dropout != nullptr) {
      throw std::invalid_argument("dropout: expected none with ids; look the rows up and pass them as x");
    }
    in_.batch = sizes_['B'];
    in_.steps = sizes_['T'];
    in_.inputs = sizes_['D'];
    in_.units = sizes_['H'];
    in_.vocabulary = lookup ? sizes_['V'] : 0;
    for (const auto& [letter, what] :
         {std::pair{'B', "batch"}, {'T', "steps"}, {'D', "inputs"}, {'H', "units"}}) {
      if (sizes_[letter] < 1) throw std::invalid_argument(std::string(what) + ": expected at least 1, got 0");
    }
  }

  // The data of an array, null if it is absent.
  template <class T>
  T* get(const char* name, bool required = false) {
    const auto found = arrays_.find(name);
    if (found == arrays_.end()) {
      if (required) throw std::invalid_argument(std::string(name) + ": expected an array, got none");
      return nullptr;
    }
    check(*found->second, rule(name));
    return static_cast<T*>(found->second->data);
  }

  // The storage type, which the first array of that type decides.
  void finish() { in_.storage = storage_ == Type::kBfloat16 ? Storage::kBfloat16 : Storage::kFloat32; }
  void expect_reserve(const char* name) {
    const auto found = arrays_.find(name);
    if (found == arrays_.end()) return;
    sizes_['R'] = static_cast<int64_t>(target().reserve_bytes(in_));
    check(*found->second, rule(name));
  }

 private:
  template <class Enum>
  static Enum code(const char* name, int64_t value) {
    if (value < 0 || value >= static_cast<int64_t>(Enum::kCount)) {
      throw std::invalid_argument(std::string(name) + ": expected a code below " +
                                  std::to_string(static_cast<int>(Enum::kCount)) + ", got " +
                                  std::to_string(value));
    }
    return static_cast<Enum>(value);
  }

  static const Rule& rule(const char* name) {
    for (const Rule& each : kRules) {
      if (std::strcmp(each.name, name) == 0) return each;
    }
    throw std::logic_error(std::string("no rule for ") + name);
  }

  void check(const Array& array, const Rule& rule) {
    const bool right_type = rule.type == 's'   ? storage_type(array.type)
                            : rule.type == 'f' ? array.type == Type::kFloat32
                            : rule.type == 'i' ? array.type == Type::kInt32
                            : rule.type == 'b' ? array.type == Type::kBool || array.type == Type::kByte
                                               : array.type == Type::kByte;
    if (!right_type) {
      const std::string expected =
          rule.type == 's'
              ? storage_ == Type::kOther ? "float32 or bfloat16" : std::string(type_name(storage_))
          : rule.type == 'f' ? "float32"
          : rule.type == 'i' ? "int32"
          : rule.type == 'b' ? "bool"
                             : "uint8";
      throw std::invalid_argument(std::string(rule.name) + ": expected dtype " + expected + ", got " +
                                  type_name(array.type));
    }
    const std::string letters = rule.dimensions[0] != 'O' ? rule.dimensions : sequences_ ? "BTH" : "BH";
    bool right = array.shape.size() == letters.size();
    std::vector<std::string> names, sizes;
    for (size_t n = 0; n < letters.size(); ++n) {
      const char letter = letters[n];
      names.push_back(letter == 'G' ? "4H" : std::string(1, letter));
      if (letter == '4') {
        right = right && array.shape[n] == 4;
        sizes.push_back("4");
        continue;
      }
      if (right && sizes_.count(letter) == 0) sizes_[letter] = array.shape[n];
      right = right && sizes_[letter] == array.shape[n];
      sizes.push_back(sizes_.count(letter) != 0 ? std::to_string(sizes_[letter]) : names.back());
    }
    if (!right) {
      throw std::invalid_argument(std::string(rule.name) + ": expected shape " + list(names) + " = " +
                                  list(sizes) + ", got " + shape_text(array.shape));
    }
  }

  bool storage_type(Type type) {
    if (storage_ == Type::kOther && (type == Type::kFloat32 || type == Type::kBfloat16)) storage_ = type;
    return type == storage_ && type != Type::kOther;
  }

  LstmInputs& in_;
  const bool sequences_;
  Type storage_ = Type::kOther;
  std::map<std::string, const Array*> arrays_;
  std::map<char, int64_t> sizes_;
};

}  // namespace

LstmForward forward_call(const Options& options, std::span<const Array> arguments,
                         std::span<const Array> results) {
  LstmForward call;
  Checker checker(options, call);
  checker.add(kForwardArguments, arguments);
  checker.add(kForwardResults, results);
  checker.check_inputs();
  call.outputs = checker.get<void>("outputs", true);
  call.h_T = checker.get<void>("h_T", true);
  call.c_T = checker.get<void>("c_T", true);
  checker.finish();
  checker.expect_reserve("reserve");
  call.reserve = results[3].data;
  return call;
}

LstmBackward backward_call(const Options& options, std::span<const Array> arguments,
                           std::span<const Array> results) {
  LstmBackward call;
  Checker checker(options, call);
  checker.add(kBackwardArguments, arguments);
  checker.add(kBackwardResults, results);
  checker.check_inputs();
  call.outputs = checker.get<void>("outputs", options.return_sequences);
  call.d_outputs = checker.get<void>("d_outputs");
  call.d_h_T = checker.get<void>("d_h_T");
  call.d_c_T = checker.get<void>("d_c_T");
  call.d_x = checker.get<void>("d_x");
  call.d_embeddings = checker.get<float>("d_embeddings", call.ids != nullptr);
  call.d_kernel = checker.get<float>("d_kernel", true);
  call.d_recurrent_kernel = checker.get<float>("d_recurrent_kernel", true);
  call.d_bias = checker.get<float>("d_bias");
  call.d_h0 = checker.get<void>("d_h0");
  call.d_c0 = checker.get<void>("d_c0");
  checker.finish();
  checker.expect_reserve("reserve");
  if (arguments[std::size(kForwardArguments) + 1].data == nullptr)
    throw std::invalid_argument("reserve: expected what forward kept, got none");
  call.reserve = arguments[std::size(kForwardArguments) + 1].data;
  return call;
}

}  // namespace cellerate
