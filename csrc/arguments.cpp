#include "arguments.h"

#include <cstring>
#include <map>
#include <stdexcept>
#include <string>

#include "dispatch.h"
#include "scratch.h"

namespace cellerate {
namespace {

// What an array must be. Each letter of the dimensions is a size that all arrays share; 4 is 4, G is 4H, and O stands
// for "BTH" or "BH". Type s is the storage, f float32, i int32, b bool, y bytes.
struct Rule {
  const char* name;
  const char* dimensions;
  char type;
};
// B batch, T steps, D inputs, H units, V vocabulary, R bytes of the reserve.
constexpr Rule kLstmRules[] = {
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
// M rows, K inputs, N outputs.
constexpr Rule kDenseRules[] = {
    {"x", "MK", 's'},   {"kernel", "KN", 'f'}, {"bias", "N", 'f'},      {"y", "MN", 's'},
    {"d_y", "MN", 's'}, {"d_x", "MK", 's'},    {"d_kernel", "KN", 'f'}, {"d_bias", "N", 'f'},
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

size_t bytes_of(const Array& array) {
  size_t bytes = array.type == Type::kBfloat16                                ? 2
                 : array.type == Type::kFloat32 || array.type == Type::kInt32 ? 4
                                                                              : 1;
  for (const int64_t size : array.shape) bytes *= static_cast<size_t>(size);
  return bytes;
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

// Looks up arrays by name, and checks them against the rules as they are added.
class Checker {
 public:
  Checker(std::span<const Rule> rules, bool sequences) : rules_(rules), sequences_(sequences) {}

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

  // Arrays that the call will write.
  template <size_t kCount>
  void add_results(const char* const (&names)[kCount], std::span<const Array> arrays) {
    add(names, arrays);
    for (const Array& array : arrays) {
      if (array.present) use_huge_pages(array.data, bytes_of(array));
    }
  }

  bool has(const char* name) const { return arrays_.count(name) != 0; }

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

  // A size that the arrays added so far have determined, at least 1.
  int64_t size(char letter, const char* what) {
    if (sizes_[letter] < 1) throw std::invalid_argument(std::string(what) + ": expected at least 1, got 0");
    return sizes_[letter];
  }
  void set_size(char letter, int64_t size) { sizes_[letter] = size; }

  // The storage, as the first array of the storage type has determined it.
  Storage storage() const { return storage_ == Type::kBfloat16 ? Storage::kBfloat16 : Storage::kFloat32; }

 private:
  const Rule& rule(const char* name) const {
    for (const Rule& each : rules_) {
      if (std::strcmp(each.name, name) == 0) return each;
    }
    throw std::logic_error(std::string("no rule for ") + name);
  }

  void check(const Array& array, const Rule& rule) {
    if (!right_type(array.type, rule.type)) {
      throw std::invalid_argument(std::string(rule.name) + ": expected dtype " + expected_type(rule.type) +
                                  ", got " + type_name(array.type));
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

  bool right_type(Type type, char wanted) {
    switch (wanted) {
      case 's':
        if (storage_ == Type::kOther && (type == Type::kFloat32 || type == Type::kBfloat16)) storage_ = type;
        return type == storage_ && type != Type::kOther;
      case 'f':
        return type == Type::kFloat32;
      case 'i':
        return type == Type::kInt32;
      case 'b':
        return type == Type::kBool || type == Type::kByte;
      default:
        return type == Type::kByte;
    }
  }
  std::string expected_type(char wanted) const {
    switch (wanted) {
      case 's':
        return storage_ == Type::kOther ? "float32 or bfloat16" : type_name(storage_);
      case 'f':
        return "float32";
      case 'i':
        return "int32";
      case 'b':
        return "bool";
      default:
        return "uint8";
    }
  }

  const std::span<const Rule> rules_;
  const bool sequences_;
  Type storage_ = Type::kOther;
  std::map<std::string, const Array*> arrays_;
  std::map<char, int64_t> sizes_;
};

template <class Enum>
Enum code(const char* name, int64_t value) {
  if (value < 0 || value >= static_cast<int64_t>(Enum::kCount)) {
    throw std::invalid_argument(std::string(name) + ": expected a code below " +
                                std::to_string(static_cast<int>(Enum::kCount)) + ", got " +
                                std::to_string(value));
  }
  return static_cast<Enum>(value);
}

// Fills the inputs that forward and backward share.
void fill_inputs(const Options& options, Checker& arrays, LstmInputs& in) {
  in.activation = code<Activation>("activation", options.activation);
  in.recurrent_activation = code<Activation>("recurrent_activation", options.recurrent_activation);
  in.masked_output = code<MaskedOutput>("masked_output", options.masked_output);
  in.go_backwards = options.go_backwards;
  in.return_sequences = options.return_sequences;
  const bool lookup = arrays.has("ids");
  if (lookup == arrays.has("x")) {
    throw std::invalid_argument("expected either x or ids with embeddings, got " +
                                std::string(lookup ? "both" : "neither"));
  }
  if (lookup && arrays.has("dropout")) {
    throw std::invalid_argument("dropout: expected none with ids; look the rows up and pass them as x");
  }
  if (lookup) {
    in.ids = arrays.get<int32_t>("ids", true);
    in.embeddings = arrays.get<float>("embeddings", true);
    in.vocabulary = arrays.size('V', "vocabulary");
  } else {
    in.x = arrays.get<void>("x", true);
  }
  in.recurrent_kernel = arrays.get<float>("recurrent_kernel", true);
  in.units = arrays.size('H', "units");
  if (arrays.size('G', "4H") != 4 * in.units) {
    throw std::invalid_argument("recurrent_kernel: expected shape (H, 4H), got (" + std::to_string(in.units) +
                                ", " + std::to_string(arrays.size('G', "4H")) + ")");
  }
  in.kernel = arrays.get<float>("kernel", true);
  in.bias = arrays.get<float>("bias");
  in.h0 = arrays.get<void>("h0");
  in.c0 = arrays.get<void>("c0");
  in.mask = arrays.get<uint8_t>("mask");
  in.dropout = arrays.get<float>("dropout");
  in.recurrent_dropout = arrays.get<float>("recurrent_dropout");
  in.batch = arrays.size('B', "batch");
  in.steps = arrays.size('T', "steps");
  in.inputs = arrays.size('D', "inputs");
}

// The reserve, whose size follows from everything else.
void* get_reserve(Checker& arrays, LstmInputs& in) {
  in.storage = arrays.storage();
  arrays.set_size('R', static_cast<int64_t>(target().reserve_bytes(in)));
  return arrays.get<void>("reserve");
}

void fill_inputs(Checker& arrays, DenseInputs& in) {
  in.x = arrays.get<void>("x", true);
  in.kernel = arrays.get<float>("kernel", true);
  in.bias = arrays.get<float>("bias");
  in.rows = arrays.size('M', "rows");
  in.inputs = arrays.size('K', "inputs");
  in.outputs = arrays.size('N', "outputs");
  in.storage = arrays.storage();
}

}  // namespace

LstmForward forward_call(const Options& options, std::span<const Array> arguments,
                         std::span<const Array> results) {
  LstmForward call;
  Checker arrays(kLstmRules, options.return_sequences);
  arrays.add(kForwardArguments, arguments);
  arrays.add_results(kForwardResults, results);
  fill_inputs(options, arrays, call);
  call.outputs = arrays.get<void>("outputs", true);
  call.h_T = arrays.get<void>("h_T", true);
  call.c_T = arrays.get<void>("c_T", true);
  call.reserve = get_reserve(arrays, call);
  return call;
}

LstmBackward backward_call(const Options& options, std::span<const Array> arguments,
                           std::span<const Array> results) {
  LstmBackward call;
  Checker arrays(kLstmRules, options.return_sequences);
  arrays.add(kBackwardArguments, arguments);
  arrays.add_results(kBackwardResults, results);
  fill_inputs(options, arrays, call);
  call.outputs = arrays.get<void>("outputs", options.return_sequences);
  call.d_outputs = arrays.get<void>("d_outputs");
  call.d_h_T = arrays.get<void>("d_h_T");
  call.d_c_T = arrays.get<void>("d_c_T");
  call.d_x = arrays.get<void>("d_x");
  call.d_embeddings = arrays.get<float>("d_embeddings", call.ids != nullptr);
  call.d_kernel = arrays.get<float>("d_kernel", true);
  call.d_recurrent_kernel = arrays.get<float>("d_recurrent_kernel", true);
  call.d_bias = arrays.get<float>("d_bias");
  call.d_h0 = arrays.get<void>("d_h0");
  call.d_c0 = arrays.get<void>("d_c0");
  call.reserve = get_reserve(arrays, call);
  if (call.reserve == nullptr) throw std::invalid_argument("reserve: expected what forward kept, got none");
  return call;
}

DenseForward dense_forward_call(std::span<const Array> arguments, std::span<const Array> results) {
  DenseForward call;
  Checker arrays(kDenseRules, false);
  arrays.add(kDenseForwardArguments, arguments);
  arrays.add_results(kDenseForwardResults, results);
  fill_inputs(arrays, call);
  call.y = arrays.get<void>("y", true);
  return call;
}

DenseBackward dense_backward_call(std::span<const Array> arguments, std::span<const Array> results) {
  DenseBackward call;
  Checker arrays(kDenseRules, false);
  arrays.add(kDenseBackwardArguments, arguments);
  arrays.add_results(kDenseBackwardResults, results);
  fill_inputs(arrays, call);
  call.d_y = arrays.get<void>("d_y", true);
  call.d_x = arrays.get<void>("d_x");
  call.d_kernel = arrays.get<float>("d_kernel", true);
  call.d_bias = arrays.get<float>("d_bias");
  return call;
}

}  // namespace cellerate
