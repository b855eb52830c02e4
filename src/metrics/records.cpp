#include "spillway/metrics/records.h"

#include <array>
#include <charconv>
#include <cmath>

namespace spillway::metrics {

double shortest(float value) {
  if (!std::isfinite(value)) return value;
  std::array<char, 32> digits;  // the longest is "-1.17549435e-38"
  const auto written = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  double result = value;
  std::from_chars(digits.data(), written.ptr, result);
  return result;
}

}  // namespace spillway::metrics
