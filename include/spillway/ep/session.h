#pragma once
// Expert parallelism: one session a process, its life bootstrap -> prepare / dispatch / combine /
// their backwards -> finalize -> bootstrap again. Words, units and orders are those of the EP
// contract in src/README.md. All calls but the accessors are collectives of the EP group, or of
// the world where said.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "spillway/comm/topology.h"
#include "spillway/ep/config.h"
#include "spillway/ep/handle.h"
#include "spillway/ep/ledger.h"

namespace spillway::ep {

/// Demand above capacity with neither drop nor grow. Raised on every rank of the group in
/// `prepare`, before any row moves; the session stays usable and no handle exists.
struct OverflowError : Error {
  OverflowError(int64_t layer, int64_t rank, int64_t demand, int64_t capacity, int64_t smallest,
                const std::string& key);
};

/// How a call is sized, and what overflow does in it.
enum class Sizing {
  kLive,      ///< training: the layer's capacity, the session's overflow action
  kLossless,  ///< evaluation: the buffer fits this call's largest demand, nothing overflows, the
              ///< layer's capacity stays
  kDrop,      ///< evaluation: the layer's capacity, overflow drops whatever the session's action
};

/// T = topk_idx.dim(0) may be 0 and may differ between ranks.
struct PrepareArgs {
  Call call;
  const Tensor& topk_idx;  ///< i32 [T,K], global expert ids; -1 = none; ids of a token distinct
  const Tensor& gate;      ///< [T,K] f32 or f64, as given to dispatch: ledger, order by score
  Sizing sizing = Sizing::kLive;
  /// A dispatch that is computed again has the C of the first one, whatever the layer grew to
  /// since; 0: none given.
  int64_t capacity = 0;
};

struct PrepareResult {
  std::vector<int64_t> token_counts;  ///< [L] assignments after drops
  std::vector<int64_t> slot_counts;   ///< [L] each rounded up to A
  int64_t recv_assignments = 0;       ///< routed to this rank before drops
  int64_t total_recv_tokens = 0;      ///< demand of this rank in slots, before drops
  Ledger ledger;
  RoutingHandle handle;
};

struct DispatchResult {
  Tensor recv_tokens;  ///< [C,H] expert-major, inside a zone by (source rank, token)
  Tensor recv_gate;    ///< [C] dtype of the gates
};

struct PrepareAndDispatchResult {
  PrepareResult prepare;
  DispatchResult dispatch;
};

struct DispatchBackwardResult {
  Tensor dx;      ///< [T,H]
  Tensor d_gate;  ///< [T,K] exactly 0 for dropped pairs
};

enum class ReconfigureMode { kBuffers, kCommunicator };

struct ReconfigureCost {
  double drain_ms = 0.0;
  double finalize_ms = 0.0;
  double init_ms = 0.0;
  double alloc_ms = 0.0;
};

class Session {
 public:
  /// Keeps references; both must outlive the session.
  /// The epoch starts from `first_epoch`: a resumed run counts on from the run before it.
  Session(Context& ctx, comm::Topology& topology, int64_t first_epoch = 0);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// World collective. Compares the config over the world: a difference is a ConfigError naming
  /// the field, the ranks and both values. An error when already bootstrapped.
  void bootstrap(const EpConfig& config);
  /// Idempotent. Frees the buffers and raises the epoch: handles from before are stale.
  void finalize();
  /// finalize + bootstrap between two steps; world collective. Throws on every rank, and leaves the
  /// session as it was, when handles are alive on any rank (Error saying how many and where) or
  /// the config is refused.
  ReconfigureCost reconfigure(const EpConfig& config, ReconfigureMode mode);

  /// One all-gather of [ep, E] counts (none at ep = 1), then the plan. Under kScore, when a rank of
  /// the group drops, two more: of histograms of its gates.
  PrepareResult prepare(const PrepareArgs& args);
  // Each use of a handle says which call it belongs to: a handle of another layer, micro-batch or
  // step is an Error that names the field and both values, like every other that does not fit.

  /// Moves rows and gates to the experts. tokens [T,H], gate [T,K] as the router gave them: with
  /// EpConfig::renormalize_kept they are scaled here, before they are sent.
  DispatchResult dispatch(const RoutingHandle& handle, const Call& call, const Tensor& tokens,
                          const Tensor& gate);
  /// Both in one call, bit-identical; counts as no prepare of its own.
  PrepareAndDispatchResult prepare_and_dispatch(const PrepareArgs& args, const Tensor& tokens);
  /// out[T,H]: sum of each token's kept slots, unweighted, fp32 in k order. expert_out [C,H].
  Tensor combine(const RoutingHandle& handle, const Call& call, const Tensor& expert_out);
  /// d_expert_out [C,H]: padding rows zero.
  Tensor combine_backward(const RoutingHandle& handle, const Call& call, const Tensor& dout);
  /// d_recv [C,H], d_gate [C] -> dx, d_gate; fp32 sums in k order. `gate` [T,K]: what dispatch was
  /// given; needed under EpConfig::renormalize_kept (Error without), not read otherwise.
  DispatchBackwardResult dispatch_backward(const RoutingHandle& handle, const Call& call,
                                           const Tensor& d_recv, const Tensor& d_gate,
                                           const Tensor& gate = {});

  /// Between steps: raises a layer's capacity without a new epoch (after `grow` anywhere in the
  /// world, so that capacities are equal again). Never lowers.
  void raise_capacity(int64_t layer, int64_t capacity);

  /// The config key that an OverflowError names from now on; the same on every rank.
  void set_capacity_key(std::string key) { config_.capacity_key = std::move(key); }

  bool active() const { return active_; }
  int64_t epoch() const { return epoch_; }
  uint64_t session_id() const { return session_id_; }
  const EpConfig& config() const { return config_; }
  /// C of a layer now (grown ones included).
  int64_t capacity(int64_t layer) const;
  int64_t live_handles() const { return live_->count(); }

 private:
  struct Buffers;
  void agree_and_validate(const EpConfig& config) const;
  void start(const EpConfig& config);
  PrepareResult plan(const PrepareArgs& args);
  struct Sized;
  Sized choose_capacity(const PrepareArgs& args, const std::vector<int64_t>& demand_slots);
  HandleHeader make_header(const PrepareArgs& args, int64_t capacity) const;
  /// [C,H], uninitialised.
  Tensor receive_buffer(const RoutingHandle& handle);
  // Each throws Error naming `where`, what is wrong and what is allowed.
  void require_active(const char* where) const;
  void require_layer(const char* where, int64_t layer) const;
  void check_handle(const RoutingHandle& handle, const Call& call, const char* where) const;
  void check_slots(const RoutingHandle& handle, const char* where, const char* name,
                   const Tensor& rows) const;
  void check_tokens(const RoutingHandle& handle, const char* where, const char* name,
                    const Tensor& rows) const;
  void check_row_type(const char* where, const char* name, const Tensor& rows) const;
  void check_gates(const char* where, const char* name, const Tensor& gates,
                   const Shape& wanted) const;

  Context& ctx_;
  comm::Topology& topology_;
  EpConfig config_;
  bool active_ = false;
  int64_t epoch_ = 0;
  uint64_t session_id_ = 0;
  std::shared_ptr<LiveHandles> live_ = std::make_shared<LiveHandles>();
  std::vector<int64_t> capacities_;
  std::unique_ptr<Buffers> buffers_;
  // Replaced EP groups that wait for their end: a collective, so at the next reconfigure or with
  // the session, in the same order on every rank.
  std::vector<std::unique_ptr<comm::Communicator>> retired_;
};

}  // namespace spillway::ep
