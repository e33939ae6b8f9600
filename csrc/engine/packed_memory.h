// Memory for weights that are packed once and then read from end to end at every step.
#pragma once

#include <cstddef>
#include <memory>

namespace cellerate {

struct FreePacked {
  void operator()(std::byte* memory) const;
};
using PackedMemory = std::unique_ptr<std::byte, FreePacked>;

// At least `bytes` bytes: whole huge pages for large blocks, else whole cache lines. Throws std::bad_alloc.
PackedMemory packed_memory(size_t bytes);

}  // namespace cellerate
