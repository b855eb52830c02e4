#include "spillway/core/error.h"

#include <algorithm>

namespace spillway {

std::string source_place(std::string_view file, int line) {
  size_t begin = 0;
  for (const std::string_view folder : {"/src/", "/include/spillway/", "/tests/"}) {
    const size_t cut = file.rfind(folder);
    if (cut != std::string_view::npos) begin = std::max(begin, cut + 1);
  }
  return str(file.substr(begin), ":", line);
}

void detail::throw_check(std::string_view expression, std::string_view file, int line,
                         const std::string& text) {
  throw Error(str(text, text.empty() ? "" : " ", "[check failed: ", expression, " at ",
                  source_place(file, line), "]"));
}

}  // namespace spillway
