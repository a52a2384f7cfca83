#include "base/error.h"

#include "formats/helpers.h"

namespace mw::test {
namespace {

TEST(Error, CarriesCodeAndHint) {
  try {
    fail(Exit::memory, "what", "do this");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::memory);
    EXPECT_STREQ(e.what(), "what");
    EXPECT_EQ(e.hint(), "do this");
  }
}

TEST(Error, BrokenInvariantNamesThePlace) {
  EXPECT_NO_THROW(MW_CHECK(true, "fine"));
  const std::string message = error_of([] { MW_CHECK(1 == 2, "{} apples", 3); }, Exit::internal);
  EXPECT_TRUE(contains(message, "error_test.cpp")) << message;
  EXPECT_TRUE(contains(message, "1 == 2")) << message;
  EXPECT_TRUE(contains(message, "3 apples")) << message;
}

// Exit codes are documented and read by scripts.
TEST(Error, ExitCodesAreFixed) {
  EXPECT_EQ(static_cast<int>(Exit::ok), 0);
  EXPECT_EQ(static_cast<int>(Exit::check_failed), 1);
  EXPECT_EQ(static_cast<int>(Exit::usage), 2);
  EXPECT_EQ(static_cast<int>(Exit::config), 3);
  EXPECT_EQ(static_cast<int>(Exit::data), 4);
  EXPECT_EQ(static_cast<int>(Exit::checkpoint), 5);
  EXPECT_EQ(static_cast<int>(Exit::memory), 6);
  EXPECT_EQ(static_cast<int>(Exit::numeric), 7);
  EXPECT_EQ(static_cast<int>(Exit::comm), 8);
  EXPECT_EQ(static_cast<int>(Exit::unsupported), 9);
  EXPECT_EQ(static_cast<int>(Exit::internal), 70);
}

}  // namespace
}  // namespace mw::test
