#pragma once

#include <chrono>

namespace spillway::ep {

/// Milliseconds since the last call, or since construction.
class Stopwatch {
 public:
  double lap_ms() {
    const Clock::time_point now = Clock::now();
    const std::chrono::duration<double, std::milli> lap = now - last_;
    last_ = now;
    return lap.count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_ = Clock::now();
};

}  // namespace spillway::ep
