// Blocks of query rows against all the keys that they see, so that the upper triangle costs
// nothing. Legend: B batch, S sequence, Hq and Hk query and kv heads, D size of a head.
#include "attention.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "convert.h"
#include "gemm.h"
#include "scratch.h"
#include "softmax_rows.h"
#include "spillway/core/math.h"
#include "tasks.h"
#include "vector_math.h"

namespace spillway::kernels::cpu {
namespace {

constexpr int64_t kQueryRows = 64;

/// Sizes, and where a head's matrix [S, D] begins in [B,S,H,D].
struct Layout {
  explicit Layout(const Tensor& q, const Tensor& k)
      : batch(q.dim(0)), length(q.dim(1)), q_heads(q.dim(2)), kv_heads(k.dim(2)), head(q.dim(3)) {}
  int64_t group() const { return q_heads / kv_heads; }
  int64_t q_stride() const { return q_heads * head; }
  int64_t kv_stride() const { return kv_heads * head; }
  int64_t q_offset(int64_t b, int64_t h, int64_t row) const {
    return ((b * length + row) * q_heads + h) * head;
  }
  int64_t kv_offset(int64_t b, int64_t h) const { return (b * length * kv_heads + h) * head; }
  int64_t lse_offset(int64_t b, int64_t h, int64_t row) const {
    return (b * q_heads + h) * length + row;
  }

  int64_t batch, length, q_heads, kv_heads, head;
};

/// One matrix of a product: first element, and elements from row to row.
template <typename A>
struct Matrix {
  A* data;
  int64_t ld;
};

/// A head's matrix in the type of the sums: the tensor's own memory, or a copy of bf16. Measured:
/// products this narrow gain less from bf16 units than their calls cost, and the softmax weights
/// need no rounding this way.
template <typename T>
class Widened {
 public:
  using A = acc_t<T>;
  static constexpr bool kCopies = !std::is_same_v<T, A>;

  /// Room for `rows` rows; 0 elements where nothing is copied.
  Widened(Context& ctx, int64_t rows, int64_t width)
      : copy_(ctx, kCopies ? rows * width : 0), width_(width) {}

  Matrix<const A> load(Matrix<const T> from, int64_t rows) const {
    if constexpr (kCopies) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t d = 0; d < width_; ++d) {
          copy_.data()[r * width_ + d] = widen(from.data[r * from.ld + d]);
        }
      }
      return {copy_.data(), width_};
    } else {
      return from;
    }
  }
  /// Where a product may write rows that `store` then brings to `to`.
  Matrix<A> target(Matrix<T> to) const {
    if constexpr (kCopies) {
      return {copy_.data(), width_};
    } else {
      return to;
    }
  }
  void store(Matrix<T> to, int64_t rows) const {
    if constexpr (kCopies) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t d = 0; d < width_; ++d) {
          to.data[r * to.ld + d] = convert<T>(copy_.data()[r * width_ + d]);
        }
      }
    }
  }

 private:
  ScratchArray<A> copy_;
  int64_t width_;
};

/// c[m,n] = a b^T (kTransB), a b (kPlain) or += a^T b (kTransAdd).
enum class Form { kPlain, kTransB, kTransAdd };
template <typename A>
void product(Context& ctx, Form form, int64_t m, int64_t n, int64_t k, Matrix<const A> a,
             Matrix<const A> b, Matrix<A> c) {
  gemm_task(ctx, {.m = m,
                  .n = n,
                  .k = k,
                  .a = a.data,
                  .b = b.data,
                  .c = c.data,
                  .lda = a.ld,
                  .ldb = b.ld,
                  .ldc = c.ld,
                  .trans_a = form == Form::kTransAdd,
                  .trans_b = form == Form::kTransB,
                  .accumulate = form == Form::kTransAdd,
                  .in = DTypeOf<A>::value,
                  .out = DTypeOf<A>::value});
}

/// scores[0:keys) -> softmax(scale * scores); returns log-sum-exp.
template <typename A>
A scaled_softmax(A scale, int64_t keys, A* scores) {
  const A highest = row_max(scores, keys);
#pragma omp simd
  for (int64_t j = 0; j < keys; ++j) scores[j] = fast_exp(scale * (scores[j] - highest));
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < keys; ++j) sum += scores[j];
  const A inverse = A(1) / sum;
#pragma omp simd
  for (int64_t j = 0; j < keys; ++j) scores[j] *= inverse;
  return scale * highest + std::log(sum);
}

/// Where the matrices [S, D] of one query head and its kv head lie.
struct Head {
  const Layout& at;
  int64_t b, h;

