#include "base/json.h"

#include "formats/helpers.h"

namespace mw::test {
namespace {

nlohmann::json parse(std::string_view text) { return parse_json(text, "test.json", Exit::checkpoint); }

void expect_refused(std::string_view text, std::string_view why) {
  const std::string message = error_of([&] { parse(text); }, Exit::checkpoint);
  EXPECT_TRUE(contains(message, "test.json")) << message;
  EXPECT_TRUE(contains(message, why)) << message;
}

TEST(Json, TakesValidText) {
  EXPECT_EQ(parse(R"( {"a": [1, 2.5, -3e2, true, null], "b": {"a": "\u00e9"}} )").at("b").at("a"), "\xc3\xa9");
  EXPECT_EQ(parse("7"), 7);
  EXPECT_EQ(parse(R"({"a": {"x": 1}, "b": {"x": 1}, "c": [{"x": 1}, {"x": 2}]})").size(), 3u);
  EXPECT_EQ(parse("9223372036854775807").get<int64_t>(), INT64_MAX);
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text :
       {"",        " ",           "{",         "[1,]",          "{\"a\":1,}", "{a:1}",     "{'a':1}", "NaN",
        "[NaN]",   "Infinity",    "-Infinity", "nan",           "01",         "1.",        ".5",      "+1",
        "0x10",    "1e400",       "-1e400",    "// comment\n1", "/**/1",      "{\"a\" 1}", "tru",     "\"\n\"",
        "\"\\x\"", "\"\\ud800\"", "\"\xff\"",  "\"\xc0\x80\"",  "\"open",     "[1 2]"})
    expect_refused(text, "not valid JSON");
}

TEST(Json, RefusesTrailingText) {
  for (const char* text : {"{} {}", "1 2", "[]]", "{}x"}) expect_refused(text, "not valid JSON");
}

TEST(Json, RefusesDuplicateKeys) {
  expect_refused(R"({"a": 1, "a": 1})", "key \"a\" appears twice");
  expect_refused(R"({"a": 1, "\u0061": 2})", "key \"a\" appears twice");
  expect_refused(R"([{"x": {"b": 1, "c": {"b": 2}, "b": 3}}])", "key \"b\" appears twice");
  expect_refused(R"({"": 1, "": 2})", "appears twice");
}

TEST(Json, RefusesZeroBytes) {
  for (const std::string_view text :
       {std::string_view("\0", 1), std::string_view("{}\0", 3), std::string_view("{\"a\0\": 1}", 9)})
    expect_refused(text, "NUL");
}

TEST(Json, RefusesDeepNesting) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(parse(nested(64)));
  expect_refused(nested(66), "nested more than 64 levels deep");
  expect_refused(nested(100'000), "nested more than");
  expect_refused(std::string(1'000'000, '['), "nested more than");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  expect_refused(objects, "nested more than");
}

TEST(Json, EveryCutIsAnError) {
  const std::string text = R"({"model": {"layers": [1, 2, {"name": "x\n\u00e9"}], "rate": -1.5e-3}, "flag": false})";
  EXPECT_NO_THROW(parse(text));
  for (size_t size = 0; size < text.size(); ++size) expect_refused(text.substr(0, size), "not valid JSON");
}

TEST(Json, MessagesHoldNoRawBytes) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text = "{\"a\": \x1b[31m" + std::string(1, static_cast<char>(byte));
    for (const char c : error_of([&] { parse(text); }, Exit::checkpoint)) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
  }
}

}  // namespace
}  // namespace mw::test
