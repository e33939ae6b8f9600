// Training steps (training/step.h) for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace cellerate {

void bind_training(nanobind::module_& module);

}  // namespace cellerate
