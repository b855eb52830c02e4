#include "spillway/core/error.h"

namespace spillway::detail {

void throw_check(std::string_view expression, std::string_view file, int line,
                 const std::string& text) {
  const size_t cut = file.find("/src/");
  if (cut != std::string_view::npos) file.remove_prefix(cut + 1);
  throw Error(str(text, text.empty() ? "" : " ", "[check failed: ", expression, " at ", file, ":",
                  line, "]"));
}

}  // namespace spillway::detail
