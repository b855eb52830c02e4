#pragma once
// manifest.json: the state of the run, and every other file with its size and checksum.

#include <string>
#include <vector>

#include "spillway/checkpoint/checkpoint.h"

namespace spillway::checkpoint {

struct ManifestFile {
  std::string name;
  FileFacts facts;
};

struct Manifest {
  RunState state;
  std::vector<ManifestFile> files;  ///< all but manifest.json and COMMITTED

  /// Null when there is none.
  const ManifestFile* find(const std::string& name) const;
};

/// Doubles come back to the bit, NaN and infinities included. Throws Error when `config_json` is
/// neither empty nor JSON.
std::string manifest_text(const Manifest& manifest);
/// Throws DataError naming `path` and what is wrong.
Manifest parse_manifest(const std::string& path, const std::string& text);

/// What COMMITTED holds.
std::string committed_text(const FileFacts& manifest);
/// Of a committed checkpoint: COMMITTED is there and holds the manifest's checksum. DataError.
Manifest read_manifest(const std::string& checkpoint_dir);

/// Reads every byte of a file of the checkpoint: DataError when it is missing, or not what was
/// written.
void verify_file(const std::string& checkpoint_dir, const ManifestFile& file, int num_threads);

}  // namespace spillway::checkpoint