  template <typename Pointer>
  auto queries(Pointer data, int64_t row) const {
    return Matrix<std::remove_pointer_t<Pointer>>{data + at.q_offset(b, h, row), at.q_stride()};
  }
  template <typename Pointer>
  auto keys(Pointer data) const {
    return Matrix<std::remove_pointer_t<Pointer>>{data + at.kv_offset(b, h / at.group()),
                                                  at.kv_stride()};
  }
};

template <typename T>
void forward_block(Context& ctx, const AttentionArgs& args, const Layout& at, int64_t b, int64_t h,
                   int64_t row) {
  using A = acc_t<T>;
  const int64_t rows = std::min(kQueryRows, at.length - row);
  const int64_t keys = row + rows;
  // The longest block's size for all, so that one freed block serves the next.
  const int64_t most_rows = std::min(kQueryRows, at.length);
  const ScratchArray<A> room(ctx, most_rows * at.length);
  const Widened<T> q(ctx, most_rows, at.head);
  const Widened<T> kv(ctx, at.length, at.head);
  const Widened<T> out(ctx, most_rows, at.head);
  const Head head{at, b, h};
  const Matrix<A> scores{room.data(), keys};

  product<A>(ctx, Form::kTransB, rows, keys, at.head,
             q.load(head.queries(args.q.data<T>(), row), rows),
             kv.load(head.keys(args.k.data<T>()), keys), scores);
  A* lse = args.lse.data<A>() + at.lse_offset(b, h, row);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t seen = row + r + 1;
    A* mine = scores.data + r * keys;
    lse[r] = scaled_softmax(static_cast<A>(args.scale), seen, mine);
    std::fill(mine + seen, mine + keys, A(0));  // what causality hides
  }
  const Matrix<T> to = head.queries(args.out.data<T>(), row);
  product<A>(ctx, Form::kPlain, rows, at.head, keys, {scores.data, keys},
             kv.load(head.keys(args.v.data<T>()), keys), out.target(to));
  out.store(to, rows);
}

/// p = softmax from lse, ds = scale * p * (dp - delta), both over `keys` entries in place.
template <typename A>
void backward_row(A scale, A lse, A delta, int64_t keys, A* scores, A* dscores) {
#pragma omp simd
  for (int64_t j = 0; j < keys; ++j) {
    scores[j] = fast_exp(scale * scores[j] - lse);
    dscores[j] = scale * scores[j] * (dscores[j] - delta);
  }
}

template <typename A, typename T>
A dot(const A* a, const T* b, int64_t n) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * widen(b[i]);
  return sum;
}

/// Scratch of the backward of one kv head, for the longest block.
template <typename T>
struct BackwardScratch {
  using A = acc_t<T>;
  BackwardScratch(Context& ctx, const Layout& at)
      : rows(std::min(kQueryRows, at.length)),
        scores(ctx, rows * at.length),
        dscores(ctx, rows * at.length),
        q(ctx, rows, at.head),
        dout(ctx, rows, at.head),
        dq(ctx, rows, at.head),
        k(ctx, at.length, at.head),
        v(ctx, at.length, at.head),
        dk(ctx, at.length * at.head),
        dv(ctx, at.length * at.head) {
    std::fill_n(dk.data(), at.length * at.head, A(0));
    std::fill_n(dv.data(), at.length * at.head, A(0));
  }
  int64_t rows;
  ScratchArray<A> scores, dscores;
  Widened<T> q, dout, dq, k, v;
  ScratchArray<A> dk, dv;  // [S, D] sums over the query heads
};

/// Keys and values of a kv head, widened once for all its blocks.
template <typename A>
struct KeysValues {
  Matrix<const A> k, v;
};

template <typename T>
void backward_block(Context& ctx, const AttentionBackwardArgs& args, const Head& head, int64_t row,
                    const KeysValues<acc_t<T>>& kv, const BackwardScratch<T>& scratch) {
  using A = acc_t<T>;
  const Layout& at = head.at;
  const int64_t rows = std::min(kQueryRows, at.length - row);
  const int64_t keys = row + rows;
  const Matrix<const A> q = scratch.q.load(head.queries(args.q.data<T>(), row), rows);
  const Matrix<const A> dout = scratch.dout.load(head.queries(args.dout.data<T>(), row), rows);
  const Matrix<const T> out = head.queries(args.out.data<T>(), row);
  const Matrix<A> scores{scratch.scores.data(), keys};
  const Matrix<A> dscores{scratch.dscores.data(), keys};

  product<A>(ctx, Form::kTransB, rows, keys, at.head, q, kv.k, scores);
  product<A>(ctx, Form::kTransB, rows, keys, at.head, dout, kv.v, dscores);
  const A* lse = args.lse.data<A>() + at.lse_offset(head.b, head.h, row);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t seen = row + r + 1;
    const A delta = dot(dout.data + r * dout.ld, out.data + r * out.ld, at.head);
    A* p = scores.data + r * keys;
    A* ds = dscores.data + r * keys;
    backward_row(static_cast<A>(args.scale), lse[r], delta, seen, p, ds);
    std::fill(p + seen, p + keys, A(0));
    std::fill(ds + seen, ds + keys, A(0));
  }
  const Matrix<T> dq = head.queries(args.dq.data<T>(), row);
  product<A>(ctx, Form::kPlain, rows, at.head, keys, {dscores.data, keys}, kv.k,
             scratch.dq.target(dq));
  scratch.dq.store(dq, rows);
  product<A>(ctx, Form::kTransAdd, keys, at.head, rows, {dscores.data, keys}, q,
             {scratch.dk.data(), at.head});
  product<A>(ctx, Form::kTransAdd, keys, at.head, rows, {scores.data, keys}, dout,
             {scratch.dv.data(), at.head});
}

