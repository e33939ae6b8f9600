#include "systems/threads.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "systems/processors.h"

namespace cellerate {
namespace {

using Body = void (*)(void* context, int index, int count);

// Long enough to bridge the gap between two products of a layer, short enough to leave the cores to others.
constexpr std::chrono::microseconds kSpin{20};
// How long a caller stays awake for workers that are about to finish: on a virtual machine, waking it would take 40 µs.
constexpr std::chrono::microseconds kCallerPatience{200};
// How long a worker stays awake for a likely next call.
constexpr std::chrono::microseconds kWorkerPatience{200};
// The threads of one step arrive within this many pauses, unless one of them has no core of its own.
constexpr int kBarrierPauses = 500;
// A wait for a worker of more pauses than this, some 25 µs, is checked for a worker without a core.
constexpr int kLongWait = 1000;
// After a call loses time because a worker has no core, calls avoid threads for this multiple of the lost time; twice
// as long after each further loss in a row, up to kLongestCaution.
constexpr int kCaution = 30;
constexpr std::chrono::nanoseconds kLongestCaution = std::chrono::seconds(1);

// Tells the core that this is a spin loop.
inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Waits until `value` is no longer `old`: spins for kSpin, yields until `patience` is over, then sleeps.
template <class Value>
void wait_while(const std::atomic<Value>& value, Value old, std::chrono::microseconds patience) {
  const auto start = std::chrono::steady_clock::now();
  for (auto waited = start - start; waited < patience; waited = std::chrono::steady_clock::now() - start) {
    for (int i = 0; i < 32; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause();
    }
    if (waited > kSpin) std::this_thread::yield();
  }
  value.wait(old, std::memory_order_acquire);
}

// Spins until condition() holds; after kBarrierPauses, more than running threads need, it yields between checks.
template <class Condition>
void spin_until(Condition condition) {
  for (int i = 0; !condition(); ++i) {
    if (i < kBarrierPauses) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

// Set while this thread runs a body of a parallel() or with_crew() with several threads.
thread_local bool inside_body = false;

// Remembers whether other programs want the cores, for the whole process. All threads may use it.
class Caution {
  using Clock = std::chrono::steady_clock;

 public:
  bool holds() const { return now() < until_.load(kRelaxed); }

  // Records that a call of length `taken` lost the time `lost` because a worker had no core. A single loss may come
  // from the system itself, so caution needs two such calls in a row, or one soon after the last caution.
  void note(Clock::duration taken, std::chrono::nanoseconds lost) {
    if (lost * 10 < taken) return;
    const int64_t time = now(), until = until_.load(kRelaxed), before = caution_.load(kRelaxed);
    const bool again = time < until + before;
    const bool suspected = time < suspected_until_.load(kRelaxed);
    const int64_t least = kCaution * lost.count();
    suspected_until_.store(time + least, kRelaxed);
    if (!again && !suspected) return;
    const int64_t caution =
        std::min<int64_t>(std::max(least, again ? 2 * before : 0), kLongestCaution.count());
    caution_.store(caution, kRelaxed);
    until_.store(time + caution, kRelaxed);
  }

 private:
  static int64_t now() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }
  static constexpr auto kRelaxed = std::memory_order_relaxed;
  std::atomic<int64_t> until_{0}, suspected_until_{0}, caution_{0};  // nanoseconds
};
Caution caution;

// The processor time of a thread.
std::chrono::nanoseconds time_of(clockid_t clock) {
  timespec used{};
  clock_gettime(clock, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

}  // namespace

class Pool {
  using Clock = std::chrono::steady_clock;
  using Part = void (*)(void* context, int n);

 public:
  void run(int count, Body body, void* context, bool again_soon) {
    const std::lock_guard lock(mutex_);
    start(count - 1);
    body_ = body;
    context_ = context;
    count_ = count;
    patience_ = again_soon ? kWorkerPatience : kSpin;
    running_.store(count - 1, std::memory_order_relaxed);
    for (int i = 0; i < count - 1; ++i) workers_[i]->call(kRun);
    inside_body = true;
    body(context, 0, count);
    inside_body = false;
    for (int left = count - 1; left > 0; left = running_.load(std::memory_order_acquire)) {
      wait_while(running_, left, kCallerPatience);
    }
  }

  void lead(int count, void (*lead)(void* context, Crew& crew), void* context) {
    const std::lock_guard lock(mutex_);
    start(count - 1);
    threads_.store(count, std::memory_order_release);
    lost_ = {};
    const auto begin = Clock::now();
    phase_.store((phase_.load(std::memory_order_relaxed) & ~kState) | kBetween, std::memory_order_release);
    for (int i = 0; i < count - 1; ++i) workers_[i]->call(kHelp);
    inside_body = true;
    Crew crew(this);
    lead(context, crew);
    inside_body = false;
    phase_.store((phase_.load(std::memory_order_relaxed) & ~kState) | kClosed, std::memory_order_release);
    if (lost_.count() > 0) caution.note(Clock::now() - begin, lost_);
  }

  // Crew::each() of the caller of lead().
  void each(int parts, Part part, void* context) {
    if (parts > kMostParts) {
      for (int n = 0; n < parts; ++n) part(context, n);
      return;
    }
    const uint64_t phase = (phase_.load(std::memory_order_relaxed) & ~kState) + kNextPhase;
    // phase_ is kBetween: a worker that reads a new value below rereads phase_, and sees kBetween or a later state.
    parts_.store(parts, std::memory_order_release);
    part_.store(part, std::memory_order_release);
    part_context_.store(context, std::memory_order_release);
    done_.store(0, std::memory_order_relaxed);
    phase_.store(phase | kOpen, std::memory_order_release);
    const int mine = take_parts(phase, 0, threads_.load(std::memory_order_relaxed), parts, part, context);
    const auto all_done = [&] { return done_.load(std::memory_order_acquire) == parts - mine; };
    for (int i = 0; i < kLongWait && !all_done(); ++i) pause();
    if (!all_done()) wait_long(all_done);
    phase_.store(phase | kBetween, std::memory_order_release);
  }

  // Ends the workers beyond the first `count`.
  void shrink(int count) {
    const std::lock_guard lock(mutex_);
    while (workers_.size() > static_cast<size_t>(count)) {
      workers_.back()->call(kEnd);
      workers_.back()->thread.join();
      workers_.pop_back();
    }
  }

  Pool* next = nullptr;  // in the list of pools left behind by a fork

 private:
  // The states of phase_, in its last bits. A helper may sleep at any time, and miss changes.
  static constexpr uint64_t kOpen = 0, kBetween = 1, kClosed = 2, kState = 3, kNextPhase = 4;
  // The reasons to call a worker. The caller waits only for kRun, so a worker can miss only a kHelp.
  enum Call : uint32_t { kRun = 1, kHelp = 2, kEnd = 3, kWhat = 3, kNextCall = 4 };
  static constexpr int kMostParts = 4 * kMaxThreads;

  struct alignas(128) Worker {
    // Counts the calls, so that a worker can wait for a change; the last bits have the reason for the last call.
    std::atomic<uint32_t> calls{0};
    std::atomic<bool> in_part{false};
    std::thread thread;
    clockid_t clock{};
    // Set by a waiting caller: whether it waits for this worker, and the worker's processor time before the wait.
    bool watched = false;
    std::chrono::nanoseconds before{};

    void call(Call what) {
      const uint32_t before = calls.load(std::memory_order_relaxed);
      // Sequentially consistent, because notify_one() may skip waking only if the sleeper will see the new value.
      calls.store((before & ~kWhat) + kNextCall + what, std::memory_order_seq_cst);
      calls.notify_one();
    }
  };
  // The last phase in which a thread took a part.
  struct alignas(128) Taken {
    std::atomic<uint64_t> phase{0};
  };

  // Takes part n, unless another thread has in this phase. Late threads take none: a phase ends with all parts taken.
  bool take(int n, uint64_t phase) {
    uint64_t last = taken_[n].phase.load(std::memory_order_relaxed);
    return last < phase && taken_[n].phase.compare_exchange_strong(last, phase, std::memory_order_relaxed);
  }

  // Takes and runs parts of a phase as thread `index`; returns how many.
  int take_parts(uint64_t phase, int index, int count, int parts, Part part, void* context) {
    int done = 0;
    const auto try_to = [&](int n) {
      if (!take(n, phase)) return;
      part(context, n);
      ++done;
      if (index > 0) done_.fetch_add(1, std::memory_order_release);
    };
    for (int n = index; n < parts; n += count) try_to(n);
    for (int n = 0; n < parts; ++n) {
      if (n % count != index) try_to(n);
    }
    return done;
  }

  // Waits for workers in the middle of a part, and adds up the time that is lost because one of them has no core.
  template <class Condition>
  void wait_long(const Condition& all_done) {
    const int count = threads_.load(std::memory_order_relaxed) - 1;
    const auto begin = Clock::now();
    for (int i = 0; i < count; ++i) {
      Worker& worker = *workers_[i];
      worker.watched = worker.in_part.load(std::memory_order_relaxed);
      if (worker.watched) worker.before = time_of(worker.clock);
    }
    spin_until(all_done);
    const std::chrono::nanoseconds waited = Clock::now() - begin;
    std::chrono::nanoseconds lost{0};
    for (int i = 0; i < count; ++i) {
      const Worker& worker = *workers_[i];
      if (worker.watched) lost = std::max(lost, waited - (time_of(worker.clock) - worker.before));
    }
    // Smaller losses are below the accuracy of the clocks.
    if (lost > std::chrono::microseconds(20)) lost_ += lost;
  }

  // Takes parts of the phases of a lead(), until it ends or needs fewer threads.
  void help(Worker* self, int index) {
    uint64_t seen = kClosed;  // no phase that is open
    for (int idle = 0;;) {
      const uint64_t phase = phase_.load(std::memory_order_acquire);
      if ((phase & kState) == kClosed) return;
      if ((phase & kState) == kBetween || phase == seen) {
        if (++idle < kBarrierPauses) {
          pause();
        } else {
          std::this_thread::yield();
        }
        continue;
      }
      idle = 0;
      const int parts = parts_.load(std::memory_order_acquire),
                count = threads_.load(std::memory_order_acquire);
      const Part part = part_.load(std::memory_order_acquire);
      void* const context = part_context_.load(std::memory_order_acquire);
      // If phase_ is unchanged, all values read above belong to the phase.
      if (phase_.load(std::memory_order_relaxed) != phase) continue;
      if (index >= count) return;
      self->in_part.store(true, std::memory_order_relaxed);
      take_parts(phase, index, count, parts, part, context);
      self->in_part.store(false, std::memory_order_relaxed);
      seen = phase;
    }
  }

  // Makes sure that there are at least `count` workers.
  void start(int count) {
    workers_.reserve(count);
    while (workers_.size() < static_cast<size_t>(count)) {
      auto worker = std::make_unique<Worker>();
      // Workers block all signals: a signal that a worker took would not wake Python's main thread.
      sigset_t all, before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      const int index = static_cast<int>(workers_.size()) + 1;
      try {
        worker->thread = std::thread(&Pool::work, this, worker.get(), index);
        const pthread_t handle = worker->thread.native_handle();
        pthread_getcpuclockid(handle, &worker->clock);
#ifdef __linux__
        pthread_setname_np(handle, ("cellerate-" + std::to_string(index)).c_str());
#endif
      } catch (const std::system_error& error) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw std::system_error(error.code(), "cannot start thread " + std::to_string(index + 1) + " of " +
                                                  std::to_string(count + 1) +
                                                  "; set fewer with CELLERATE_THREADS");
      }
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      workers_.push_back(std::move(worker));
    }
  }

  void work(Worker* self, int index) {
    inside_body = true;
    std::chrono::microseconds patience = kSpin;
    for (uint32_t seen = 0;;) {
      wait_while(self->calls, seen, patience);
      seen = self->calls.load(std::memory_order_acquire);
      const uint32_t what = seen & kWhat;
      if (what == kEnd) return;
      if (what == kHelp) {
        patience = kSpin;
        help(self, index);
        continue;
      }
      patience = patience_;
      body_(context_, index, count_);
      // After this the caller may return and call again, so the worker must not read the job any more.
      if (running_.fetch_sub(1, std::memory_order_seq_cst) == 1) running_.notify_one();
    }
  }

  std::mutex mutex_;  // held while anything below is in use
  std::vector<std::unique_ptr<Worker>> workers_;
  Body body_ = nullptr;
  void* context_ = nullptr;
  int count_ = 0;
  std::chrono::microseconds patience_ = kSpin;
  alignas(128) std::atomic<int> running_{0};  // workers that have not finished the job

  // A phase is one each(); the members up to done_ belong to it.
  alignas(128) std::atomic<uint64_t> phase_{kClosed};
  std::atomic<int> parts_{0}, threads_{0};
  std::atomic<Part> part_{nullptr};
  std::atomic<void*> part_context_{nullptr};
  alignas(128) std::atomic<int> done_{0};  // parts that workers have ended
  std::chrono::nanoseconds lost_{0};       // in this lead(), because workers had no core
  Taken taken_[kMostParts];
};

namespace {

// Nothing here has a destructor, because it would run at the program's end while workers sleep on its memory.
std::atomic<int> chosen_count{0};  // 0 until it is first read or set
std::atomic<Sharing> chosen_sharing{Sharing::kByWork};
std::atomic<Pool*> current{nullptr};
Pool* left_behind = nullptr;

// In the child of a fork, only the thread that forked exists. The pool's workers are gone, and its mutex may be
// locked by a thread that is gone, so the pool is never touched again. It stays in a list, so that it does not count
// as a leak.
void forget_pool() {
  if (Pool* pool = current.exchange(nullptr)) {
    pool->next = left_behind;
    left_behind = pool;
  }
  inside_body = false;
}

const int fork_error = pthread_atfork(nullptr, nullptr, forget_pool);

// Takes no lock, because a fork could leave it locked.
Pool& pool() {
  if (fork_error != 0) throw std::system_error(fork_error, std::generic_category(), "pthread_atfork");
  Pool* found = current.load();
  if (found == nullptr) {
    auto fresh = std::make_unique<Pool>();
    if (current.compare_exchange_strong(found, fresh.get())) found = fresh.release();
  }
  return *found;
}

void refuse_inside_body(const char* what) {
  if (inside_body) {
    throw std::logic_error(std::string(what) +
                           " was called inside a body of parallel(), which would wait for itself");
  }
}

}  // namespace

int thread_count() {
  int count = chosen_count.load();
  if (count == 0) {
    const int fallback = default_thread_count();
    // If another thread has set it meanwhile, that value stays.
    if (chosen_count.compare_exchange_strong(count, fallback)) count = fallback;
  }
  return count;
}

void set_thread_count(int n) {
  if (n < 1 || n > kMaxThreads) {
    throw std::invalid_argument("the number of threads is " + std::to_string(n) + ", expected 1 to " +
                                std::to_string(kMaxThreads));
  }
  refuse_inside_body("set_thread_count()");
  chosen_count.store(n);
  if (Pool* pool = current.load()) pool->shrink(n - 1);
}

void parallel(int count, Body body, void* context, bool again_soon) {
  if (count < 1) return;
  if (count == 1) {
    body(context, 0, 1);
    return;
  }
  refuse_inside_body("parallel()");
  pool().run(count, body, context, again_soon);
}

void with_crew(int count, void (*lead)(void* context, Crew& crew), void* context) {
  if (count <= 1) {
    Crew alone(nullptr);
    lead(context, alone);
    return;
  }
  refuse_inside_body("with_crew()");
  pool().lead(count, lead, context);
}

Crew::Crew(Pool* pool) noexcept : pool_(pool) {}

void Crew::each(int parts, void (*part)(void* context, int n), void* context) {
  if (pool_ != nullptr) return pool_->each(parts, part, context);
  for (int n = 0; n < parts; ++n) part(context, n);
}

bool inside_parallel() { return inside_body; }

bool cores_are_wanted() { return caution.holds(); }

Sharing sharing() { return chosen_sharing.load(std::memory_order_relaxed); }

void set_sharing(Sharing sharing) { chosen_sharing.store(sharing, std::memory_order_relaxed); }

// The compiler's atomics instead of std::atomic: threads.h says why there must be no inline code.
Barrier::Barrier(int count) noexcept : count_(count) {}

void Barrier::wait() noexcept {
  // The phase cannot change before this thread has arrived.
  const unsigned phase = __atomic_load_n(&phase_, __ATOMIC_RELAXED);
  if (__atomic_add_fetch(&arrived_, 1, __ATOMIC_ACQ_REL) == count_) {
    __atomic_store_n(&arrived_, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&phase_, phase + 1, __ATOMIC_RELEASE);
    return;
  }
  spin_until([&] { return __atomic_load_n(&phase_, __ATOMIC_ACQUIRE) != phase; });
}

void Progress::publish(long done) noexcept { __atomic_store_n(&done_, done, __ATOMIC_RELEASE); }

void Progress::wait_for(long done) const noexcept {
  spin_until([&] { return __atomic_load_n(&done_, __ATOMIC_ACQUIRE) >= done; });
}

}  // namespace cellerate
