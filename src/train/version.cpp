#include "spillway/train/version.h"

namespace spillway::train {

std::string source_version() { return SPILLWAY_GIT_COMMIT; }

}  // namespace spillway::train
