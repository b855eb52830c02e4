#include "spillway/plan/scaling.h"

#include <gtest/gtest.h>

#include <string>

#include "spillway/core/error.h"

namespace spillway::plan {
namespace {

struct ScaleCase {
  const char* name;
  int64_t slots;
  double factor;
  int64_t alignment, limit, expected;
};

class ScaledSlots : public testing::TestWithParam<ScaleCase> {};

TEST_P(ScaledSlots, Gives) {
  const ScaleCase& c = GetParam();
  EXPECT_EQ(scaled_slots(c.slots, c.factor, c.alignment, c.limit), c.expected);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, ScaledSlots,
    testing::Values(ScaleCase{"exact", 64, 1.5, 8, 1024, 96},
                    ScaleCase{"rounds_up_to_alignment", 64, 1.51, 8, 1024, 104},
                    ScaleCase{"ceiling", 3, 1.1, 1, 100, 4},
                    ScaleCase{"forgives_rounding_up", 100, 1.1, 1, 1000, 110},
                    ScaleCase{"forgives_many_digits", 30, 1.0 + 0.1, 1, 1000, 33},
                    ScaleCase{"below_one", 100, 0.25, 8, 1000, 32},
                    ScaleCase{"limit", 64, 100.0, 8, 1024, 1024},
                    ScaleCase{"rounding_meets_limit", 1017, 1.0, 8, 1024, 1024},
                    ScaleCase{"beyond_64_bits", 1000, 1e300, 8, 1024, 1024},
                    ScaleCase{"zero_slots", 0, 2.0, 8, 1024, 0}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Scaling, ProductsOfWholePercentsAreExact) {
  for (int64_t percent = 0; percent <= 100; ++percent) {
    for (int64_t hundreds = 1; hundreds <= 200; ++hundreds) {
      const double factor = 1 + static_cast<double>(percent) / 100;
      EXPECT_EQ(scaled_slots(100 * hundreds, factor, 1, 1 << 20), (100 + percent) * hundreds);
    }
  }
}

TEST(Scaling, GrownCapacityHoldsTheDemand) {
  EXPECT_EQ(grown_capacity(100, 0.1, 8, 1024), 112);
  EXPECT_EQ(grown_capacity(104, 0, 8, 1024), 104);
  EXPECT_EQ(grown_capacity(1000, 0.1, 8, 1024), 1024);
  EXPECT_EQ(grown_capacity(1024, 5, 8, 1024), 1024);
  for (int64_t demand = 0; demand <= 1024; ++demand) {
    EXPECT_GE(grown_capacity(demand, 0, 1, 1024), demand);
  }
}

TEST(Scaling, RejectsNonsense) {
  EXPECT_THROW(scaled_slots(-1, 1, 8, 1024), Error);
  EXPECT_THROW(scaled_slots(1, -1, 8, 1024), Error);
  EXPECT_THROW(grown_capacity(1032, 0.1, 8, 1024), Error);
}

}  // namespace
}  // namespace spillway::plan
