// What bootstrap refuses: a bad config, and one that is not equal on all ranks.
#include "distributed/ep/fixture.h"

#include <functional>

namespace spillway::ep::test {
namespace {

struct FieldCase {
  const char* name;
  std::function<void(EpConfig&)> change;
  const char* text;  // of the error, after "EpConfig."
};

std::string field_name(const ::testing::TestParamInfo<FieldCase>& test) { return test.param.name; }

class BadConfig : public ::testing::TestWithParam<FieldCase> {};

TEST_P(BadConfig, IsRefusedNamingFieldValueAndWhatIsAllowed) {
  World w(1);
  EpConfig config = make_config(1, 2, 8);
  GetParam().change(config);
  const std::string text = error_of([&] { w.session.bootstrap(config); });
  EXPECT_TRUE(contains(text, std::string("EpConfig.") + GetParam().text));
  EXPECT_FALSE(w.session.active());
  w.session.bootstrap(make_config(1));  // the session is still good
  EXPECT_TRUE(w.session.active());
}

INSTANTIATE_TEST_SUITE_P(
    Fields, BadConfig,
    ::testing::Values(
        FieldCase{"ep_zero", [](EpConfig& c) { c.ep = 0; }, "ep is 0; allowed: at least 1"},
        FieldCase{"ep_not_the_topologys", [](EpConfig& c) { c.ep = 2; },
                  "ep is 2; allowed: the topology's ep = 1"},
        FieldCase{"experts", [](EpConfig& c) { c.num_experts = 0; },
                  "num_experts is 0; allowed: a positive multiple of ep = 1"},
        FieldCase{"hidden", [](EpConfig& c) { c.hidden = -3; },
                  "hidden is -3; allowed: at least 1"},
        FieldCase{"top_k_zero", [](EpConfig& c) { c.top_k = 0; },
                  "top_k is 0; allowed: 1 to num_experts = 8"},
        FieldCase{"top_k_above_experts", [](EpConfig& c) { c.top_k = 9; }, "top_k is 9"},
        FieldCase{"alignment", [](EpConfig& c) { c.alignment = 12; },
                  "alignment is 12; allowed: a power of two"},
        FieldCase{"dtype", [](EpConfig& c) { c.dtype = DType::kI32; },
                  "dtype is i32; allowed: f32, f64, bf16"},
        FieldCase{"max_tokens", [](EpConfig& c) { c.max_tokens_per_rank = 0; },
                  "max_tokens_per_rank is 0"},
        FieldCase{"no_layers", [](EpConfig& c) { c.recv_capacity_per_rank.clear(); },
                  "recv_capacity_per_rank.size is 0; allowed: at least one layer"},
        FieldCase{"capacity_zero",
                  [](EpConfig& c) {
                    c.recv_capacity_per_rank = {64, 0};
                  },
                  "recv_capacity_per_rank[1] is 0; allowed: a positive multiple of alignment = 8"},
        FieldCase{"capacity_unaligned", [](EpConfig& c) { c.recv_capacity_per_rank = {60}; },
                  "recv_capacity_per_rank[0] is 60"},
        FieldCase{"assignments_beyond_31_bits",
                  [](EpConfig& c) { c.max_tokens_per_rank = int64_t{1} << 30; },
                  "max_tokens_per_rank is 1073741824; allowed: below 1073741823 at top_k = 2"},
        FieldCase{"product_beyond_64_bits",
                  [](EpConfig& c) { c.max_tokens_per_rank = int64_t{1} << 62; },
                  "max_tokens_per_rank is 4611686018427387904; allowed: below 1073741823"},
        FieldCase{"capacity_beyond_31_bits",
                  [](EpConfig& c) {
                    c.recv_capacity_per_rank = {64, int64_t{1} << 31};
                  },
                  "recv_capacity_per_rank[1] is 2147483648; allowed: at most 2147483599 slots"},
        FieldCase{"alignment_beyond_31_bits",
                  [](EpConfig& c) {
                    c.alignment = int64_t{1} << 31;
                    c.recv_capacity_per_rank = {c.alignment};
                  },
                  "alignment is 2147483648; allowed: at most 2147483599 slots"},
        FieldCase{"worst_case_beyond_31_bits",
                  [](EpConfig& c) { c.max_tokens_per_rank = int64_t{1} << 29; },
                  "ep * max_tokens_per_rank is 536870912 (worst case 1073741880 slots); allowed: "
                  "what at most 1073741823 slots hold"},
        FieldCase{"drop_and_grow",
                  [](EpConfig& c) { c.drop_on_overflow = c.grow_on_overflow = true; },
                  "grow_on_overflow is true; allowed: false when drop_on_overflow is true"},
        FieldCase{"grow_margin", [](EpConfig& c) { c.grow_margin = -0.5; },
                  "grow_margin is -0.5; allowed: a finite fraction of demand, at least 0"},
        FieldCase{"layer_ids",
                  [](EpConfig& c) {
                    c.layer_ids = {3, 4};
                  },
                  "layer_ids.size is 2; allowed: 0, or one a layer = 1"}),
    field_name);

class UnequalConfig : public ::testing::TestWithParam<FieldCase> {};

TEST_P(UnequalConfig, NamesTheFieldTheRanksAndBothValues) {
  if (World::size() < 2) GTEST_SKIP() << "needs a world of at least 2: ranks must differ";
  World w(2);
  EpConfig config = make_config(2, 2, 8);
  config.recv_capacity_per_rank = {64, 128};
  const int last = w.world->size() - 1;
  if (w.rank() == last) GetParam().change(config);
  std::string others;
  for (int rank = 0; rank < last; ++rank) others += str(rank == 0 ? "" : ", ", rank);
  std::string expected = std::string("EpConfig.") + GetParam().text;
  const auto put = [&](const std::string& mark, const std::string& value) {
    expected.replace(expected.find(mark), mark.size(), value);
  };
  put("OTHERS", others);
  put("LAST", std::to_string(last));
  EXPECT_EQ(error_of([&] { w.session.bootstrap(config); }), expected);
  EXPECT_FALSE(w.session.active());
}

INSTANTIATE_TEST_SUITE_P(
    Fields, UnequalConfig,
    ::testing::Values(
        FieldCase{"hidden", [](EpConfig& c) { c.hidden = 24; },
                  "hidden differs over the world: 8 on rank OTHERS; 24 on rank LAST"},
        FieldCase{"num_experts", [](EpConfig& c) { c.num_experts = 16; },
                  "num_experts differs over the world: 8 on rank OTHERS; 16 on rank LAST"},
        FieldCase{"invalid_on_one_rank", [](EpConfig& c) { c.top_k = -1; },
                  "top_k differs over the world: 2 on rank OTHERS; -1 on rank LAST"},
        FieldCase{"dtype", [](EpConfig& c) { c.dtype = DType::kBF16; },
                  "dtype differs over the world: f32 on rank OTHERS; bf16 on rank LAST"},
        FieldCase{"capacity", [](EpConfig& c) { c.recv_capacity_per_rank[1] = 136; },
                  "recv_capacity_per_rank[1] differs over the world: 128 on rank OTHERS; 136 on "
                  "rank LAST"},
        FieldCase{"layers", [](EpConfig& c) { c.recv_capacity_per_rank.push_back(8); },
                  "recv_capacity_per_rank.size differs over the world: 2 on rank OTHERS; 3 on rank "
                  "LAST"},
        FieldCase{"drop", [](EpConfig& c) { c.drop_on_overflow = true; },
                  "drop_on_overflow differs over the world: false on rank OTHERS; true on rank "
                  "LAST"},
        FieldCase{"grow_margin", [](EpConfig& c) { c.grow_margin = 0.5; },
                  "grow_margin differs over the world: 0 on rank OTHERS; 0.5 on rank LAST"},
        FieldCase{"drop_order", [](EpConfig& c) { c.drop_order = plan::DropOrder::kFair; },
                  "drop_order differs over the world: tail on rank OTHERS; fair on rank LAST"},
        FieldCase{"drop_seed", [](EpConfig& c) { c.drop_seed = 77; },
                  "drop_seed differs over the world: 0 on rank OTHERS; 77 on rank LAST"},
        FieldCase{"poison", [](EpConfig& c) { c.poison = true; },
                  "poison differs over the world: false on rank OTHERS; true on rank LAST"},
        FieldCase{"capacity_key", [](EpConfig& c) { c.capacity_key = "a=b"; },
                  "capacity_key differs over the world: capacity.fixed.slots on rank OTHERS; a=b "
                  "on rank LAST"}),
    field_name);

}  // namespace
}  // namespace spillway::ep::test
