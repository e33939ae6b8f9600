// Work for a crew of threads as functions.
#pragma once

#include <cstdint>

#include "systems/threads.h"

namespace cellerate {

// Calls part(n) for each n in [0, parts) on the threads of a crew.
template <class Part>
void each(Crew& crew, int64_t parts, const Part& part) {
  const auto call = [](void* context, int n) { (*static_cast<const Part*>(context))(n); };
  crew.each(static_cast<int>(parts), call, const_cast<Part*>(&part));
}
template <class Lead>
void with_threads(int count, const Lead& lead) {
  with_crew(
      count, [](void* context, Crew& crew) { (*static_cast<const Lead*>(context))(crew); },
      const_cast<Lead*>(&lead));
}

// Whole cache lines.
constexpr int64_t round_up(int64_t floats) { return (floats + 15) / 16 * 16; }

}  // namespace cellerate
