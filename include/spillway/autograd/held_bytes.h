#pragma once
// Bytes that a named save holds. A type of its own brings an overload in its own namespace.

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "spillway/tensor/tensor.h"

namespace spillway::autograd {

template <typename T>
requires std::is_trivially_copyable_v<T> int64_t held_bytes(const T&) {
  return static_cast<int64_t>(sizeof(T));
}
inline int64_t held_bytes(const Tensor& tensor) { return tensor.bytes(); }
inline int64_t held_bytes(const std::string& text) { return static_cast<int64_t>(text.size()); }
template <typename A, typename B>
int64_t held_bytes(const std::pair<A, B>& both) {
  return held_bytes(both.first) + held_bytes(both.second);
}

}  // namespace spillway::autograd
