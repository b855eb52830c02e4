#pragma once
// What a kernel may use besides its arguments: the device, the threads of this rank, memory,
// counters, and caches that libraries' adapters keep between calls. One context a process;
// passed down, never global.

#include <map>
#include <memory>
#include <typeindex>

#include "spillway/runtime/allocator.h"
#include "spillway/runtime/counters.h"
#include "spillway/runtime/device.h"

namespace spillway {

class Context {
 public:
  /// `num_threads`: OpenMP threads of this rank, at least 1 (else Error). Also sets OpenMP's own
  /// number for the calling thread, which libraries read: the newest context counts.
  explicit Context(Device device = Device::kCpu, int num_threads = 1);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Device device() const { return device_; }
  int num_threads() const { return num_threads_; }
  const std::shared_ptr<Allocator>& allocator() const { return allocator_; }
  Counters& counters() { return counters_; }

  /// The one object of type T that lives as long as this context, made at the first call: plans
  /// and primitives of BLAS and attention libraries, opaque to everybody else. Not thread-safe:
  /// call it before a parallel region, not inside.
  template <typename T>
  T& cache() {
    std::shared_ptr<void>& slot = caches_[std::type_index(typeid(T))];
    if (!slot) slot = std::make_shared<T>();
    return *static_cast<T*>(slot.get());
  }

 private:
  Device device_;
  int num_threads_;
  std::shared_ptr<Allocator> allocator_;
  Counters counters_;
  std::map<std::type_index, std::shared_ptr<void>> caches_;
};

}  // namespace spillway
