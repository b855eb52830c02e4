#include "spillway/runtime/context.h"

#include <omp.h>

#include "spillway/core/error.h"

namespace spillway {

Context::Context(Device device, int num_threads)
    : device_(device), num_threads_(num_threads), allocator_(std::make_shared<Allocator>()) {
  SPILLWAY_CHECK(num_threads >= 1, "threads a rank: ", num_threads, ", at least 1 is needed");
  // Libraries that use OpenMP read its own number.
  omp_set_num_threads(num_threads);
  omp_set_dynamic(0);
}

}  // namespace spillway
