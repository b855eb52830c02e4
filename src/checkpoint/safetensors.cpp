#include "spillway/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "files.h"
#include "safetensors_header.h"
#include "spillway/core/math.h"
#include "spillway/kernels/elementwise.h"

namespace spillway::checkpoint {
namespace {

// How the reference library orders dtypes; the first key of its sort, falling.
int order_of(DType dtype) {
  switch (dtype) {
    case DType::kI64:
      return 4;
    case DType::kF64:
      return 3;
    case DType::kF32:
      return 2;
    case DType::kI32:
      return 1;
    case DType::kBF16:
      return 0;
  }
  return -1;
}

void sort_tensors(std::vector<NamedTensor>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const NamedTensor& a, const NamedTensor& b) {
    const int order_a = order_of(a.values.dtype()), order_b = order_of(b.values.dtype());
    return order_a != order_b ? order_a > order_b : a.name < b.name;
  });
}

void check_names(const std::string& path, const std::vector<NamedTensor>& tensors) {
  std::vector<std::string_view> names;
  for (const NamedTensor& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  SPILLWAY_CHECK(twice == names.end(), path, ": two tensors are named ", *twice);
}

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  if (tensor.bytes() == 0) return {};
  return {static_cast<const std::byte*>(tensor.raw_data()), static_cast<size_t>(tensor.bytes())};
}

std::string_view header_of(const std::string& path, std::span<const uint8_t> bytes) {
  const auto fail = [&path](const std::string& why) {
    throw DataError(str("checkpoint file \"", path, "\": ", why));
  };
  const int64_t size = static_cast<int64_t>(bytes.size());
  if (size < kLengthBytes) fail(str("has ", size, " bytes, a header's length alone has 8"));
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > static_cast<uint64_t>(size - kLengthBytes)) {
    fail(str("its header has ", length, " bytes by its length, the file has ", size - kLengthBytes,
             " after the length"));
  }
  if (length > static_cast<uint64_t>(kMaxHeaderBytes)) {
    fail(str("its header has ", length, " bytes; allowed: at most ", kMaxHeaderBytes));
  }
  if (length == 0 || bytes[static_cast<size_t>(kLengthBytes)] != '{') {
    fail("its header does not begin with {");
  }
  return {reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, static_cast<size_t>(length)};
}

}  // namespace

FileFacts write_safetensors(const std::string& path, std::vector<NamedTensor> tensors,
                            const Metadata& metadata) {
  sort_tensors(tensors);
  check_names(path, tensors);
  std::string header = header_text(tensors, metadata);
  header.resize(
      static_cast<size_t>(round_up(static_cast<int64_t>(header.size()), kHeaderAlignment)), ' ');
  SPILLWAY_CHECK(static_cast<int64_t>(header.size()) <= kMaxHeaderBytes, path, ": a header of ",
                 header.size(), " bytes for ", tensors.size(), " tensors; readers take ",
                 kMaxHeaderBytes);
  const uint64_t length = header.size();
  NewFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(header)));
  for (const NamedTensor& tensor : tensors) file.write(bytes_of(tensor.values));
  return file.finish();
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : path_(path), mapping_(path, data::Access::kSequential) {
  const std::string_view text = header_of(path, mapping_.bytes());
  Header header = parse_header(path, text, kLengthBytes + static_cast<int64_t>(text.size()),
                               mapping_.size_bytes());
  entries_ = std::move(header.entries);
  metadata_ = std::move(header.metadata);
  for (size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].name, i);
}

const SafetensorsFile::Entry* SafetensorsFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &entries_[it->second];
}

void SafetensorsFile::read(Context& ctx, const Entry& entry, int64_t begin, Tensor& to) const {
  const int64_t count = to.numel();
  SPILLWAY_CHECK(begin >= 0 && begin + count <= entry.shape.numel(), path_, ": elements ", begin,
                 " to ", begin + count, " of tensor ", entry.name, " ", entry.shape);
  if (count == 0) return;
  const auto copy_to = [&](int64_t first, Tensor& part) {
    const int64_t offset = entry.offset_bytes + first * dtype_bytes(entry.dtype);
    std::memcpy(part.raw_data(), mapping_.bytes().data() + offset,
                static_cast<size_t>(part.bytes()));
  };
  if (entry.dtype == to.dtype()) return copy_to(begin, to);
  // By pieces of some hundred KB: the file's elements need not be aligned.
  constexpr int64_t kPiece = int64_t{1} << 16;
  Tensor piece = Tensor::empty(ctx, {std::min(kPiece, count)}, entry.dtype, Purpose::kWorkspace);
  for (int64_t done = 0; done < count; done += kPiece) {
    const Shape shape{std::min(kPiece, count - done)};
    Tensor from = piece.slice(0, shape), part = to.slice(done, shape);
    copy_to(begin + done, from);
    kernels::cast(ctx, from, part);
  }
}

}  // namespace spillway::checkpoint
