#include "spillway/plan/drop_order.h"

namespace spillway::plan {

const char* drop_order_name(DropOrder order) {
  for (const auto& [name, value] : kDropOrderChoices) {
    if (value == order) return name.data();
  }
  return "unknown";
}

bool parse_drop_order(std::string_view name, DropOrder& order) {
  for (const auto& [choice, value] : kDropOrderChoices) {
    if (choice != name) continue;
    order = value;
    return true;
  }
  return false;
}

}  // namespace spillway::plan
