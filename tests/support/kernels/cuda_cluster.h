// The threads of a GPU on one thread of the CPU: clusters, blocks and warps of fibers, and their barriers and copies.
//
// Each thread of the grid is a fiber. Where threads wait for one another (barriers, products of a warp), a fiber yields
// to the others, warp after warp in random order; copies between blocks arrive some time after they are started, and
// read their source only then. So a kernel that relies on an order that no barrier enforces computes wrong numbers, and
// one whose barriers never open ends with an error in place of a hang.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

namespace cellerate::gpu {

struct Bfloat16 {
  unsigned short bits;
};
struct Float16 {
  unsigned short bits;
};
struct Tf32 {
  float value;
};
struct Barrier {
  unsigned long long state;
};

namespace emulated {

// A meeting of threads: all wait until the last has come, which does the work for all.
class Meeting {
 public:
  explicit Meeting(int size) : size_(size) {}
  template <class Wait, class Work>
  void come(const Wait& wait, const Work& work) {
    const long mine = round_;
    if (++arrived_ < size_) {
      wait([&] { return round_ != mine; });
      return;
    }
    work();
    arrived_ = 0;
    ++round_;
  }

 private:
  int size_, arrived_ = 0;
  long round_ = 0;
};

struct Lane {
  float in = 0, out = 0;
  unsigned long long word = 0;
  const void* row = nullptr;
  unsigned a[4], b[2], parts[4];
  float sum[4];
};

// A thread's part of a wide product that has begun.
struct WideProduct {
  float (*sums)[4];
  const unsigned* a;    // the words of the weights, or null
  const void* weights;  // or their address in shared memory
  const void* rows;
  void (*make)(struct Warp&, size_t product);
};

struct Warp {
  Meeting meeting{32};
  Lane lanes[32];
  // The wide products that have begun, by lane, and their number in each group that has ended.
  bool begun = false;
  std::vector<WideProduct> products[32];
  std::deque<size_t> groups;
};

struct Block {
  Block(int index, int rank, int threads, int shared_bytes)
      : index(index), rank(rank), meeting(threads), warps(threads / 32) {
    // NaNs, so that reading memory before it is written shows.
    memory.assign(shared_bytes + 1024, 0xff);
    shared = memory.data() + (1024 - reinterpret_cast<uintptr_t>(memory.data()) % 1024);
  }
  int index, rank;
  Meeting meeting;
  std::vector<Warp> warps;
  std::vector<unsigned char> memory;
  unsigned char* shared;
};

struct BarrierState {
  int arrivals = 1;
  long phase = 0, bytes = 0;
  int arrived = 0;
};

struct Copy {
  unsigned char* to;
  const unsigned char* from;
  int bytes;
  Barrier* barrier;                   // counts the bytes; may be null
  bool* done = nullptr;               // set to true on arrival; may be null
  int rounds = 0;                     // until it arrives
  std::array<unsigned, 4> held = {};  // the words to store if `from` is null
};

// One cluster: clusters share nothing, so they run one after the other.
class Cluster {
 public:
  Cluster(int first_block, int blocks, int threads, int shared_bytes, unsigned seed)
      : threads_(threads), meeting(blocks * threads), random_(seed) {
    for (int rank = 0; rank < blocks; ++rank) {
      this->blocks.push_back(std::make_unique<Block>(first_block + rank, rank, threads, shared_bytes));
    }
  }

  // Runs the body on every thread until all have ended.
  void run(const std::function<void()>& body) {
    body_ = &body;
    fibers_ = std::vector<Fiber>(blocks.size() * threads_);
    const std::unique_ptr<unsigned char[]> stacks(new unsigned char[fibers_.size() * kStack]);
    for (size_t n = 0; n < fibers_.size(); ++n) {
      ucontext_t& context = fibers_[n].context;
      getcontext(&context);
      context.uc_stack.ss_sp = stacks.get() + n * kStack;
      context.uc_stack.ss_size = kStack;
      context.uc_link = &scheduler_;
      makecontext(&context, reinterpret_cast<void (*)()>(&Cluster::enter), 0);
    }
    std::vector<size_t> order(fibers_.size() / 32);
    for (size_t n = 0; n < order.size(); ++n) order[n] = n;
    size_t ended = 0;
    for (long idle = 0; ended < fibers_.size(); ++idle) {
      if (idle > kPatience) throw std::runtime_error("the kernel hangs: all its threads wait");
      std::shuffle(order.begin(), order.end(), random_);
      for (const size_t warp : order) {
        for (size_t n = warp * 32; n < warp * 32 + 32; ++n) {
          Fiber& fiber = fibers_[n];
          if (fiber.ended || (fiber.ready && !fiber.ready())) continue;
          idle = 0;
          current_ = n;
          active = this;
          swapcontext(&scheduler_, &fiber.context);
          if (fiber.error) std::rethrow_exception(fiber.error);
          ended += fiber.ended;
        }
      }
      deliver();
    }
    if (!copies_.empty()) throw std::runtime_error("a block has ended before a copy to it came");
  }

