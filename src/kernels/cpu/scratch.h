#pragma once

#include <memory>

#include "spillway/runtime/context.h"

namespace spillway::kernels::cpu {

/// Uninitialised memory for the length of a scope, counted as workspace. The allocator keeps freed
/// blocks, so that in steady state this is a look-up and no system call. Safe on any thread.
class Scratch {
 public:
  Scratch(Context& ctx, int64_t bytes)
      : allocator_(ctx.allocator().get()),
        bytes_(bytes),
        data_(allocator_->allocate(bytes, Purpose::kWorkspace)) {}
  ~Scratch() { allocator_->release(data_, bytes_, Purpose::kWorkspace); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* data() const { return data_; }

 private:
  Allocator* allocator_;
  int64_t bytes_;
  void* data_;
};

/// Scratch of `count` elements.
template <typename T>
class ScratchArray : public Scratch {
 public:
  ScratchArray(Context& ctx, int64_t count)
      : Scratch(ctx, count * static_cast<int64_t>(sizeof(T))) {}
  T* data() const { return static_cast<T*>(Scratch::data()); }
};

}  // namespace spillway::kernels::cpu
