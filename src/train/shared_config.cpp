#include "spillway/train/shared_config.h"

#include "spillway/config/json.h"
#include "wire.h"

namespace spillway::train {

config::Config share_config(comm::Communicator& world, const std::function<std::string()>& read) {
  int code = static_cast<int>(ExitCode::kDone);
  std::string text;
  if (world.rank() == 0) {
    try {
      text = read();
    } catch (const Error& error) {
      code = static_cast<int>(error.exit_code());
      text = error.what();
    }
  }
  WireWriter writer;
  writer.put(code);
  writer.put(std::vector<char>(text.begin(), text.end()));
  std::vector<std::byte> message = std::move(writer.bytes());
  world.broadcast_from_root(message);
  WireReader reader(message);
  std::vector<char> characters;
  reader.get(code);
  reader.get(characters);
  text.assign(characters.begin(), characters.end());
  if (code != static_cast<int>(ExitCode::kDone)) {
    throw SharedError(text, static_cast<ExitCode>(code));
  }
  return config::parse(text);
}

}  // namespace spillway::train
