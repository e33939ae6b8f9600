// The project's own threads: a pool of sleeping workers, and a barrier for them.
//
// The project has its own because the OpenMP runtimes of TensorFlow and torch fight over the cores when both are
// loaded, and a kernel that waits at a barrier on XLA's pool can wait for a thread that never comes.
//
// Kernels compiled for other instruction sets include this header, so it must not define inline code: the linker
// would keep one copy for all of them, perhaps one that this processor cannot run.
#pragma once

namespace cellerate {

// How many threads a kernel should ask for: as set by set_thread_count(), else CELLERATE_THREADS, else one per
// physical core that this process may run on, or fewer if a control group allows less time than that.
// Throws std::invalid_argument if CELLERATE_THREADS is not a whole number from 1 to 1024.
int thread_count();

// Sets thread_count(), and ends the workers beyond it. Waits while another thread runs parallel().
// Throws std::invalid_argument unless 1 <= n <= 1024, std::logic_error inside a body of parallel().
void set_thread_count(int n);

// Calls body(context, index, count) for each index in [0, count), all at the same time: 0 on the calling thread, the
// others on workers, which are started when first needed. Returns when all have ended; then everything they wrote is
// visible to the caller. Bodies must not throw. If a second thread calls, it waits until the first is done. Inside a
// body, only a count of 1 is allowed.
// `again_soon` says that such calls often follow each other within some hundred microseconds, as those of a program that
// asks for one result after the other do: then workers stay awake for so long, and leave their cores only to whoever
// wants them. In training, the framework's own threads do want them.
// Throws, before any body runs, std::system_error if a worker cannot be started and std::logic_error if called
// inside a body with a count above 1.
void parallel(int count, void (*body)(void* context, int index, int count), void* context,
              bool again_soon = false);

// Lets `count` threads wait for each other, any number of times. After wait(), a thread can read what the others
// wrote before it. It spins, then yields the core, and never sleeps: it is for waits of microseconds inside
// parallel().
class Barrier {
 public:
  explicit Barrier(int count) noexcept;
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;

  void wait() noexcept;

 private:
  // On separate pairs of cache lines, because processors fetch lines of 64 bytes in pairs.
  alignas(128) const int count_;
  alignas(128) int arrived_ = 0;
  alignas(128) unsigned phase_ = 0;  // how often all have met
};

// Lets threads wait until another one has come so far. It spins, then yields the core, and never sleeps, as above.
class Progress {
 public:
  Progress() noexcept = default;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Says that `done` is reached, which never goes down; what the thread wrote before is visible to who waits for it.
  void publish(long done) noexcept;
  void wait_for(long done) const noexcept;

 private:
  alignas(128) long done_ = 0;
  alignas(128) char end_ = 0;  // nothing else lies on its cache lines
};

}  // namespace cellerate
