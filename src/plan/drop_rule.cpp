#include "spillway/plan/drop_rule.h"

#include "spillway/core/rng.h"

namespace spillway::plan {

uint64_t random_cell_state(const DropRule& rule, int64_t expert, int64_t source) {
  uint64_t state = 0;
  for (const uint64_t word :
       {rule.seed, static_cast<uint64_t>(rule.step), static_cast<uint64_t>(rule.micro_batch),
        static_cast<uint64_t>(rule.layer), static_cast<uint64_t>(expert),
        static_cast<uint64_t>(source)}) {
    state = hash_chain(state, word);
  }
  return state;
}

}  // namespace spillway::plan
