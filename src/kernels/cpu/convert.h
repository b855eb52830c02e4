#pragma once

#include "spillway/tensor/dtype.h"

namespace spillway::kernels::cpu {

/// The value in the type that kernels compute in.
template <typename T>
inline acc_t<T> widen(T value) {
  return static_cast<acc_t<T>>(value);
}

/// Any floating type to any other; bf16 goes through float.
template <typename To, typename From>
inline To convert(From value) {
  return static_cast<To>(static_cast<acc_t<To>>(widen(value)));
}

}  // namespace spillway::kernels::cpu
