#pragma once
// The total orders on the assignments sent to a rank; on overflow the longest prefix that fits is
// kept.

#include <array>
#include <string_view>
#include <utility>

namespace spillway::plan {

enum class DropOrder {
  kTail,    ///< (local expert, source, ordinal) ascending
  kFair,    ///< interleaves the sources in proportion to what each sends
  kRandom,  ///< by a hash of the assignment
  kScore,   ///< by gate, descending
};

/// The names of the config key `ep.drop_order`.
inline constexpr std::array<std::pair<std::string_view, DropOrder>, 4> kDropOrderChoices{{
    {"tail", DropOrder::kTail},
    {"fair", DropOrder::kFair},
    {"random", DropOrder::kRandom},
    {"score", DropOrder::kScore},
}};

}  // namespace spillway::plan
