#pragma once
// The visitor that writes a struct as a JSON object, keys in the order of the fields.

#include <string>
#include <string_view>
#include <utility>

#include "json_text.h"
#include "spillway/capacity/config.h"
#include "spillway/core/choice.h"

namespace spillway::config {

class JsonWriter {
 public:
  template <class T>
  void field(std::string_view name, const T& value) {
    object_[std::string(name)] = value;
  }
  template <class Enum, class Choices>
  void choice(std::string_view name, Enum value, const Choices& choices) {
    object_[std::string(name)] = choice_name(choices, value);
  }
  template <class Body>
  void object(std::string_view name, Body&& body) {
    JsonWriter inner;
    body(inner);
    object_[std::string(name)] = std::move(inner).take();
  }
  void initial(std::string_view name, const capacity::Initial& value) {
    Json json = "worst_case";
    if (!value.worst_case) json = Json{{"factor", value.factor}};
    object_[std::string(name)] = std::move(json);
  }

  Json take() && { return std::move(object_); }

 private:
  Json object_ = Json::object();
};

}  // namespace spillway::config
