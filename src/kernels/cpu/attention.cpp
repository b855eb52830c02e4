// Blocks of query rows against all the keys that they see, so that the upper triangle costs
// nothing. Legend: B batch, S sequence, Hq and Hk query and kv heads, D size of a head.
#include "attention.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "convert.h"
#include "gemm.h"
#include "scratch.h"
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
template <typename T>
struct Matrix {
  T* data;
  int64_t ld;
};

/// c[m,n] = a b^T (kTransB), a b (kPlain) or += a^T b (kTransAdd).
enum class Form { kPlain, kTransB, kTransAdd };
template <typename T, typename C>
void product(Context& ctx, Form form, int64_t m, int64_t n, int64_t k, Matrix<const T> a,
             Matrix<const T> b, Matrix<C> c) {
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
                  .in = DTypeOf<T>::value,
                  .out = DTypeOf<C>::value});
}

/// scores[0:keys) -> softmax(scale * scores); returns log-sum-exp.
template <typename A>
A softmax_row(A scale, int64_t keys, A* scores) {
  A highest = scores[0];
#pragma omp simd reduction(max : highest)
  for (int64_t j = 0; j < keys; ++j) highest = std::max(highest, scores[j]);
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

/// Writes row [0:keys) in the dtype of the products and zeroes [keys, width): what causality hides.
template <typename T, typename A>
void store_row(const A* from, int64_t keys, int64_t width, T* to) {
  for (int64_t j = 0; j < keys; ++j) to[j] = convert<T>(from[j]);
  std::fill(to + keys, to + width, T());
}

/// Room for the weights of a block in the dtype of the products: the scores' own where that is T.
template <typename T>
T* product_room(void* scores, void* converted) {
  return static_cast<T*>(std::is_same_v<T, acc_t<T>> ? scores : converted);
}
template <typename T>
int64_t converted_size(int64_t elements) {
  return std::is_same_v<T, acc_t<T>> ? 0 : elements;
}

template <typename T>
void forward_block(Context& ctx, const AttentionArgs& args, const Layout& at, int64_t b, int64_t h,
                   int64_t row) {
  using A = acc_t<T>;
  const int64_t rows = std::min(kQueryRows, at.length - row);
  const int64_t keys = row + rows;
  // The longest block's size for all, so that one freed block serves the next.
  const int64_t room = std::min(kQueryRows, at.length) * at.length;
  const ScratchArray<A> scores(ctx, room);
  const ScratchArray<T> converted(ctx, converted_size<T>(room));
  T* weights = product_room<T>(scores.data(), converted.data());
  const int64_t q = at.q_offset(b, h, row);
  const int64_t kv = at.kv_offset(b, h / at.group());

  product<T, A>(ctx, Form::kTransB, rows, keys, at.head, {args.q.data<T>() + q, at.q_stride()},
                {args.k.data<T>() + kv, at.kv_stride()}, {scores.data(), keys});
  A* lse = args.lse.data<A>() + at.lse_offset(b, h, row);
  for (int64_t r = 0; r < rows; ++r) {
    A* mine = scores.data() + r * keys;
    lse[r] = softmax_row(static_cast<A>(args.scale), row + r + 1, mine);
    store_row(mine, row + r + 1, keys, weights + r * keys);
  }
  product<T, T>(ctx, Form::kPlain, rows, at.head, keys, {weights, keys},
                {args.v.data<T>() + kv, at.kv_stride()}, {args.out.data<T>() + q, at.q_stride()});
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

template <typename T>
acc_t<T> dot(const T* a, const T* b, int64_t n) {
  acc_t<T> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += widen(a[i]) * widen(b[i]);
  return sum;
}

/// Scratch of a backward task, for the longest block.
template <typename T>
struct BackwardScratch {
  using A = acc_t<T>;
  BackwardScratch(Context& ctx, const Layout& at)
      : block(std::min(kQueryRows, at.length) * at.length),
        scores(ctx, block),
        dscores(ctx, block),
        p_converted(ctx, converted_size<T>(block)),
        ds_converted(ctx, converted_size<T>(block)),
        dk(ctx, at.length * at.head),
        dv(ctx, at.length * at.head) {
    std::fill_n(dk.data(), at.length * at.head, A(0));
    std::fill_n(dv.data(), at.length * at.head, A(0));
  }
  int64_t block;
  ScratchArray<A> scores, dscores;
  ScratchArray<T> p_converted, ds_converted;
  ScratchArray<A> dk, dv;  // [S, D] sums of one kv head
};

template <typename T>
void backward_block(Context& ctx, const AttentionBackwardArgs& args, const Layout& at, int64_t b,
                    int64_t h, int64_t row, const BackwardScratch<T>& scratch) {
  using A = acc_t<T>;
  const int64_t rows = std::min(kQueryRows, at.length - row);
  const int64_t keys = row + rows;
  const int64_t offset = at.q_offset(b, h, row);
  const int64_t kv = at.kv_offset(b, h / at.group());
  const Matrix<const T> q{args.q.data<T>() + offset, at.q_stride()};
  const Matrix<const T> dout{args.dout.data<T>() + offset, at.q_stride()};
  const Matrix<const T> k{args.k.data<T>() + kv, at.kv_stride()};
  const Matrix<const T> v{args.v.data<T>() + kv, at.kv_stride()};
  const Matrix<A> scores{scratch.scores.data(), keys};
  const Matrix<A> dscores{scratch.dscores.data(), keys};
  T* p = product_room<T>(scores.data, scratch.p_converted.data());
  T* ds = product_room<T>(dscores.data, scratch.ds_converted.data());

  product<T, A>(ctx, Form::kTransB, rows, keys, at.head, q, k, scores);
  product<T, A>(ctx, Form::kTransB, rows, keys, at.head, dout, v, dscores);
  const A* lse = args.lse.data<A>() + at.lse_offset(b, h, row);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t seen = row + r + 1;
    const T* out = args.out.data<T>() + offset + r * at.q_stride();
    const A delta = dot(dout.data + r * at.q_stride(), out, at.head);
    A* p_row = scores.data + r * keys;
    A* ds_row = dscores.data + r * keys;
    backward_row(static_cast<A>(args.scale), lse[r], delta, seen, p_row, ds_row);
    store_row(p_row, seen, keys, p + r * keys);
    store_row(ds_row, seen, keys, ds + r * keys);
  }
  const Matrix<const T> weights{p, keys};
  const Matrix<const T> dweights{ds, keys};
  product<T, T>(ctx, Form::kPlain, rows, at.head, keys, dweights, k,
                {args.dq.data<T>() + offset, at.q_stride()});
  product<T, A>(ctx, Form::kTransAdd, keys, at.head, rows, dweights, q,
                {scratch.dk.data(), at.head});
  product<T, A>(ctx, Form::kTransAdd, keys, at.head, rows, weights, dout,
                {scratch.dv.data(), at.head});
}

/// All query heads of one kv head, in order: the sums of dk and dv have one order.
template <typename T>
void backward_group(Context& ctx, const AttentionBackwardArgs& args, const Layout& at, int64_t b,
                    int64_t kv_head) {
  const BackwardScratch<T> scratch(ctx, at);
  for (int64_t h = kv_head * at.group(); h < (kv_head + 1) * at.group(); ++h) {
    for (int64_t row = 0; row < at.length; row += kQueryRows) {
      backward_block<T>(ctx, args, at, b, h, row, scratch);
    }
  }
  const int64_t kv = at.kv_offset(b, kv_head);
  for (int64_t s = 0; s < at.length; ++s) {
    for (int64_t d = 0; d < at.head; ++d) {
      const int64_t to = kv + s * at.kv_stride() + d;
      args.dk.data<T>()[to] = convert<T>(scratch.dk.data()[s * at.head + d]);
      args.dv.data<T>()[to] = convert<T>(scratch.dv.data()[s * at.head + d]);
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

}  // namespace spillway::kernels::cpu
