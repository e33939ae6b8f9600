// The number of threads by default. No test may ask for it in this process: a child starts with the same.
#include <sched.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "check.h"
#include "forks.h"
#include "systems/threads.h"

using cellerate::thread_count;
using forks::in_child;

TEST(thread_count_with_the_variable_set_is_it) {
  CHECK(in_child([] {
    setenv("CELLERATE_THREADS", "3", 1);
    return thread_count() == 3;
  }));
}

TEST(thread_count_with_a_bad_variable_names_it) {
  for (const char* bad : {" ", "0", "-2", "two", "2.5", "4 ", "1025", "99999999999999999999"}) {
    CHECK(in_child([bad] {
      setenv("CELLERATE_THREADS", bad, 1);
      for (int again = 0; again < 2; ++again) {
        const std::string message = CHECK_THROWS(std::invalid_argument, thread_count());
        CHECK(message.find("CELLERATE_THREADS is '" + std::string(bad) + "'") != std::string::npos);
      }
      return check::failures == 0;
    }));
  }
}

TEST(thread_count_on_one_allowed_processor_is_one) {
  CHECK(in_child([] {
    unsetenv("CELLERATE_THREADS");
    cpu_set_t allowed;
    sched_getaffinity(0, sizeof(allowed), &allowed);
    int first = 0;
    while (!CPU_ISSET(first, &allowed)) ++first;
    CPU_ZERO(&allowed);
    CPU_SET(first, &allowed);
    sched_setaffinity(0, sizeof(allowed), &allowed);
    return thread_count() == 1;
  }));
}

TEST(thread_count_by_default_is_no_more_than_the_processors) {
  for (const bool empty : {false, true}) {
    CHECK(in_child([empty] {
      unsetenv("CELLERATE_THREADS");
      if (empty) setenv("CELLERATE_THREADS", "", 1);  // as good as unset
      return thread_count() >= 1 && thread_count() <= static_cast<int>(std::thread::hardware_concurrency());
    }));
  }
}
