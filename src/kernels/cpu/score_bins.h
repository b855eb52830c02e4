#pragma once

#include "spillway/kernels/score_bins.h"

namespace spillway::kernels::cpu {

void score_bins(Context& ctx, const ScoreBinsArgs& args);

}  // namespace spillway::kernels::cpu
