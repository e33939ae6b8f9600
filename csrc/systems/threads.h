// The project's own threads: a pool of sleeping workers, and a barrier for them.
//
// The project has its own because the OpenMP runtimes of TensorFlow and torch fight over the cores when both are
// loaded, and a kernel that waits at a barrier on XLA's pool can wait for a thread that never comes.
//
// Kernels compiled for other instruction sets include this header, so it must not define inline code: the linker
// would keep one copy for all of them, perhaps one that this processor cannot run.
#pragma once

namespace cellerate {

class Pool;

// The number of threads that a kernel should use: set by set_thread_count(), else CELLERATE_THREADS, else one per
// physical core that this process may run on, or fewer if a control group allows less time.
// Throws std::invalid_argument if CELLERATE_THREADS is not a whole number from 1 to 1024.
int thread_count();

// Sets thread_count(), and ends the workers beyond it. Waits while another thread runs parallel().
// Throws std::invalid_argument unless 1 <= n <= 1024, std::logic_error inside a body of parallel().
void set_thread_count(int n);

// Calls body(context, index, count) for each index in [0, count), all at the same time: 0 on the calling thread, the
// others on workers, which are started when first needed. Returns when all have ended; then everything they wrote is
// visible to the caller. Bodies must not throw. If a second thread calls, it waits until the first is done. Inside a
// body, only a count of 1 is allowed. `again_soon` is for calls that often follow each other within some hundred
// microseconds, as in a program that asks for one result after the other. Workers then stay awake for this time, and
// yield their cores only to other programs. Not for training, where the framework's own threads need the cores. Throws,
// before any body runs, std::system_error if a worker cannot be started and std::logic_error if called inside a body
// with a count above 1.
void parallel(int count, void (*body)(void* context, int index, int count), void* context,
              bool again_soon = false);

// Whether this thread runs a body of parallel() or a part of a crew, where a further call may have only one thread.
bool inside_parallel();

// The threads of one with_crew(): the caller, and the workers that are there.
//
// No part waits for a worker without a core: another program may hold the core for milliseconds, or the system may have
// woken the worker on the caller's own core, behind the caller. The first thread to take a part runs it, and the caller
// takes every part that is left. Only a worker that loses its core in the middle of a part makes the others wait.
class Crew {
 public:
  // Calls part(context, n) once for each n in [0, parts), some at the same time, and returns when all have ended; then
  // everything they wrote is visible to the caller, and to later parts. Thread k of `count` begins with part k, then
  // takes k + count and so on, and then parts that others have left, so that a thread finds its data in its own cache.
  // There should be at least as many parts as threads. Parts must not throw.
  void each(int parts, void (*part)(void* context, int n), void* context);

 private:
  friend class Pool;
  friend void with_crew(int count, void (*lead)(void* context, Crew& crew), void* context);
  explicit Crew(Pool* pool) noexcept;
  Pool* const pool_;  // null for the caller alone
};

// Calls lead(context, crew) on the calling thread, with up to count - 1 workers for the parts of the crew. If a
// second thread calls, or calls parallel(), it waits until the first is done. Inside, only a count of 1 is allowed.
// Throws as parallel().
void with_crew(int count, void (*lead)(void* context, Crew& crew), void* context);

// Whether another program wants the cores: lately, in two calls in a row, a worker had no core in the middle of a part
// for a tenth of the call or more. Then short calls are faster on the caller alone, and long calls in small parts. It
// stays true for a multiple of the lost time, so that trying again costs little.
bool cores_are_wanted();

// Which calls of layers use several threads. Tests set it to run small calls on threads; it never changes results.
enum class Sharing {
  kByWork,       // calls that threads make faster
  kAlways,       // all calls that can
  kAlwaysPieces  // all calls that can, in as many pieces as while other programs want the cores
};
Sharing sharing();
void set_sharing(Sharing sharing);

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
  alignas(128) unsigned phase_ = 0;  // how often all threads have met
};

// Lets threads wait for the progress of another thread. It spins, then yields the core, and never sleeps, like Barrier.
class Progress {
 public:
  Progress() noexcept = default;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Publishes the progress `done`, which never decreases. Threads that wait for it see everything written before.
  void publish(long done) noexcept;
  void wait_for(long done) const noexcept;

 private:
  alignas(128) long done_ = 0;
  alignas(128) char end_ = 0;  // keeps other data off the cache lines of done_
};

}  // namespace cellerate