/// All query heads of one kv head, in order: the sums of dk and dv have one order.
template <typename T>
void backward_group(Context& ctx, const AttentionBackwardArgs& args, const Layout& at, int64_t b,
                    int64_t kv_head) {
  const BackwardScratch<T> scratch(ctx, at);
  const Head first{at, b, kv_head * at.group()};
  const KeysValues<acc_t<T>> kv{scratch.k.load(first.keys(args.k.data<T>()), at.length),
                                scratch.v.load(first.keys(args.v.data<T>()), at.length)};
  for (int64_t h = first.h; h < first.h + at.group(); ++h) {
    for (int64_t row = 0; row < at.length; row += kQueryRows) {
      backward_block<T>(ctx, args, {at, b, h}, row, kv, scratch);
    }
  }
  const Matrix<T> dk = first.keys(args.dk.data<T>());
  const Matrix<T> dv = first.keys(args.dv.data<T>());
  for (int64_t s = 0; s < at.length; ++s) {
    for (int64_t d = 0; d < at.head; ++d) {
      dk.data[s * dk.ld + d] = convert<T>(scratch.dk.data()[s * at.head + d]);
      dv.data[s * dv.ld + d] = convert<T>(scratch.dv.data()[s * at.head + d]);
    }
  }
}

}  // namespace

void attention(Context& ctx, const AttentionArgs& args) {
  const Layout at(args.q, args.k);
  const int64_t blocks = ceil_div(at.length, kQueryRows);
  prepare_gemm_tasks(ctx);
  visit_float(args.q.dtype(), [&]<typename T>() {
    parallel_tasks(ctx, at.batch * at.q_heads * blocks, [&](int64_t task) {
      const int64_t head = task / blocks;
      // Long blocks first: the short ones then fill the gaps at the end.
      const int64_t block = blocks - 1 - task % blocks;
      forward_block<T>(ctx, args, at, head / at.q_heads, head % at.q_heads, block * kQueryRows);
    });
  });
}

void attention_backward(Context& ctx, const AttentionBackwardArgs& args) {
  const Layout at(args.q, args.k);
  prepare_gemm_tasks(ctx);
  visit_float(args.q.dtype(), [&]<typename T>() {
    parallel_tasks(ctx, at.batch * at.kv_heads, [&](int64_t task) {
      backward_group<T>(ctx, args, at, task / at.kv_heads, task % at.kv_heads);
    });
  });
}

int64_t attention_workspace_bytes(const AttentionSizes& sizes, DType dtype, int64_t threads) {
  const int64_t rows = std::min(kQueryRows, sizes.length);
  int64_t elements = rows * sizes.length;  // scores
  if (dtype == DType::kBF16) {             // widened q, k or v, out
    elements += (2 * rows + sizes.length) * sizes.head_dim;
  }
  const int64_t tasks = sizes.batch * sizes.heads * ceil_div(sizes.length, kQueryRows);
  return std::min(threads, tasks) * elements * dtype_bytes(accumulator_dtype(dtype));
}

int64_t attention_backward_workspace_bytes(const AttentionSizes& sizes, DType dtype,
                                           int64_t threads) {
  const int64_t rows = std::min(kQueryRows, sizes.length);
  int64_t elements = 2 * (rows + sizes.head_dim) * sizes.length;  // scores, dscores, dk, dv
  if (dtype == DType::kBF16) {                                    // widened q, dout, dq, k, v
    elements += (3 * rows + 2 * sizes.length) * sizes.head_dim;
  }
  const int64_t tasks = sizes.batch * sizes.kv_heads;
  return std::min(threads, tasks) * elements * dtype_bytes(accumulator_dtype(dtype));
}

}  // namespace spillway::kernels::cpu
