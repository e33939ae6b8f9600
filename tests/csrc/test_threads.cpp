// The pool: every index at the same time, from several callers, after forks, and quiet while idle.
#include "systems/threads.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "check.h"
#include "forks.h"
#include "workers.h"

namespace {

using cellerate::Barrier;
using cellerate::cores_are_wanted;
using cellerate::Crew;
using cellerate::parallel;
using cellerate::set_thread_count;
using cellerate::thread_count;
using cellerate::with_crew;
using forks::in_child;
using workers::workers_alive;
using workers::workers_left;

// with_crew() and Crew::each() with any callables.
template <class Callable>
void with_crew_of(int count, Callable&& callable) {
  with_crew(count, [](void* context, Crew& crew) { (*static_cast<Callable*>(context))(crew); }, &callable);
}
template <class Callable>
void each(Crew& crew, int parts, Callable&& callable) {
  crew.each(parts, [](void* context, int n) { (*static_cast<Callable*>(context))(n); }, &callable);
}

// parallel() with any callable.
template <class Callable>
void in_parallel(int count, Callable&& callable) {
  parallel(
      count, [](void* context, int index, int n) { (*static_cast<Callable*>(context))(index, n); },
      &callable);
}

// Whether all of `count` bodies really run at the same time: otherwise the barrier never opens.
bool meets(int count) {
  Barrier barrier(count);
  std::vector<int> visits(count, 0);
  in_parallel(count, [&](int index, int n) {
    barrier.wait();
    visits[index] += n;
    barrier.wait();
  });
  return visits == std::vector<int>(count, count);
}

double cpu_ms() {
  timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return 1e3 * static_cast<double>(used.tv_sec) + 1e-6 * static_cast<double>(used.tv_nsec);
}

}  // namespace

TEST(set_thread_count_before_asking_wins_over_the_variable) {
  CHECK(in_child([] {
    setenv("CELLERATE_THREADS", "nonsense", 1);
    set_thread_count(5);
    return thread_count() == 5;
  }));
}

TEST(set_thread_count_out_of_range_is_refused) {
  for (const int bad : {0, -1, 1025}) {
    const std::string message = CHECK_THROWS(std::invalid_argument, set_thread_count(bad));
    CHECK(message.find(std::to_string(bad)) != std::string::npos);
  }
}

TEST(parallel_of_none_runs_nothing) {
  int calls = 0;
  in_parallel(0, [&](int, int) { ++calls; });
  in_parallel(-1, [&](int, int) { ++calls; });
  CHECK(calls == 0);
}

TEST(parallel_of_one_runs_on_the_caller_without_workers) {
  CHECK(in_child([] {
    std::thread::id where;
    in_parallel(1, [&](int index, int count) {
      if (index == 0 && count == 1) where = std::this_thread::get_id();
    });
    return where == std::this_thread::get_id() && workers_alive() == 0;
  }));
}

TEST(parallel_of_many_runs_all_at_once_with_the_first_on_the_caller) {
  for (int count = 1; count <= 9; ++count) {
    CHECK(meets(count));
    std::vector<std::thread::id> where(count);
    in_parallel(count, [&](int index, int) { where[index] = std::this_thread::get_id(); });
    CHECK(where[0] == std::this_thread::get_id());
    for (int i = 1; i < count; ++i) CHECK(where[i] != where[i - 1]);
  }
}

TEST(parallel_many_times_loses_no_call) {
  long sum = 0;
  for (int i = 0; i < 20000; ++i) {
    int parts[3] = {};
    in_parallel(1 + i % 3, [&](int index, int) { parts[index] = index + 1; });
    sum += parts[0] + parts[1] + parts[2];
  }
  CHECK(sum == 20000 / 3 * (1 + 3 + 6) + 1 + 3);
}

TEST(parallel_after_workers_fell_asleep_wakes_them) {
  for (int i = 0; i < 200; ++i) {
    std::this_thread::sleep_for(
        std::chrono::microseconds(10 * (i % 20)));  // around the moment they fall asleep
    CHECK(meets(3));
  }
}

TEST(parallel_with_late_workers_waits_for_them) {
  for (const int late_us : {50, 1000, 20000}) {
    std::vector<int> done(3, 0);
    in_parallel(3, [&](int index, int) {
      if (index > 0) std::this_thread::sleep_for(std::chrono::microseconds(late_us * index));
      done[index] = 1;
    });
    CHECK(done == std::vector<int>(3, 1));
  }
}

