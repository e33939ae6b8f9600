#include "engine/packed_memory.h"

#include <cstdlib>
#include <new>

#include "systems/scratch.h"

namespace cellerate {

void FreePacked::operator()(std::byte* memory) const { std::free(memory); }

PackedMemory packed_memory(size_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t grain = bytes < kHugePage / 2 ? 64 : kHugePage;
  const size_t whole = (bytes + grain - 1) / grain * grain;
  PackedMemory memory(static_cast<std::byte*>(std::aligned_alloc(grain, whole)));
  if (memory == nullptr) throw std::bad_alloc();
  use_huge_pages(memory.get(), whole);
  return memory;
}

}  // namespace cellerate
