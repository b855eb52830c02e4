#pragma once
// The file format of weights and optimizer state: 8 bytes with the length N of the header, little
// endian; N bytes of JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ...,
// "__metadata__": {text: text}}, padded with blanks to a multiple of 8; then the tensors, end to
// end. https://huggingface.co/docs/safetensors describes it.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/data/mapped_file.h"
#include "spillway/tensor/tensor.h"

namespace spillway::checkpoint {

struct NamedTensor {
  std::string name;
  Tensor values;
};

/// Size and checksum of a file. The checksum is 64 bits, of our own kind; src/checkpoint/checksum.h
/// says how it is computed.
struct FileFacts {
  int64_t bytes = 0;
  uint64_t checksum = 0;

  friend bool operator==(const FileFacts&, const FileFacts&) = default;
};

using Metadata = std::map<std::string, std::string>;

/// Writes a new file and waits until it is on the disk. Tensors are ordered as the reference
/// library orders them (wider dtypes first, then by name), so each starts at a multiple of its
/// element, and go to the system straight from their memory. Throws Error naming the file and the
/// cause when it exists or cannot be written, and for two tensors of one name.
FileFacts write_safetensors(const std::string& path, std::vector<NamedTensor> tensors,
                            const Metadata& metadata = {});

/// A file mapped for reading, checked from end to end of its header: length against the size of the
/// file, JSON without doubles, known dtypes (F16 is refused), shapes of up to 4 dimensions whose
/// product is the tensor's length, and tensors that follow each other without gap or overlap up to
/// the end of the file. Every defect is a DataError naming file, tensor, what was found and what is
/// allowed.
class SafetensorsFile {
 public:
  struct Entry {
    std::string name;
    DType dtype = DType::kF32;
    Shape shape;
    int64_t offset_bytes = 0;  ///< of the first element, from the start of the file

    int64_t bytes() const { return shape.numel() * dtype_bytes(dtype); }
  };

  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return path_; }
  /// In the order of the data.
  const std::vector<Entry>& entries() const { return entries_; }
  /// Null when there is none.
  const Entry* find(std::string_view name) const;
  const Metadata& metadata() const { return metadata_; }
  const data::MappedFile& mapping() const { return mapping_; }

  /// Copies elements [begin, begin + to.numel()) of a tensor of the file, converting between
  /// floating dtypes where they differ. Throws Error beyond the tensor.
  void read(Context& ctx, const Entry& entry, int64_t begin, Tensor& to) const;

 private:
  std::string path_;
  data::MappedFile mapping_;
  std::vector<Entry> entries_;
  std::map<std::string, size_t, std::less<>> index_;
  Metadata metadata_;
};

}  // namespace spillway::checkpoint
