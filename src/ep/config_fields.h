#pragma once
// The fields of an EpConfig as text: what ranks compare at bootstrap and what messages show.

#include <string>
#include <vector>

#include "spillway/ep/config.h"

namespace spillway::ep {

struct ConfigField {
  std::string name;
  std::string value;
};

/// Every field in the order of the struct; a list is its length and then its elements, so two
/// configs differ first at a line of one name.
std::vector<ConfigField> config_fields(const EpConfig& config);

}  // namespace spillway::ep
