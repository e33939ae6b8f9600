// The parts of the Python module in the files beside bindings.cpp.
#pragma once

#include <nanobind/nanobind.h>

namespace cellerate {

void bind_programs(nanobind::module_& module);
void bind_texts(nanobind::module_& module);
void bind_training(nanobind::module_& module);

}  // namespace cellerate
