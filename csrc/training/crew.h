// Runs the parts of a step on threads, and rethrows their errors.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

#include "systems/threads.h"

namespace cellerate {

// A crew whose parts may throw. It keeps the first error, and then starts no further part.
class Team {
 public:
  explicit Team(Crew& crew) : crew_(crew) {}

  // Calls part(n) for each n in [0, parts).
  template <class Part>
  void each(int64_t parts, const Part& part) {
    struct Work {
      Team& team;
      const Part& part;
    } work{*this, part};
    const auto call = [](void* context, int n) {
      const auto& [team, part] = *static_cast<const Work*>(context);
      team.guarded([&] { part(n); });
    };
    crew_.each(static_cast<int>(parts), call, &work);
  }

 private:
  template <class Lead>
  friend void with_team(int count, const Lead& lead);

  template <class Function>
  void guarded(const Function& function) noexcept {
    if (failed_.load(std::memory_order_relaxed)) return;
    try {
      function();
    } catch (...) {
      if (!failed_.exchange(true)) failure_ = std::current_exception();
    }
  }

  Crew& crew_;
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
};

// Calls lead(team) with up to `count` threads. Rethrows errors of with_crew(), the lead and its parts.
template <class Lead>
void with_team(int count, const Lead& lead) {
  struct Work {
    const Lead& lead;
    std::exception_ptr failure;
  } work{lead, nullptr};
  const auto call = [](void* context, Crew& crew) {
    auto& all = *static_cast<Work*>(context);
    Team team(crew);
    team.guarded([&] { all.lead(team); });
    all.failure = team.failure_;
  };
  with_crew(count, call, &work);
  if (work.failure) std::rethrow_exception(work.failure);
}

// Rounds up to whole cache lines.
constexpr int64_t round_up(int64_t floats) { return (floats + 15) / 16 * 16; }

}  // namespace cellerate
