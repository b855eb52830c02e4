#include "spillway/core/error.h"

#include <algorithm>

namespace spillway::detail {
namespace {

/// The path from the top folder of the repository on, wherever the tree was built.
std::string_view from_top_folder(std::string_view file) {
  size_t begin = 0;
  for (const std::string_view folder : {"/src/", "/include/spillway/", "/tests/"}) {
    const size_t cut = file.rfind(folder);
    if (cut != std::string_view::npos) begin = std::max(begin, cut + 1);
  }
  return file.substr(begin);
}

}  // namespace

void throw_check(std::string_view expression, std::string_view file, int line,
                 const std::string& text) {
  throw Error(str(text, text.empty() ? "" : " ", "[check failed: ", expression, " at ",
                  from_top_folder(file), ":", line, "]"));
}

}  // namespace spillway::detail
