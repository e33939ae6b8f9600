// The processors that this process may use.
#pragma once

namespace cellerate {

constexpr int kMaxThreads = 1024;

// The number of threads of a kernel unless a caller sets another: CELLERATE_THREADS, else one per physical core that
// this process may run on, or fewer if a control group allows less time. Throws std::invalid_argument if
// CELLERATE_THREADS is not a whole number from 1 to kMaxThreads.
int default_thread_count();

}  // namespace cellerate
