#include "spillway/metrics/jsonl_cut.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "spillway/core/error.h"

namespace spillway::metrics {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw DataError(str("metrics file \"", path, "\" cannot be ", what, ": ", std::strerror(errno)));
}

bool comes_again(const nlohmann::json& line, int64_t last_step, bool evaluation_again) {
  const auto step = line.find("step");
  if (step == line.end() || !step->is_number_integer()) return false;
  const auto number = step->get<int64_t>();
  return number > last_step ||
         (number == last_step && evaluation_again && line.value("type", "") == "eval");
}

void sync_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0 || ::fsync(fd) != 0) fail(path, "written");
  ::close(fd);
}

}  // namespace

int64_t cut_after(const std::string& path, int64_t last_step, bool evaluation_again) {
  if (!std::filesystem::exists(path)) return 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(path, "read");
  const std::string kept_path = path + ".cut";
  std::ofstream out(kept_path, std::ios::binary | std::ios::trunc);
  if (!out) fail(kept_path, "written");
  int64_t removed = 0, number = 0;
  std::string text;
  while (std::getline(in, text)) {
    ++number;
    const bool unfinished = in.eof();  // no newline behind it
    const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object() && !unfinished) {
      throw DataError(str("metrics file \"", path, "\" line ", number, " is no JSON object"));
    }
    if (unfinished || comes_again(line, last_step, evaluation_again)) {
      ++removed;
    } else {
      out << text << '\n';
    }
  }
  if (in.bad()) fail(path, "read");
  out.close();
  if (!out) fail(kept_path, "written");
  sync_file(kept_path);
  if (::rename(kept_path.c_str(), path.c_str()) != 0) fail(path, "replaced");
  return removed;
}

}  // namespace spillway::metrics
