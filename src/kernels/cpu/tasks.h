#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <exception>

#include "spillway/runtime/context.h"

namespace spillway::kernels::cpu {

/// While it lives, parallel regions that this thread starts have one thread: a library called in a
/// task must not split it further.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

/// Calls body(i) for each i in [0, n), whichever thread is free taking the next. For tasks that are
/// independent and use libraries: those run on one thread, so a task gives the same bits whatever
/// the number of threads. The first exception is thrown again here; the other tasks still run.
template <typename Body>
void parallel_tasks(Context& ctx, int64_t n, const Body& body) {
  const int threads = static_cast<int>(std::min<int64_t>(ctx.num_threads(), n));
  if (threads <= 1) {
    const OneThread one;
    for (int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  std::exception_ptr failure;
#pragma omp parallel num_threads(threads)
  {
    const OneThread one;
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < n; ++i) {
      try {
        body(i);
      } catch (...) {
#pragma omp critical(spillway_task_failure)
        if (!failure) failure = std::current_exception();
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace spillway::kernels::cpu
