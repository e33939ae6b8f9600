// Runs checks in forked children.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "check.h"

namespace forks {

// Runs `body` in a forked child, which leaves by exit(); whether it returned true there within 20 s. The
// sanitizers take the parent's threads for the child's, so with them it leaves without their last look.
template <class Callable>
bool in_child(Callable&& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a hang ends the child
    bool good = false;
    try {
      good = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "in the child: %s\n", error.what());
    }
    if (kSanitized) _exit(good ? 0 : 1);
    std::exit(good ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) std::fprintf(stderr, "the child ended by signal %d\n", WTERMSIG(status));
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace forks
