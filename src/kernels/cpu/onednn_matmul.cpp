#include "onednn_matmul.h"

#include <omp.h>

#include <array>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "scratch.h"
#include "spillway/core/rng.h"

namespace spillway::kernels::cpu {
namespace {

using Dims = dnnl::memory::dims;

/// What a primitive is made for.
struct Shape2D {
  int64_t m, n, k, lda, ldb, ldc;
  int64_t flags;  // trans_a, trans_b, accumulate, f32 out
  friend bool operator==(const Shape2D&, const Shape2D&) = default;
};

Shape2D shape_of(const Gemm& g) {
  const int64_t flags = (g.trans_a ? 1 : 0) + (g.trans_b ? 2 : 0) + (g.accumulate ? 4 : 0) +
                        (g.out == DType::kF32 ? 8 : 0);
  return {g.m, g.n, g.k, g.lda, g.ldb, g.ldc, flags};
}

struct ShapeHash {
  size_t operator()(const Shape2D& s) const {
    uint64_t hash = 0;
    for (const int64_t word : {s.m, s.n, s.k, s.lda, s.ldb, s.ldc, s.flags}) {
      hash = mix64(hash * 31 + static_cast<uint64_t>(word) + 1);
    }
    return static_cast<size_t>(hash);
  }
};

/// A matrix [rows, cols] whose stored form is [cols, rows] when transposed.
dnnl::memory::desc describe(int64_t rows, int64_t cols, int64_t ld, bool transposed, DType dtype) {
  const auto type =
      dtype == DType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  return {Dims{rows, cols}, type, transposed ? Dims{1, ld} : Dims{ld, 1}};
}

dnnl::matmul::primitive_desc describe_product(const Gemm& g, const dnnl::engine& engine) {
  const dnnl::memory::desc a = describe(g.m, g.k, g.lda, g.trans_a, g.in);
  const dnnl::memory::desc b = describe(g.k, g.n, g.ldb, g.trans_b, g.in);
  const dnnl::memory::desc c = describe(g.m, g.n, g.ldc, false, g.out);
  dnnl::primitive_attr attr;
  // The library's own scratch is bound to the thread that made the primitive, and is not counted.
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (g.accumulate) {
    dnnl::post_ops add_former;
    add_former.append_sum(1.0F);
    attr.set_post_ops(add_former);
  }
#if DNNL_VERSION_MAJOR >= 3
  return {engine, a, b, c, attr};
#else
  return {dnnl::matmul::desc(a, b, c), attr, engine};
#endif
}

/// A primitive and the memory objects that its calls point at their matrices.
struct Plan {
  Plan(const Gemm& g, const dnnl::engine& engine) : Plan(describe_product(g, engine), engine) {}
  Plan(const dnnl::matmul::primitive_desc& pd, const dnnl::engine& engine)
      : primitive(pd),
        a(pd.src_desc(), engine, DNNL_MEMORY_NONE),
        b(pd.weights_desc(), engine, DNNL_MEMORY_NONE),
        c(pd.dst_desc(), engine, DNNL_MEMORY_NONE),
        scratch(pd.scratchpad_desc(), engine, DNNL_MEMORY_NONE),
        scratch_bytes(static_cast<int64_t>(pd.scratchpad_desc().get_size())) {}

  void run(Context& ctx, const Gemm& g, const dnnl::stream& stream) {
    const Scratch room(ctx, scratch_bytes);
    a.set_data_handle(const_cast<void*>(g.a));
    b.set_data_handle(const_cast<void*>(g.b));
    c.set_data_handle(g.c);
    scratch.set_data_handle(room.data());
    // The C call takes a plain array; the C++ one builds a map at every call.
    const std::array<dnnl_exec_arg_t, 4> args{{{DNNL_ARG_SRC, a.get()},
                                               {DNNL_ARG_WEIGHTS, b.get()},
                                               {DNNL_ARG_DST, c.get()},
                                               {DNNL_ARG_SCRATCHPAD, scratch.get()}}};
    const dnnl_status_t status = dnnl_primitive_execute(primitive.get(), stream.get(),
                                                        static_cast<int>(args.size()), args.data());
    SPILLWAY_CHECK(status == dnnl_success, "oneDNN matmul m ", g.m, ", n ", g.n, ", k ", g.k,
                   ": status ", static_cast<int>(status));
  }

  dnnl::matmul primitive;
  dnnl::memory a, b, c, scratch;
  int64_t scratch_bytes;
};

}  // namespace

void onednn_sgemm(const Gemm& g) {
  const dnnl_status_t status =
      dnnl_sgemm(g.trans_a ? 'T' : 'N', g.trans_b ? 'T' : 'N', g.m, g.n, g.k, 1.0F,
                 static_cast<const float*>(g.a), g.lda, static_cast<const float*>(g.b), g.ldb,
                 g.accumulate ? 1.0F : 0.0F, static_cast<float*>(g.c), g.ldc);
  SPILLWAY_CHECK(status == dnnl_success, "dnnl_sgemm m ", g.m, ", n ", g.n, ", k ", g.k, ", lda ",
                 g.lda, ", ldb ", g.ldb, ", ldc ", g.ldc, ": status ", static_cast<int>(status));
}

struct OnednnBf16::Impl {
  /// Plans of one thread. Row and depth splits of the callers bound the shapes of a layer; when
  /// other sizes pile up (evaluation), starting over is cheaper than remembering the order of use.
  static constexpr size_t kMaxPlans = 2048;
  struct PerThread {
    explicit PerThread(const dnnl::engine& engine) : stream(engine) {}
    dnnl::stream stream;
    std::unordered_map<Shape2D, Plan, ShapeHash> plans;
  };

  Impl() : engine(dnnl::engine::kind::cpu, 0) {}
  dnnl::engine engine;
  std::vector<PerThread> threads;
};

OnednnBf16::OnednnBf16() : impl_(std::make_unique<Impl>()) {
  Gemm probe{.m = 64, .n = 64, .k = 64, .lda = 64, .ldb = 64, .ldc = 64};
  probe.in = probe.out = DType::kBF16;
  try {
    // Reference implementations are correct and a thousand times slower.
    const std::string_view name = describe_product(probe, impl_->engine).impl_info_str();
    available_ = name.find("ref") == std::string_view::npos;
  } catch (const dnnl::error&) {
    available_ = false;
  }
}

OnednnBf16::~OnednnBf16() = default;

void OnednnBf16::reserve_threads(int n) {
  while (static_cast<int>(impl_->threads.size()) < n) impl_->threads.emplace_back(impl_->engine);
}

void OnednnBf16::run(Context& ctx, const Gemm& g) {
  Impl::PerThread& mine = impl_->threads.at(static_cast<size_t>(omp_get_thread_num()));
  const Shape2D shape = shape_of(g);
  auto found = mine.plans.find(shape);
  if (found == mine.plans.end()) {
    if (mine.plans.size() >= Impl::kMaxPlans) mine.plans.clear();
    try {
      found = mine.plans.try_emplace(shape, g, impl_->engine).first;
    } catch (const dnnl::error& error) {
      throw Error(str("oneDNN matmul m ", g.m, ", n ", g.n, ", k ", g.k, ": ", error.what()));
    }
  }
  found->second.run(ctx, g, mine.stream);
}

}  // namespace spillway::kernels::cpu
