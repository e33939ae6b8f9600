// The nodes of a program as Python passes them; program_bindings.cpp and training_bindings.cpp take them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "engine/program.h"
#include "engine/program_table.h"

namespace cellerate {

using ProgramWeights =
    std::optional<nanobind::ndarray<const float, nanobind::c_contig, nanobind::device::cpu>>;
using ActivationCodes = std::vector<int64_t>;  // its code, and the bits of its parameters
// op; inputs and arrays in the order of its row; activation, recurrent_activation, normalizer, masked_output;
// go_backwards, return_sequences, ids, cell; number
using PassedNode =
    std::tuple<std::string, std::vector<int32_t>, std::tuple<ProgramWeights, ProgramWeights, ProgramWeights>,
               std::tuple<ActivationCodes, ActivationCodes, std::string, std::string>,
               std::tuple<bool, bool, bool, bool>, float>;

// What a call has in common with others of the same shapes.
struct ProgramSizes {
  std::vector<ValueShape> shapes;
  std::vector<int64_t> begins;
};

// A list of nodes of Python. Throws nanobind::cast_error.
std::vector<PassedNode> passed_nodes(const nanobind::list& list);

// The nodes, whose inputs and arrays stay where they were passed. Throws std::invalid_argument.
std::vector<ProgramNode> nodes_of(const std::vector<PassedNode>& passed);

// The rows of program_table.h that a flag is set for: the inputs, the arrays, the number and the shapes by name.
nanobind::dict operations_with(bool ProgramOpRow::* flag);

}  // namespace cellerate
