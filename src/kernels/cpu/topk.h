#pragma once
// The experts with the largest scores of one token.

#include <algorithm>
#include <cstdint>

namespace spillway::kernels::cpu {

/// Offers the candidates [begin, end) to the k largest scores found so far, which stand in
/// descending order in `best` [k] with their `ids` [k]; `seen`: candidates offered before. Ties go
/// to the one offered first. Most candidates cost one comparison with the least of the k.
template <typename A, typename Score>
void offer_topk(const Score& score_of, int64_t begin, int64_t end, int64_t seen, int64_t k,
                int32_t* ids, A* best) {
  const auto insert = [=](int64_t e, A score, int64_t place) {
    for (; place > 0 && best[place - 1] < score; --place) {
      best[place] = best[place - 1];
      ids[place] = ids[place - 1];
    }
    best[place] = score;
    ids[place] = static_cast<int32_t>(e);
  };
  int64_t e = begin;
  for (; e < end && seen < k; ++e, ++seen) insert(e, score_of(e), seen);
  for (; e < end; ++e) {
    const A score = score_of(e);
    if (score > best[k - 1]) insert(e, score, k - 1);
  }
}

/// What the choice of groups needs a thread: all [G].
template <typename A>
struct GroupScratch {
  A* scores;
  A* best;
  int32_t* ids;
};

/// The k largest of the experts in the `topk_groups` best of `groups` equal groups; a group counts
/// by the sum of its two best scores. Experts of other groups are not offered at all.
template <typename A, typename Score>
void offer_topk_of_groups(const Score& score_of, int64_t num_experts, int64_t groups,
                          int64_t topk_groups, int64_t k, int32_t* ids, A* best,
                          const GroupScratch<A>& scratch) {
  const int64_t size = num_experts / groups;
  for (int64_t g = 0; g < groups; ++g) {
    A two[2] = {A(0), A(0)};
    int32_t two_ids[2];
    offer_topk(score_of, g * size, (g + 1) * size, 0, std::min<int64_t>(size, 2), two_ids, two);
    scratch.scores[g] = two[0] + two[1];
  }
  offer_topk([&](int64_t g) { return scratch.scores[g]; }, 0, groups, 0, topk_groups, scratch.ids,
             scratch.best);
  // Ascending, so that ties between experts go to the lower id whatever the order of the groups.
  std::sort(scratch.ids, scratch.ids + topk_groups);
  for (int64_t i = 0; i < topk_groups; ++i) {
    const int64_t begin = scratch.ids[i] * size;
    offer_topk(score_of, begin, begin + size, i * size, k, ids, best);
  }
}

}  // namespace spillway::kernels::cpu
