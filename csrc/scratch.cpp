#include "scratch.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace cellerate {
namespace {

struct Block {
  std::byte* data;
  size_t bytes;
};

// One block for each thread that ever called at the same time as others.
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
    // Room for all of them, so that giving one back cannot fail.
    blocks.reserve(blocks.size() + kept().in_use + 1);
    ++kept().in_use;
    if (!blocks.empty()) {
      block = blocks.back();
      blocks.pop_back();
    }
  }
  if (block.bytes < bytes) {
    std::free(block.data);
    // Whole huge pages, where the system has them for the asking: packed weights are read from end to end at every
    // step, and with small pages the processor would look up thousands of addresses.
    constexpr size_t kHugePage = size_t{2} << 20;
    const size_t grain = bytes < kHugePage ? 64 : kHugePage;
    block.bytes = (bytes + grain - 1) / grain * grain;
    block.data = static_cast<std::byte*>(std::aligned_alloc(grain, block.bytes));
    if (block.data == nullptr) {
      const std::lock_guard lock(kept().mutex);
      --kept().in_use;
      throw std::bad_alloc();
    }
#ifdef __linux__
    if (grain == kHugePage) madvise(block.data, block.bytes, MADV_HUGEPAGE);
#endif
  }
  data_ = block.data;
  bytes_ = block.bytes;
}

Scratch::~Scratch() {
  const std::lock_guard lock(kept().mutex);
  --kept().in_use;
  kept().blocks.push_back({data_, bytes_});
}

}  // namespace cellerate
