#include "bench/python_random.h"

#include <gtest/gtest.h>

namespace mw::test {
namespace {

// Printed by Python 3.11: r = random.Random(1272); r.random(); r.gauss(0, 0.5); r.gauss(0, 1); r.randrange(100); ...
TEST(PythonRandom, DrawsWhatPythonDraws) {
  bench::PythonRandom r(1272);
  EXPECT_DOUBLE_EQ(r.random(), 0.22656159488888772);
  EXPECT_DOUBLE_EQ(r.gauss(0.5), 0.6594018439303014);
  EXPECT_DOUBLE_EQ(r.gauss(1), 0.10954346953154438);
  EXPECT_EQ(r.randrange(100), 48U);
  for (int i = 0; i < 2000; ++i) r.random();
  EXPECT_EQ(r.randrange(7), 6U);
  EXPECT_DOUBLE_EQ(r.random(), 0.12948379671152588);
}

}  // namespace
}  // namespace mw::test
