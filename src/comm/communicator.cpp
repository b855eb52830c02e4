#include "spillway/comm/communicator.h"

#include <algorithm>

#include "segments.h"
#include "spillway/core/math.h"

namespace spillway::comm {
namespace {

template <typename T>
void add_to(T* __restrict sum, const T* __restrict term, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += term[i];
}

// Every rank sums its own chunk, so each sum is made once, in rank order.
template <typename T>
void sum_own_chunk(Communicator& comm, Context& ctx, std::span<T> values) {
  const int rank = comm.rank();
  const int size = comm.size();
  const int64_t numel = static_cast<int64_t>(values.size());
  const Chunk mine = chunk_of(rank, size, numel);
  Tensor scratch = Tensor::empty(ctx, {size, mine.count}, DTypeOf<T>::value, Purpose::kWorkspace);
  const auto bytes = [](int64_t count) { return count * static_cast<int64_t>(sizeof(T)); };
  const auto row = [&](int peer) { return scratch.data<T>() + peer * mine.count; };

  std::vector<Segment> sends, recvs;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const Chunk theirs = chunk_of(peer, size, numel);
    if (theirs.count > 0) {
      sends.push_back({peer, values.data() + theirs.begin, bytes(theirs.count)});
    }
    if (mine.count > 0) recvs.push_back({peer, row(peer), bytes(mine.count)});
  }
  comm.exchange(sends, recvs);

  if (mine.count == 0) return;
  T* own = values.data() + mine.begin;
  std::copy(own, own + mine.count, row(rank));
  for (int peer = 1; peer < size; ++peer) add_to(row(0), row(peer), mine.count);
  std::copy(row(0), row(0) + mine.count, own);
}

void check_summable(const char* what, DType dtype) {
  SPILLWAY_CHECK(dtype == DType::kF32 || dtype == DType::kF64, what, " of ", dtype_name(dtype),
                 "; allowed: f32, f64");
}

}  // namespace

Chunk chunk_of(int rank, int size, int64_t numel) {
  SPILLWAY_CHECK(rank >= 0 && rank < size, "chunk of rank ", rank, "; allowed: 0 to ", size - 1);
  const int64_t step = ceil_div(numel, size);
  const int64_t begin = std::min(step * rank, numel);
  return {begin, std::min(step, numel - begin)};
}

void check_segments(std::span<const Segment> segments, const char* what, int rank, int size) {
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    SPILLWAY_CHECK(segment.peer >= 0 && segment.peer < size, what, " segment ", i, ": peer is ",
                   segment.peer, "; allowed: 0 to ", size - 1);
    SPILLWAY_CHECK(segment.bytes >= 0, what, " segment ", i, ": ", segment.bytes,
                   " bytes; allowed: >= 0");
    if (segment.bytes == 0) continue;
    SPILLWAY_CHECK(segment.peer != rank, what, " segment ", i, ": peer ", segment.peer,
                   " is this rank itself; allowed: other ranks");
    SPILLWAY_CHECK(segment.data != nullptr, what, " segment ", i, ": no address for ",
                   segment.bytes, " bytes");
  }
}

void Communicator::exchange_overlapped(std::span<const Segment> sends,
                                       std::span<const Segment> recvs, const Overlap& overlap) {
  for (int peer = 0; peer < size(); ++peer) {
    const auto to_peer = [&](const Segment& send) { return send.peer == peer && send.bytes > 0; };
    if (std::any_of(sends.begin(), sends.end(), to_peer)) overlap.make_ready(peer);
  }
  overlap.meanwhile();
  exchange(sends, recvs);
}

void Communicator::reduce_scatter_sum(Context& ctx, Tensor& values) {
  check_summable("reduce_scatter_sum", values.dtype());
  if (size() == 1 || values.numel() == 0) return;
  if (values.dtype() == DType::kF32) {
    sum_own_chunk(*this, ctx, values.span<float>());
  } else {
    sum_own_chunk(*this, ctx, values.span<double>());
  }
}

void Communicator::all_gather_chunks(Context& /*ctx*/, Tensor& values) {
  if (size() == 1 || values.numel() == 0) return;
  auto* const data = static_cast<std::byte*>(values.raw_data());
  const int64_t element = dtype_bytes(values.dtype());
  const Chunk mine = chunk_of(rank(), size(), values.numel());
  std::vector<Segment> sends, recvs;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Chunk theirs = chunk_of(peer, size(), values.numel());
    if (mine.count > 0) sends.push_back({peer, data + mine.begin * element, mine.count * element});
    if (theirs.count > 0) {
      recvs.push_back({peer, data + theirs.begin * element, theirs.count * element});
    }
  }
  exchange(sends, recvs);
}

void Communicator::all_reduce_sum(Context& ctx, Tensor& values) {
  check_summable("all_reduce_sum", values.dtype());
  reduce_scatter_sum(ctx, values);
  all_gather_chunks(ctx, values);
}

}  // namespace spillway::comm
