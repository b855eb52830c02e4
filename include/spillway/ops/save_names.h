#pragma once
// What `recompute.save` may name: results that a recompute region keeps instead of computing them
// a second time. The routing itself is always kept (Tape::kAlwaysSaved).

#include <array>
#include <string_view>

namespace spillway::ops {

/// Received rows and gates, the routing handle and its counts, together.
inline constexpr std::string_view kSaveDispatch = "dispatch";
/// Logits of the router.
inline constexpr std::string_view kSaveRouter = "router";
/// First product of the routed experts, [C,2I].
inline constexpr std::string_view kSaveExpertUp = "expert_up";
/// Result of every SwiGLU: [C,I] of the experts, [T,F] of dense networks.
inline constexpr std::string_view kSaveExpertAct = "expert_act";
/// Result of attention and its log-sum-exp.
inline constexpr std::string_view kSaveAttention = "attention";

inline constexpr std::array kSaveNames{kSaveDispatch, kSaveRouter, kSaveExpertUp, kSaveExpertAct,
                                       kSaveAttention};

/// Of kSaveNames, in that order, after the one that is always kept: what metrics and tables list.
inline constexpr std::array kHeldNames{std::string_view("routing"),
                                       kSaveDispatch,
                                       kSaveRouter,
                                       kSaveExpertUp,
                                       kSaveExpertAct,
                                       kSaveAttention};

}  // namespace spillway::ops
