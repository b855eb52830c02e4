#pragma once
// Attention and its gradients in double, as plain as can be.
// B batch, S sequence, Hq and Hk query and kv heads, D size of a head.

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/kernel_test.h"

namespace spillway::testing {

struct AttentionSize {
  int64_t batch, length, q_heads, kv_heads, head;  // B, S, Hq, Hk, D
};

/// Plain attention of doubles, a query at a time, and its gradients by the chain rule.
struct AttentionReference {
  AttentionReference(AttentionSize sizes, double factor, const Tensor& q_in, const Tensor& k_in,
                     const Tensor& v_in)
      : s(sizes),
        scale(factor),
        q(to_doubles(q_in)),
        k(to_doubles(k_in)),
        v(to_doubles(v_in)),
        out(q.size()),
        lse(static_cast<size_t>(s.batch * s.q_heads * s.length)) {}

  size_t q_at(int64_t b, int64_t i, int64_t h) const {
    return static_cast<size_t>(((b * s.length + i) * s.q_heads + h) * s.head);
  }
  size_t kv_at(int64_t b, int64_t j, int64_t h) const {
    const int64_t kv_head = h / (s.q_heads / s.kv_heads);
    return static_cast<size_t>(((b * s.length + j) * s.kv_heads + kv_head) * s.head);
  }
  double dot(const double* x, const double* y) const {
    double sum = 0.0;
    for (int64_t d = 0; d < s.head; ++d) sum += x[d] * y[d];
    return sum;
  }
  /// Softmax weights of query i over keys [0, i]; fills lse.
  std::vector<double> weights(int64_t b, int64_t h, int64_t i) {
    std::vector<double> p(static_cast<size_t>(i + 1));
    double highest = -1e300;
    for (int64_t j = 0; j <= i; ++j) {
      p[static_cast<size_t>(j)] = scale * dot(&q[q_at(b, i, h)], &k[kv_at(b, j, h)]);
      highest = std::max(highest, p[static_cast<size_t>(j)]);
    }
    double sum = 0.0;
    for (double& value : p) sum += value = std::exp(value - highest);
    for (double& value : p) value /= sum;
    lse[static_cast<size_t>((b * s.q_heads + h) * s.length + i)] = highest + std::log(sum);
    return p;
  }
  template <typename Visit>
  void for_each_query(const Visit& visit) {
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < s.q_heads; ++h) {
        for (int64_t i = 0; i < s.length; ++i) visit(b, h, i);
      }
    }
  }
  void forward() {
    for_each_query([&](int64_t b, int64_t h, int64_t i) {
      const std::vector<double> p = weights(b, h, i);
      for (int64_t j = 0; j <= i; ++j) {
        for (int64_t d = 0; d < s.head; ++d) {
          out[q_at(b, i, h) + static_cast<size_t>(d)] +=
              p[static_cast<size_t>(j)] * v[kv_at(b, j, h) + static_cast<size_t>(d)];
        }
      }
    });
  }
  void backward(const std::vector<double>& dout) {
    dq.assign(q.size(), 0.0);
    dk.assign(k.size(), 0.0);
    dv.assign(v.size(), 0.0);
    for_each_query([&](int64_t b, int64_t h, int64_t i) {
      const std::vector<double> p = weights(b, h, i);
      const size_t at = q_at(b, i, h);
      double mean = 0.0;
      for (int64_t j = 0; j <= i; ++j) {
        mean += p[static_cast<size_t>(j)] * dot(&dout[at], &v[kv_at(b, j, h)]);
      }
      for (int64_t j = 0; j <= i; ++j) {
        const size_t from = kv_at(b, j, h);
        const double weight = p[static_cast<size_t>(j)];
        const double ds = scale * weight * (dot(&dout[at], &v[from]) - mean);
        for (size_t d = 0; d < static_cast<size_t>(s.head); ++d) {
          dv[from + d] += weight * dout[at + d];
          dq[at + d] += ds * k[from + d];
          dk[from + d] += ds * q[at + d];
        }
      }
    });
  }

  AttentionSize s;
  double scale;
  std::vector<double> q, k, v, out, lse, dq, dk, dv;
};

}  // namespace spillway::testing
