// Arguments from Python: the memory of arrays, and the nodes of a program.
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
using ActivationCodes = std::vector<int64_t>;  // the code of the activation, and the bits of its parameters
// op; inputs and arrays in the order of its row; activation, recurrent_activation, normalizer, masked_output;
// go_backwards, return_sequences, ids, cell; number; whole numbers
using PassedNode =
    std::tuple<std::string, std::vector<int32_t>, std::tuple<ProgramWeights, ProgramWeights, ProgramWeights>,
               std::tuple<ActivationCodes, ActivationCodes, std::string, std::string>,
               std::tuple<bool, bool, bool, bool>, float, std::vector<int64_t>>;

// The parts that calls with the same shapes share.
struct ProgramSizes {
  std::vector<ValueShape> shapes;
  std::vector<int64_t> begins;
};

// The memory of an array, which stays valid while this object lives. nanobind's own type would take NumPy's arrays by
// DLPack, which costs 0.1 µs more for each array.
class Buffer {
 public:
  enum class Access : int { kRead = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT, kWrite = kRead | PyBUF_WRITABLE };

  // Empty if the object does not provide such memory.
  Buffer(nanobind::handle array, Access access) {
    if (PyObject_GetBuffer(array.ptr(), &view_, static_cast<int>(access)) == 0) return;
    PyErr_Clear();
    view_.obj = nullptr;
  }
  // After a move only the data is valid, because the shape of some objects is inside the moved view.
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
  // Whether the array has this shape and type, a code of Python's `struct`.
  bool is(std::span<const int64_t> shape, char type) const {
    if (view_.obj == nullptr || view_.format == nullptr || view_.format[0] != type || view_.format[1] != 0)
      return false;
    return std::ranges::equal(std::span(view_.shape, static_cast<size_t>(view_.ndim)), shape);
  }

 private:
  Py_buffer view_{};
};

// Converts a Python list of nodes. Throws nanobind::cast_error.
std::vector<PassedNode> passed_nodes(const nanobind::list& list);

// The nodes; their inputs and arrays point into `passed`. Throws std::invalid_argument.
std::vector<ProgramNode> nodes_of(const std::vector<PassedNode>& passed);

// The rows of program_table.h for which `flag` is set; by name: inputs, arrays, number, whole numbers and shapes.
nanobind::dict operations_with(bool ProgramOpRow::* flag);

}  // namespace cellerate
