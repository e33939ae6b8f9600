// What program_bindings.cpp adds to the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace cellerate {

void bind_programs(nanobind::module_& module);

}  // namespace cellerate
