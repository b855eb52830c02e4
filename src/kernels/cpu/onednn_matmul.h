#pragma once
// The adapter of oneDNN. Its headers are included in onednn_matmul.cpp only.

#include <memory>

#include "gemm.h"

namespace spillway::kernels::cpu {

/// A product of f32 matrices on the threads that OpenMP gives (one inside `parallel_tasks`).
void onednn_sgemm(const Gemm& g);

/// bf16 products by primitives made for exact shapes, which use the matrix units of the machine.
/// Primitives are kept; a thread has its own, so there are no locks. Lives in Context::cache.
class OnednnBf16 {
 public:
  OnednnBf16();
  ~OnednnBf16();
  OnednnBf16(const OnednnBf16&) = delete;
  OnednnBf16& operator=(const OnednnBf16&) = delete;

  /// False where the machine (or a limit set on oneDNN) has no fast bf16.
  bool available() const { return available_; }
  /// Room for threads [0, n). Outside parallel regions only.
  void reserve_threads(int n);
  /// One product on the calling thread; m, n, k > 0.
  void run(Context& ctx, const Gemm& g);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  bool available_ = false;
};

}  // namespace spillway::kernels::cpu
