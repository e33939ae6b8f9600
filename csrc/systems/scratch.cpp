#include "systems/scratch.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace cellerate {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

struct Block {
  std::byte* data;
  size_t bytes;
};

// The kept blocks: as many as the most calls that ran at the same time.
struct Kept {
  std::mutex mutex;
  std::vector<Block> blocks;
  size_t in_use = 0;
};

Kept& kept() {
  // Never destroyed: a daemon thread may still compute while the process ends.
  static Kept* const all = new Kept;
  return *all;
}

}  // namespace

Scratch::Scratch(size_t bytes) {
  Block block{nullptr, 0};
  {
    const std::lock_guard lock(kept().mutex);
    auto& blocks = kept().blocks;
    // Reserves room for all blocks, so that giving one back cannot fail.
    blocks.reserve(blocks.size() + kept().in_use + 1);
    ++kept().in_use;
    if (!blocks.empty()) {
      block = blocks.back();
      blocks.pop_back();
    }
  }
  if (block.bytes < bytes) {
    std::free(block.data);
    // Whole huge pages, if the system gives them on request: packed weights are read from end to end at every step,
    // and with small pages the processor would have to translate thousands of addresses.
    const size_t grain = bytes < kHugePage ? 64 : kHugePage;
    block.bytes = (bytes + grain - 1) / grain * grain;
    block.data = static_cast<std::byte*>(std::aligned_alloc(grain, block.bytes));
    if (block.data == nullptr) {
      const std::lock_guard lock(kept().mutex);
      --kept().in_use;
      throw std::bad_alloc();
    }
    use_huge_pages(block.data, block.bytes);
  }
  data_ = block.data;
  bytes_ = block.bytes;
}

Scratch::~Scratch() {
  const std::lock_guard lock(kept().mutex);
  --kept().in_use;
  kept().blocks.push_back({data_, bytes_});
}

void use_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#ifdef __linux__
  // Only pages that are entirely in the array. A system without huge pages ignores the advice.
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) / kHugePage * kHugePage;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / kHugePage * kHugePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace cellerate