  int thread() const { return static_cast<int>(current_ % threads_); }
  Block& block() { return *blocks[current_ / threads_]; }
  Warp& warp() { return block().warps[thread() / 32]; }
  Lane& lane() { return warp().lanes[thread() % 32]; }

  // Lets the other fibers run until `ready`.
  void wait(const std::function<bool()>& ready) {
    if (ready()) return;
    const size_t mine = current_;
    fibers_[mine].ready = ready;
    swapcontext(&fibers_[mine].context, &scheduler_);
    fibers_[mine].ready = nullptr;
  }
  // All lanes of the warp provide a value, and the last lane computes for all.
  template <class Work>
  void meet_warp(const Work& work) {
    Warp& mine = warp();
    mine.meeting.come([this](const auto& ready) { wait(ready); }, [&] { work(mine.lanes); });
  }
  void meet_block() {
    block().meeting.come([this](const auto& ready) { wait(ready); }, [] {});
  }
  void meet_cluster() {
    meeting.come([this](const auto& ready) { wait(ready); }, [] {});
  }

  // Most copies take little time, and some take as long as a whole step of the other threads.
  void start(Copy copy) {
    copy.rounds = static_cast<int>(random_() % 16 == 0 ? random_() % kLongestCopy : random_() % 3);
    copies_.push_back(copy);
  }
  BarrierState& state(const Barrier* barrier) { return barriers_.at(barrier); }
  void make(const Barrier* barrier, int arrivals) { barriers_[barrier] = {arrivals}; }
  void arrive(const Barrier* barrier, int bytes) {
    BarrierState& found = state(barrier);
    found.bytes += bytes;
    if (++found.arrived > found.arrivals)
      throw std::runtime_error("more arrive at a barrier than it expects");
    advance(found);
  }
  void advance(BarrierState& barrier) {
    if (barrier.arrived == barrier.arrivals && barrier.bytes == 0) {
      barrier.arrived = 0;
      ++barrier.phase;
    }
  }

  static inline Cluster* active = nullptr;

 private:
  static constexpr size_t kStack = 64 << 10;
  static constexpr long kLongestCopy = 100, kPatience = 2 * kLongestCopy;

  struct Fiber {
    ucontext_t context;
    std::function<bool()> ready;
    std::exception_ptr error;
    bool ended = false;
  };

  static void enter() {
    Fiber& fiber = active->fibers_[active->current_];
    try {
      (*active->body_)();
    } catch (...) {
      fiber.error = std::current_exception();
    }
    fiber.ended = true;
  }

  void deliver() {
    for (size_t left = copies_.size(); left > 0; --left) {
      Copy copy = copies_.front();
      copies_.pop_front();
      if (copy.rounds-- > 0) {
        copies_.push_back(copy);
        continue;
      }
      std::memcpy(copy.to, copy.from != nullptr ? copy.from : static_cast<void*>(copy.held.data()),
                  copy.bytes);
      if (copy.done != nullptr) *copy.done = true;
      if (copy.barrier == nullptr) continue;
      BarrierState& barrier = state(copy.barrier);
      barrier.bytes -= copy.bytes;
      advance(barrier);
    }
  }

  int threads_;

 public:
  std::vector<std::unique_ptr<Block>> blocks;
  Meeting meeting;

 private:
  std::mt19937 random_;
  const std::function<void()>* body_ = nullptr;
  std::vector<Fiber> fibers_;
  ucontext_t scheduler_;
  size_t current_ = 0;
  std::deque<Copy> copies_;
  std::map<const Barrier*, BarrierState> barriers_;
};

inline Cluster& here() { return *Cluster::active; }

// Runs a kernel on a grid of clusters.
inline void launch(int clusters, int blocks, int threads, int shared_bytes, unsigned seed,
                   const std::function<void()>& kernel) {
  for (int n = 0; n < clusters; ++n) {
    Cluster(n * blocks, blocks, threads, shared_bytes, seed + n).run(kernel);
  }
}

}  // namespace emulated

}  // namespace cellerate::gpu
