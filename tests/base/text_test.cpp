#include "base/text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mw::test {
namespace {

TEST(Text, FormatsBytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(-1536), "-1.5 KiB");
  EXPECT_EQ(format_bytes(int64_t{61} << 30), "61.0 GiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<int64_t>::max()), "8192.0 PiB");  // the last unit has no next
}

TEST(Text, FormatsDurations) {
  EXPECT_EQ(format_duration(0), "0.0s");
  EXPECT_EQ(format_duration(-3), "0.0s");
  EXPECT_EQ(format_duration(1.44), "1.4s");
  EXPECT_EQ(format_duration(9.94), "9.9s");
  EXPECT_EQ(format_duration(9.96), "10s");  // not "10.0s"
  EXPECT_EQ(format_duration(12.4), "12s");
  EXPECT_EQ(format_duration(59.6), "1m00s");  // not "60s"
  EXPECT_EQ(format_duration(245), "4m05s");
  EXPECT_EQ(format_duration(3 * 3600 + 12 * 60 + 59), "3h12m");
  EXPECT_NE(format_duration(std::nan("")), "");
}

TEST(Text, FormatsCounts) {
  EXPECT_EQ(format_count(7), "7");
  EXPECT_EQ(format_count(9999), "9999");
  EXPECT_EQ(format_count(318'000), "318.0k");
  EXPECT_EQ(format_count(12'340'000), "12.34M");
  EXPECT_EQ(format_count(46'702'792'704.0), "46.70B");
}

TEST(Text, CountsThings) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(2, "micro-batch"), "2 micro-batches");
}

TEST(Text, FindsTheNearestWord) {
  const std::vector<std::string> keys = {"train.lr", "train.warmup", "train.weight_decay", "mesh.ep"};
  EXPECT_EQ(nearest("train.lr", keys), "train.lr");
  EXPECT_EQ(nearest("train.Lr", keys), "train.lr");
  EXPECT_EQ(nearest("TRAIN.WEIGHT_DECAY", keys), "train.weight_decay");
  EXPECT_EQ(nearest("cpu", {"auto", "CPU"}), "CPU");
  EXPECT_EQ(nearest("on", {"", "one"}), "one");
  EXPECT_EQ(nearest("x", {""}), "");
  EXPECT_EQ(nearest("train.warmupp", keys), "train.warmup");
  EXPECT_EQ(nearest("train.wieght_decay", keys), "train.weight_decay");
  EXPECT_EQ(nearest("checkpoint.directory", keys), "");
  EXPECT_EQ(nearest("x", {}), "");
  EXPECT_EQ(nearest(std::string(100'000, 'x'), keys), "");  // in no time: only the first letters count
  EXPECT_EQ(did_you_mean("mesh.ip", keys), ", did you mean \"mesh.ep\"?");
  EXPECT_EQ(did_you_mean("something_else", keys), "");
}

TEST(Text, PrintsUntrustedTextSafely) {
  EXPECT_EQ(printable("plain text"), "plain text");
  EXPECT_EQ(printable(std::string_view("a\0b\x1b[31m\n\x7f\xff", 11)), "a\\x00b\\x1b[31m\\x0a\\x7f\\xff");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("abc", 3), "abc");
  for (int byte = 0; byte < 256; ++byte)
    for (const char c : printable(std::string(1, static_cast<char>(byte)))) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
}

TEST(Text, KnowsUtf8) {
  for (const char* good : {"", "ascii", "\xc3\xa9", "\xe2\x82\xac", "\xed\x9f\xbf", "\xee\x80\x80", "\xf0\x90\x80\x80",
                           "\xf4\x8f\xbf\xbf", "a\xc2\x80z"})
    EXPECT_TRUE(is_utf8(good)) << printable(good);
  EXPECT_TRUE(is_utf8(std::string_view("\0", 1)));
  const char* bad[] = {
      "\x80",              // a trail byte alone
      "\xc3",              // cut
      "\xe2\x82",          // cut
      "\xf0\x90\x80",      // cut
      "\xc3\x28",          // no trail byte
      "\xc0\x80",          // overlong NUL
      "\xc1\xbf",          // overlong
      "\xe0\x9f\xbf",      // overlong
      "\xf0\x8f\xbf\xbf",  // overlong
      "\xed\xa0\x80",      // surrogate
      "\xed\xbf\xbf",      // surrogate
      "\xf4\x90\x80\x80",  // above U+10FFFF
      "\xf5\x80\x80\x80",
      "\xff",
  };
  for (const char* text : bad) EXPECT_FALSE(is_utf8(text)) << printable(text);
}

TEST(Text, WrapsLongLinesAtSpaces) {
  EXPECT_EQ(wrap_text("short\n  also short", 20, 4), "short\n  also short");
  EXPECT_EQ(wrap_text("one two three four", 10, 4), "one two\n    three\n    four");
  EXPECT_EQ(wrap_text("  one two three four", 15, 4), "  one two three\n      four");
  EXPECT_EQ(wrap_text("see /a/very/long/path/to/a/file now", 12, 4), "see\n    /a/very/long/path/to/a/file\n    now");
  EXPECT_EQ(wrap_text("\u00e9\u00e9\u00e9 \u00e9\u00e9\u00e9", 7, 4), "\u00e9\u00e9\u00e9 \u00e9\u00e9\u00e9");
  EXPECT_EQ(wrap_text("", 10, 4), "");
}

TEST(Text, WrapsLinesWithLittleIndent) {
  EXPECT_EQ(wrap_text("short\n\nlines\n", 12, 2, true), "short\n\nlines\n");
  EXPECT_EQ(wrap_text("  memory of all the stages", 14, 2, true), "  memory of\n    all the\n    stages");
  EXPECT_EQ(wrap_text("memory of all stages\nnext", 12, 2, true), "memory of\n  all stages\nnext");
  EXPECT_EQ(wrap_text("no_space_fits_here at all", 5, 2, true), "no_space_fits_here\n  at\n  all");
  EXPECT_EQ(wrap_text("      indented_more_than_the_limit", 4, 2, true), "      indented_more_than_the_limit");
}

TEST(Text, WrapsNoRowsOfTables) {
  EXPECT_EQ(wrap_text("  stage   needed   optimizer\n", 10, 2, true), "  stage   needed   optimizer\n");
}

}  // namespace
}  // namespace mw::test
