// The pool's workers as the system sees them, and how to keep them from a core.
#pragma once

#include <dirent.h>
#include <sched.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace workers {

// The thread numbers of the workers of this process, by their names.
inline std::vector<pid_t> workers() {
  std::vector<pid_t> found;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* entry = readdir(tasks)) {
    std::ifstream file(std::string("/proc/self/task/") + entry->d_name + "/comm");
    std::string name;
    file >> name;
    if (name.rfind("cellerate-", 0) == 0) found.push_back(static_cast<pid_t>(std::atoi(entry->d_name)));
  }
  closedir(tasks);
  return found;
}

inline int workers_alive() { return static_cast<int>(workers().size()); }

// Whether so many workers are left within a second: the system may list a thread for a moment after it was joined.
inline bool workers_left(int count) {
  for (int ms = 0; ms < 1000 && workers_alive() > count; ++ms)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return workers_alive() == count;
}

// Keeps the calling thread, and threads that it starts, on one processor while it lives.
class OneProcessor {
 public:
  OneProcessor() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++i) {
      if (CPU_ISSET(i, &before_)) CPU_SET(i, &one);
    }
    sched_setaffinity(0, sizeof one, &one);
    for (const pid_t worker : workers()) sched_setaffinity(worker, sizeof one, &one);
  }
  ~OneProcessor() { sched_setaffinity(0, sizeof before_, &before_); }
  OneProcessor(const OneProcessor&) = delete;
  OneProcessor& operator=(const OneProcessor&) = delete;

 private:
  cpu_set_t before_;
};

// Makes the workers wait until no other thread wants their processor; says how many.
inline int make_workers_wait() {
  const sched_param none{};
  int changed = 0;
  for (const pid_t worker : workers()) changed += sched_setscheduler(worker, SCHED_IDLE, &none) == 0;
  return changed;
}

}  // namespace workers
