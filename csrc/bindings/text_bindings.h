// Adds the next-token chain to the module; bindings.cpp calls it.
#pragma once

#include <nanobind/nanobind.h>

namespace cellerate {

void bind_texts(nanobind::module_& module);

}  // namespace cellerate
