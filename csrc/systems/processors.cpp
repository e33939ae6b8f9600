#include "systems/processors.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace cellerate {
namespace {

// The first line of a file; empty if there is no such file.
std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The logical processors that this process may run on.
std::vector<int> allowed_processors() {
  std::vector<int> found;
#ifdef __linux__
  // The mask has as many bits as the kernel was built for, which may be more than cpu_set_t has.
  for (int size = CPU_SETSIZE; size <= 1 << 20; size *= 2) {
    cpu_set_t* mask = CPU_ALLOC(size);
    if (mask == nullptr) break;
    const bool known = sched_getaffinity(0, CPU_ALLOC_SIZE(size), mask) == 0;
    const bool too_small = !known && errno == EINVAL;
    for (int i = 0; known && i < size; ++i) {
      if (CPU_ISSET_S(i, CPU_ALLOC_SIZE(size), mask)) found.push_back(i);
    }
    CPU_FREE(mask);
    if (!too_small) break;
  }
#endif
  if (found.empty()) {
    const int all = static_cast<int>(std::thread::hardware_concurrency());
    for (int i = 0; i < all; ++i) found.push_back(i);
  }
  return found;
}

int physical_cores() {
  std::set<std::string> cores;
  for (const int processor : allowed_processors()) {
    // All logical processors of a core have the same list.
    std::string siblings = first_line("/sys/devices/system/cpu/cpu" + std::to_string(processor) +
                                      "/topology/thread_siblings_list");
    cores.insert(siblings.empty() ? "only " + std::to_string(processor) : std::move(siblings));
  }
  return static_cast<int>(cores.size());
}

// How many cores' worth of time the control groups above this process allow (`docker run --cpus`), rounded up.
int allowed_by_control_groups() {
  long lowest = kMaxThreads;
  std::string group = first_line("/proc/self/cgroup");  // "0::/path" with version 2 of control groups
  if (!group.starts_with("0::/")) return kMaxThreads;
  group.erase(0, 3);
  while (true) {
    // "200000 100000" means the time of two cores, "max 100000" no limit.
    const std::string limit = first_line("/sys/fs/cgroup" + group + "/cpu.max");
    char* rest = nullptr;
    const long quota = std::strtol(limit.c_str(), &rest, 10);
    const long period = std::strtol(rest, nullptr, 10);
    if (quota > 0 && period > 0) lowest = std::min(lowest, (quota + period - 1) / period);
    if (group.empty()) return static_cast<int>(lowest);
    group.erase(group.rfind('/'));
  }
}

}  // namespace

int default_thread_count() {
  if (const char* text = std::getenv("CELLERATE_THREADS"); text != nullptr && *text != 0) {
    char* end = nullptr;
    const long number = std::strtol(text, &end, 10);
    if (end == text || *end != '\0' || number < 1 || number > kMaxThreads) {
      throw std::invalid_argument("CELLERATE_THREADS is '" + std::string(text) +
                                  "', expected a whole number from 1 to " + std::to_string(kMaxThreads) +
                                  "; unset it for one thread on each physical core");
    }
    return static_cast<int>(number);
  }
  return std::clamp(std::min(physical_cores(), allowed_by_control_groups()), 1, kMaxThreads);
}

}  // namespace cellerate