TEST(parallel_from_several_threads_at_once_serves_each) {
  std::atomic<int> good{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&good, caller] {
      for (int i = 0; i < 300; ++i) good += meets(1 + (caller + i) % 4);
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(good == 4 * 300);
}

TEST(parallel_inside_a_body_is_refused) {
  std::vector<std::string> messages(2);
  std::atomic<int> inline_calls{0};
  in_parallel(2, [&](int index, int) {
    messages[index] = CHECK_THROWS(std::logic_error, parallel(2, [](void*, int, int) {}, nullptr));
    CHECK_THROWS(std::logic_error, set_thread_count(2));
    in_parallel(1, [&](int, int) { ++inline_calls; });
  });
  CHECK(messages[0].find("parallel()") != std::string::npos);
  CHECK(messages[1] == messages[0]);
  CHECK(inline_calls == 2);
  CHECK(meets(2));
}

TEST(set_thread_count_while_idle_ends_the_workers_beyond) {
  CHECK(meets(6));
  set_thread_count(3);
  CHECK(workers_left(2));
  CHECK(thread_count() == 3);
  set_thread_count(5);
  CHECK(workers_alive() == 2);  // the others start when they are needed
  CHECK(meets(5));
  CHECK(workers_alive() == 4);
  set_thread_count(1);
  CHECK(workers_left(0));
  CHECK(meets(4));
}

TEST(set_thread_count_during_calls_disturbs_none) {
  std::atomic<bool> stop{false};
  std::thread changer([&] {
    for (int i = 0; !stop; ++i) set_thread_count(1 + i % 5);
  });
  int good = 0;
  for (int i = 0; i < 300; ++i) good += meets(4);
  stop = true;
  changer.join();
  CHECK(good == 300);
  set_thread_count(2);
}

TEST(parallel_that_cannot_start_a_thread_runs_nothing_and_recovers) {
  // The sanitizers and valgrind need the address space themselves.
  if (kSanitized || std::getenv("UNDER_VALGRIND") != nullptr) return;
  CHECK(in_child([] {
    CHECK(meets(2));
    rlimit limit;
    getrlimit(RLIMIT_AS, &limit);
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = 1 << 20;
    setrlimit(RLIMIT_AS, &limit);
    std::atomic<int> calls{0};
    const std::string message = CHECK_THROWS(std::system_error, in_parallel(64, [&](int, int) { ++calls; }));
    CHECK(message.find("of 64; set fewer with CELLERATE_THREADS") != std::string::npos);
    CHECK(calls == 0);
    CHECK(meets(2));
    limit.rlim_cur = before;
    setrlimit(RLIMIT_AS, &limit);
    return meets(64) && check::failures == 0;
  }));
}

TEST(fork_with_workers_asleep_leaves_a_working_pool_on_both_sides) {
  if (kThreadSanitizer) return;  // it knows no new threads after a fork
  set_thread_count(3);
  CHECK(meets(3));
  for (int i = 0; i < 5; ++i) {
    CHECK(in_child([] {
      const bool kept = thread_count() == 3 && workers_alive() == 0;
      // A data loader's worker may fork again.
      return kept && meets(3) && in_child([] { return meets(4); }) && meets(2);
    }));
    CHECK(meets(3));
  }
}

TEST(fork_while_another_thread_computes_leaves_a_working_pool_on_both_sides) {
  if (kThreadSanitizer) return;  // it knows no new threads after a fork
  std::atomic<bool> stop{false};
  std::atomic<int> calls{0};
  std::thread busy([&] {
    while (!stop) {
      in_parallel(3, [](int, int) { std::this_thread::sleep_for(std::chrono::microseconds(500)); });
      ++calls;
    }
  });
  while (calls == 0) std::this_thread::yield();
  for (int i = 0; i < 10; ++i) CHECK(in_child([] { return meets(3); }));
  stop = true;
  busy.join();
  CHECK(meets(3));
}

TEST(exit_with_workers_asleep_or_computing_is_clean) {
  if (kThreadSanitizer) return;  // it knows no new threads after a fork
  CHECK(in_child([] { return meets(4); }));
  CHECK(in_child([] {
    std::atomic<bool>& started = *new std::atomic<bool>{false};
    std::thread([&started] {
      in_parallel(3, [&](int, int) {
        started = true;
        std::this_thread::sleep_for(std::chrono::seconds(30));
      });
    }).detach();
    while (!started) std::this_thread::yield();
    return true;
  }));
}

TEST(workers_while_idle_use_no_processor_time) {
  CHECK(meets(4));
  const double before = cpu_ms();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(cpu_ms() - before < 20);
}

TEST(barrier_of_one_does_not_wait) {
  Barrier barrier(1);
  for (int i = 0; i < 1000; ++i) barrier.wait();
}

TEST(barrier_in_every_phase_shows_what_the_others_wrote) {
  for (const int count : {2, 3, 7}) {
    Barrier barrier(count);
    std::vector<int> value(count, 0);  // plain on purpose: the barrier must order it
    std::atomic<int> wrong{0};
    in_parallel(count, [&](int index, int n) {
      for (int phase = 1; phase <= 300; ++phase) {
        value[index] = phase;
        barrier.wait();
        for (int other = 0; other < n; ++other) wrong += value[other] != phase;
        barrier.wait();
      }
    });
    CHECK(wrong == 0);
  }
}

TEST(each_runs_every_part_once_with_any_number_of_threads) {
  for (int count = 1; count <= 9; ++count) {
    for (const int parts : {0, 1, count, 3 * count + 1}) {
      std::vector<int> visits(static_cast<size_t>(parts), 0);
      with_crew_of(count, [&](Crew& crew) {
        for (int round = 0; round < 3; ++round) each(crew, parts, [&](int n) { ++visits[n]; });
      });
      CHECK(visits == std::vector<int>(static_cast<size_t>(parts), 3));
    }
  }
}

TEST(each_shows_what_earlier_parts_wrote) {
  for (const int count : {2, 3, 7}) {
    std::vector<int> value(static_cast<size_t>(count), 0);  // plain on purpose: the crew must order it
    std::atomic<int> wrong{0};
    with_crew_of(count, [&](Crew& crew) {
      for (int phase = 1; phase <= 2000; ++phase) {
        each(crew, count, [&](int n) {
          // Its neighbour's of the phase before, and not yet that of this one.
          wrong += value[n] != phase - 1;
          value[n] = phase;
        });
        for (const int each : value) wrong += each != phase;
      }
    });
    CHECK(wrong == 0);
  }
}

TEST(crews_and_parallel_calls_by_turns_lose_nothing) {
  long sum = 0;
  for (int i = 0; i < 5000; ++i) {
    if (i % 3 == 0) {
      int parts[3] = {};
      in_parallel(3, [&](int index, int) { parts[index] = 1; });
      sum += parts[0] + parts[1] + parts[2];
    } else {
      std::atomic<int> done{0};
      with_crew_of(2 + i % 3, [&](Crew& crew) { each(crew, 3, [&](int) { ++done; }); });
      sum += done;
    }
  }
  CHECK(sum == 3 * 5000);
}

TEST(crews_of_several_threads_at_once_serve_each) {
  std::atomic<long> done{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&done, caller] {
      for (int i = 0; i < 300; ++i)
        with_crew_of(1 + (caller + i) % 4, [&](Crew& crew) { each(crew, 5, [&](int) { ++done; }); });
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(done == 4 * 300 * 5);
}

TEST(crew_inside_a_part_is_refused) {
  std::atomic<int> refused{0}, alone{0};
  with_crew_of(2, [&](Crew& crew) {
    each(crew, 4, [&](int) {
      try {
        with_crew_of(2, [](Crew&) {});
      } catch (const std::logic_error&) {
        ++refused;
      }
      with_crew_of(1, [&](Crew& own) { each(own, 2, [&](int) { ++alone; }); });
    });
  });
  CHECK(refused == 4);
  CHECK(alone == 8);
}

TEST(each_without_a_worker_in_time_runs_all_parts_on_the_caller) {
  set_thread_count(1);
  const workers::OneProcessor only;
  with_crew_of(2, [](Crew& crew) { each(crew, 2, [](int) {}); });  // starts the worker
  CHECK(workers::make_workers_wait() == 1);
  int mine = 0;
  const auto caller = std::this_thread::get_id();
  with_crew_of(2, [&](Crew& crew) {
    for (int phase = 0; phase < 100; ++phase)
      each(crew, 2, [&](int) { mine += std::this_thread::get_id() == caller; });
  });
  // A worker may have come at the very end of the caller's time on the core.
  CHECK(mine >= 198);
  set_thread_count(1);
}

TEST(worker_that_loses_its_core_in_a_part_makes_calls_careful_for_a_while) {
  const auto lose = [] {
    with_crew_of(2, [&](Crew& crew) {
      std::atomic<bool> begun{false};
      const auto caller = std::this_thread::get_id();
      each(crew, 2, [&](int) {
        if (std::this_thread::get_id() == caller) {
          while (!begun) std::this_thread::yield();
        } else {
          begun = true;
          // As good as a program that has the core meanwhile.
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
      });
    });
  };
  using Clock = std::chrono::steady_clock;
  lose();
  CHECK(!cores_are_wanted());  // once may be anything
  // This thread, too, may lose its core, between the loss and the look at the clock: then what is measured from before
  // the loss is too long, and what is measured from after it too short.
  const auto before = Clock::now();
  lose();
  const auto after = Clock::now();
  CHECK(cores_are_wanted());
  Clock::duration longest_sleep{};
  const auto wait = [&] {
    auto now = Clock::now();
    for (const auto begun = now; cores_are_wanted() && now - begun < std::chrono::seconds(5);) {
      const auto last = now;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      now = Clock::now();
      longest_sleep = std::max(longest_sleep, now - last);
    }
  };
  wait();
  CHECK(Clock::now() - before > std::chrono::milliseconds(50));
  const auto first = Clock::now() - after;
  CHECK(first < std::chrono::milliseconds(1000) + longest_sleep);
  // Again at once: it holds for longer, which a thread that is kept from the clock cannot tell.
  const auto again = Clock::now();
  lose();
  wait();
  CHECK(Clock::now() - again > first * 5 / 4 || longest_sleep > std::chrono::milliseconds(20));
}

TEST(fork_after_a_crew_leaves_a_working_pool_on_both_sides) {
  if (kThreadSanitizer) return;  // it knows no new threads after a fork
  const auto works = [] {
    std::atomic<int> done{0};
    with_crew_of(3, [&](Crew& crew) { each(crew, 6, [&](int) { ++done; }); });
    return done == 6;
  };
  for (int i = 0; i < 5; ++i) {
    CHECK(works());
    CHECK(in_child([&] { return workers_alive() == 0 && works() && meets(3); }));
  }
}
