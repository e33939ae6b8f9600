// Working memory of the kernels, kept from call to call.
//
// A training step needs the same tens of megabytes again and again, and the operating system would clear fresh memory
// page by page each time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cellerate {

// A block of memory for one call, aligned to 64 bytes, its contents unspecified.
class Scratch {
 public:
  // Takes a kept block of at least `bytes`, or allocates one. Throws std::bad_alloc.
  explicit Scratch(size_t bytes);
  // Keeps the block for the next call.
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// Asks the system for huge pages for an array that is about to be written, where it has no pages yet. If a framework
// gives fresh memory at each step, clearing it in small pages costs as much as the arithmetic.
void use_huge_pages(void* data, size_t bytes);

// Lays out arrays one after another, each on a new cache line: first without memory, to count the bytes, then with it.
class Layout {
 public:
  explicit Layout(std::byte* base) : base_(base) {}

  template <class T>
  T* take(int64_t count) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + bytes_;
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(at);
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  size_t bytes_ = 0;
};

// The memory of one call. It calls place(layout) twice: first to count the bytes, then to place the arrays.
class Workspace {
 public:
  template <class Place>
  explicit Workspace(const Place& place) : scratch_(bytes_of(place)) {
    Layout layout(scratch_.data());
    place(layout);
  }

 private:
  template <class Place>
  static size_t bytes_of(const Place& place) {
    Layout layout(nullptr);
    place(layout);
    return layout.bytes();
  }

  const Scratch scratch_;
};

}  // namespace cellerate
