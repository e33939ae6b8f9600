// The times of the phases of a layer's call, for a profiler. Without one, a call reads one flag.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace cellerate {

enum class Phase { kPack, kProject, kRecur, kInputGradients, kWeightGradients };
inline constexpr int kPhases = 5;
inline constexpr const char* kPhaseNames[kPhases] = {"pack weights", "input products", "time steps",
                                                     "input gradients", "weight gradients"};

// The times of all layers of the same sizes together.
struct PhaseTimes {
  bool backward;
  int64_t inputs, units, vocabulary;
  int64_t calls = 0;
  double seconds[kPhases] = {};
};

// Starts recording with empty times, or stops it.
void watch_phases(bool on);
bool phases_are_watched();
std::vector<PhaseTimes> phase_times();

// The clock of one call, on its first thread, while recording. Each phase ends where the next begins.
class PhaseClock {
  using Clock = std::chrono::steady_clock;

 public:
  PhaseClock(PhaseTimes times, int thread) : times_(times), on_(thread == 0 && phases_are_watched()) {}
  PhaseClock(const PhaseClock&) = delete;
  PhaseClock& operator=(const PhaseClock&) = delete;
  ~PhaseClock();

  void enter(Phase phase) {
    if (on_) next(phase);
  }

 private:
  void next(Phase phase);

  PhaseTimes times_;
  bool on_;
  bool begun_ = false;
  Phase phase_{};
  Clock::time_point since_{};
};

}  // namespace cellerate
