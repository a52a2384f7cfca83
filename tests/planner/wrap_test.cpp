#include "planner/wrap.h"

#include <gtest/gtest.h>

namespace mw::test {
namespace {

TEST(WrapProse, BreaksLongLinesAtSpacesAndIndentsWhatFollows) {
  EXPECT_EQ(wrap_prose("short\n\nlines\n", 12), "short\n\nlines\n");
  EXPECT_EQ(wrap_prose("  memory of all the stages", 14), "  memory of\n    all the\n    stages");
  EXPECT_EQ(wrap_prose("memory of all stages\nnext", 12), "memory of\n  all stages\nnext");
  EXPECT_EQ(wrap_prose("no_space_fits_here at all", 5), "no_space_fits_here\n  at\n  all");
  EXPECT_EQ(wrap_prose("      indented_more_than_the_limit", 4), "      indented_more_than_the_limit");
}

TEST(WrapProse, KeepsRowsOfTables) {
  EXPECT_EQ(wrap_prose("  stage   needed   optimizer\n", 10), "  stage   needed   optimizer\n");
}

}  // namespace
}  // namespace mw::test
