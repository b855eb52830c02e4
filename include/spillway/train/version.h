#pragma once

#include <string>

namespace spillway::train {

/// The git commit of the source when the build was configured; "unknown" outside a checkout.
std::string source_version();

}  // namespace spillway::train
