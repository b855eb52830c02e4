#include "swiglu.h"

#include "convert.h"
#include "parallel.h"
#include "vector_math.h"

namespace spillway::kernels::cpu {
namespace {

/// Calls body(row) for the rows of all groups, shared over the threads as one list: many small
/// groups must not cost a parallel region each.
template <typename Body>
void parallel_group_rows(Context& ctx, RowGroups groups, int64_t cost, const Body& body) {
  int64_t total = 0;
  for (const int64_t rows : groups.rows) total += rows;
  parallel_ranges(ctx, total, cost, [&](int64_t begin, int64_t end) {
    int64_t passed = 0;  // rows of the groups before g
    for (size_t g = 0; g < groups.rows.size() && passed < end; ++g) {
      const int64_t from = std::max<int64_t>(begin - passed, 0);
      const int64_t to = std::min(end - passed, groups.rows[g]);
      for (int64_t r = from; r < to; ++r) body(groups.begin[g] + r);
      passed += groups.rows[g];
    }
  });
}

/// Returns sum_i dy[i] * silu(gate[i]) * up[i].
template <typename T>
acc_t<T> backward_row(const T* dy, const T* gate, const T* up, acc_t<T> scale, int64_t n, T* dgate,
                      T* dup) {
  using A = acc_t<T>;
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const A g = widen(gate[i]);
    const A u = widen(up[i]);
    const A d = widen(dy[i]);
    const A s = sigmoid(g);
    const A act = g * s;
    sum += d * act * u;
    // silu'(g) = s (1 + g (1 - s))
    store(dgate[i], d * scale * u * (s * (A(1) + g * (A(1) - s))));
    store(dup[i], d * scale * act);
  }
  return sum;
}

}  // namespace

void swiglu(Context& ctx, const SwigluArgs& args) {
  const int64_t n = args.y.dim(1);
  visit_float(args.x.dtype(), [&]<typename T>() {
    using A = acc_t<T>;
    const T* x = args.x.data<T>();
    const A* row_scale = args.row_scale.defined() ? args.row_scale.data<A>() : nullptr;
    T* y = args.y.data<T>();
    parallel_group_rows(ctx, args.groups, 4 * n, [=](int64_t r) {
      const T* gate = x + r * 2 * n;
      const T* up = gate + n;
      T* out = y + r * n;
      const A scale = row_scale != nullptr ? row_scale[r] : A(1);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        store(out[i], silu(widen(gate[i])) * widen(up[i]) * scale);
      }
    });
  });
}

void swiglu_backward(Context& ctx, const SwigluBackwardArgs& args) {
  const int64_t n = args.dy.dim(1);
  visit_float(args.x.dtype(), [&]<typename T>() {
    using A = acc_t<T>;
    const T* dy = args.dy.data<T>();
    const T* x = args.x.data<T>();
    const A* row_scale = args.row_scale.defined() ? args.row_scale.data<A>() : nullptr;
    A* d_row_scale = args.d_row_scale.defined() ? args.d_row_scale.data<A>() : nullptr;
    T* dx = args.dx.data<T>();
    parallel_group_rows(ctx, args.groups, 8 * n, [=](int64_t r) {
      const T* gate = x + r * 2 * n;
      T* dgate = dx + r * 2 * n;
      const A scale = row_scale != nullptr ? row_scale[r] : A(1);
      const A sum = backward_row(dy + r * n, gate, gate + n, scale, n, dgate, dgate + n);
      if (d_row_scale != nullptr) d_row_scale[r] = sum;
    });
  });
}

}  // namespace spillway::kernels::cpu
