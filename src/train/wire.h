#pragma once
// Plain bytes of one rank for another of the same build: numbers, vectors of numbers and lists of
// such vectors in order.

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "spillway/core/error.h"

namespace spillway::train {

class WireWriter {
 public:
  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(T));
  }
  template <typename T>
  void put(const std::vector<T>& values) {
    put(values.size());
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    bytes_.insert(bytes_.end(), bytes, bytes + values.size() * sizeof(T));
  }
  template <typename T>
  void put(const std::vector<std::vector<T>>& lists) {
    put(lists.size());
    for (const std::vector<T>& list : lists) put(list);
  }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  void get(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    take(&value, sizeof(T));
  }
  template <typename T>
  void get(std::vector<T>& values) {
    size_t count = 0;
    get(count);
    SPILLWAY_CHECK(count <= bytes_.size() / sizeof(T), "a message announces ", count,
                   " elements and holds ", bytes_.size(), " bytes");
    values.resize(count);
    take(values.data(), count * sizeof(T));
  }
  template <typename T>
  void get(std::vector<std::vector<T>>& lists) {
    size_t count = 0;
    get(count);
    SPILLWAY_CHECK(count <= bytes_.size() / sizeof(size_t), "a message announces ", count,
                   " lists and holds ", bytes_.size(), " bytes");
    lists.resize(count);
    for (std::vector<T>& list : lists) get(list);
  }

 private:
  void take(void* to, size_t count) {
    SPILLWAY_CHECK(count <= bytes_.size(), "a message ends early");
    if (count > 0) std::memcpy(to, bytes_.data(), count);
    bytes_ = bytes_.subspan(count);
  }
  std::span<const std::byte> bytes_;
};

/// The field list of a struct goes both ways: `visit(wire)` calls `wire(field)` for each.
struct PutFields {
  WireWriter& writer;
  template <typename T>
  void operator()(const T& field) {
    writer.put(field);
  }
};
struct GetFields {
  WireReader& reader;
  template <typename T>
  void operator()(T& field) {
    reader.get(field);
  }
};

}  // namespace spillway::train
