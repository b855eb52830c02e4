#pragma once

#include "spillway/kernels/dispatch_maps.h"

namespace spillway::kernels::cpu {

void dispatch_maps(Context& ctx, const DispatchMapsArgs& args);
void dropped_sums(Context& ctx, const DroppedSumsArgs& args);

}  // namespace spillway::kernels::cpu
