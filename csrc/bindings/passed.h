// What Python passes: the memory of arrays, and the nodes of a program.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/program.h"
#include "engine/program_table.h"

namespace cellerate {

using ProgramWeights =
    std::optional<nanobind::ndarray<const float, nanobind::c_contig, nanobind::device::cpu>>;
using ActivationCodes = std::vector<int64_t>;  // its code, and the bits of its parameters
// op; inputs and arrays in the order of its row; activation, recurrent_activation, normalizer, masked_output;
// go_backwards, return_sequences, ids, cell; number; whole numbers
using PassedNode =
    std::tuple<std::string, std::vector<int32_t>, std::tuple<ProgramWeights, ProgramWeights, ProgramWeights>,
               std::tuple<ActivationCodes, ActivationCodes, std::string, std::string>,
               std::tuple<bool, bool, bool, bool>, float, std::vector<int64_t>>;

// What a call has in common with others of the same shapes.
struct ProgramSizes {
  std::vector<ValueShape> shapes;
  std::vector<int64_t> begins;
};

// The memory of an array, which stays where it is as long as this is there. nanobind's own type would take NumPy's arrays
// by DLPack, which costs 0.1 µs more for each.
class Buffer {
 public:
  enum class Access : int { kRead = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT, kWrite = kRead | PyBUF_WRITABLE };

  // Empty if the object gives no such memory.
  Buffer(nanobind::handle array, Access access) {
    if (PyObject_GetBuffer(array.ptr(), &view_, static_cast<int>(access)) == 0) return;
    PyErr_Clear();
    view_.obj = nullptr;
  }
  // After it only the data may be asked for: of some objects the shape lies in the view itself.
  Buffer(Buffer&& other) noexcept : view_(std::exchange(other.view_, Py_buffer{})) {}
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer() { PyBuffer_Release(&view_); }

  explicit operator bool() const { return view_.obj != nullptr; }
  template <class T>
  T* data() const {
    return static_cast<T*>(view_.buf);
  }
  // The size of its first axis; 0 without one.
  int64_t rows() const { return view_.ndim > 0 ? view_.shape[0] : 0; }
  bool overlaps(const Buffer& other) const {
    const auto *mine = data<std::byte>(), *its = other.data<std::byte>();
    return mine < its + other.view_.len && its < mine + view_.len;
  }
  // Whether it has this shape and type, the code of `struct`.
  bool is(std::span<const int64_t> shape, char type) const {
    if (view_.obj == nullptr || view_.format == nullptr || view_.format[0] != type || view_.format[1] != 0)
      return false;
    return std::ranges::equal(std::span(view_.shape, static_cast<size_t>(view_.ndim)), shape);
  }

 private:
  Py_buffer view_{};
};

// A list of nodes of Python. Throws nanobind::cast_error.
std::vector<PassedNode> passed_nodes(const nanobind::list& list);

// The nodes, whose inputs and arrays stay where they were passed. Throws std::invalid_argument.
std::vector<ProgramNode> nodes_of(const std::vector<PassedNode>& passed);

// The rows of program_table.h that a flag is set for: the inputs, the arrays, the number, the whole numbers and the shapes
// by name.
nanobind::dict operations_with(bool ProgramOpRow::* flag);

}  // namespace cellerate
