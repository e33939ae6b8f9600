// What bindings.cpp calls to add the next-token chain to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace cellerate {

void bind_steps(nanobind::module_& module);

}  // namespace cellerate
