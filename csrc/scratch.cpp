#include "scratch.h"

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
    if (!blocks.empty()) {
      block = blocks.back();
      blocks.pop_back();
    }
  }
  if (block.bytes < bytes) {
    std::free(block.data);
    block.bytes = (bytes + 63) / 64 * 64;
    block.data = static_cast<std::byte*>(std::aligned_alloc(64, block.bytes));
    if (block.data == nullptr) throw std::bad_alloc();
  }
  data_ = block.data;
  bytes_ = block.bytes;
}

Scratch::~Scratch() {
  const std::lock_guard lock(kept().mutex);
  kept().blocks.push_back({data_, bytes_});
}

}  // namespace cellerate
