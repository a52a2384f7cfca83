// Run files that are cut, damaged or hostile: an Error of a configuration, or a valid run; never anything else.
#include "base/text.h"
#include "config/run_spec.h"
#include "layout/helpers.h"

namespace mw::test {
namespace {

void expect_survived(const std::string& text) {
  refusal_of([&] { parse_run_text(text, "run.toml", {}); }, {Exit::config}, printable(text, 2000));
}

// It must be refused, and the message starts with file and line.
void expect_refused(const std::string& text, int line) {
  const auto error = refusal_of([&] { parse_run_text(text, "run.toml", {}); }, {Exit::config}, printable(text, 200));
  ASSERT_TRUE(error) << printable(text, 200);
  EXPECT_EQ(std::string(error->what()).rfind(fmt::format("run.toml:{}: ", line), 0), 0u)
      << error->what() << "\nfor " << printable(text, 200);
}

enum class Kind { integer, real, text, flag, list };
Kind kind_of(const KeyDoc& doc) {
  if (doc.value == "true" || doc.value == "false") return Kind::flag;
  if (doc.value.front() == '[') return Kind::list;
  if (doc.value.front() == '"') return Kind::text;
  return doc.value.find_first_of(".e") != std::string::npos ? Kind::real : Kind::integer;
}

// A value, and the kinds of key that may take it.
struct Value {
  const char* toml;
  bool integer, real, text, flag, list;
  bool fits(Kind kind) const {
    switch (kind) {
      case Kind::integer: return integer;
      case Kind::real: return real;
      case Kind::text: return text;
      case Kind::flag: return flag;
      case Kind::list: return list;
    }
    return false;
  }
};
constexpr Value kValues[] = {
    {"-1", true, true, false, false, false},
    {"0", true, true, false, false, false},
    {"2147483648", true, true, false, false, false},
    {"-9223372036854775808", true, true, false, false, false},
    {"9223372036854775807", true, true, false, false, false},
    {"9223372036854775808", false, false, false, false, false},  // beyond 64 bits: not TOML
    {"0x7fffffffffffffff", true, true, false, false, false},
    {"1e308", false, true, false, false, false},
    {"1e400", false, false, false, false, false},
    {"-0.0", false, true, false, false, false},
    {"nan", false, false, false, false, false},
    {"-nan", false, false, false, false, false},
    {"inf", false, false, false, false, false},
    {"-inf", false, false, false, false, false},
    {"NaN", false, false, false, false, false},
    {"true", false, false, false, true, false},
    {"\"\"", false, false, true, false, false},
    {"\"no such choice\"", false, false, true, false, false},
    {"\"3\"", false, false, true, false, false},
    {"\"\\u0000\"", false, false, false, false, false},
    {"\"\\ud800\"", false, false, false, false, false},
    {"[]", false, false, false, false, true},
    {"[1]", false, false, false, false, false},
    {"[\"a\", 1]", false, false, false, false, false},
    {"[[\"a\"]]", false, false, false, false, false},
    {"{}", false, false, false, false, false},
    {"{ a = 1 }", false, false, false, false, false},
    {"1979-05-27T07:32:00Z", false, false, false, false, false},
    {"07:32:00", false, false, false, false, false},
    {"", false, false, false, false, false},
    {"unquoted", false, false, false, false, false},
    {"1 2", false, false, false, false, false},
    {"\"open", false, false, false, false, false},
};

TEST(RunFileLimits, EveryKeyTakesEveryValueOrRefusesIt) {
  for (const KeyDoc& doc : run_file_reference()) {
    const size_t dot = doc.key.find('.');
    const std::string section = "[" + doc.key.substr(0, dot) + "]\n", name = doc.key.substr(dot + 1);
    for (const Value& value : kValues) {
      const std::string text = section + name + " = " + value.toml + "\n";
      if (!value.fits(kind_of(doc))) {
        expect_refused(text, 2);
        continue;
      }
      const auto error = refusal_of([&] { parse_run_text(text, "run.toml", {}); }, {Exit::config}, text);
      EXPECT_TRUE(!error || contains(error->what(), "run.toml:2: " + doc.key)) << error->what();
    }
    expect_refused(section + name + " = " + doc.value + "\n" + name + " = " + doc.value + "\n", 3);
    expect_refused(section + name + " = " + doc.value + "\n" + section + name + " = " + doc.value + "\n", 3);
    expect_refused(section + name + "." + name + " = " + doc.value + "\n", 2);
  }
}

// What passes the table of keys must still give a plan or an Error, whatever the value.
TEST(RunFileLimits, EveryAcceptedValueGivesAPlanOrAnError) {
  for (const KeyDoc& doc : run_file_reference())
    for (const Value& value : kValues) {
      RunSpec run;
      try {
        run = parse_run_text(doc.key + " = " + value.toml + "\n", "run.toml", {});
      } catch (const Error&) {
        continue;
      }
      if (run.train.micro_batches > 1 << 20) continue;
      refusal_of([&] { make_plan(load_model_spec(run), run, 8, 3, Platform{}); },
                 {Exit::config, Exit::unsupported, Exit::memory}, doc.key + " = " + value.toml);
    }
}

TEST(RunFileLimits, CutAtEveryByte) {
  const std::string text = commented_run_file();
  ASSERT_GT(text.size(), 4000u);
  for (size_t size = 0; size <= text.size(); ++size) expect_survived(text.substr(0, size));
}

TEST(RunFileLimits, DamagedBytes) {
  const std::string text = to_toml(RunSpec{});
  const std::string bytes("\0\x01\x7f\x80\xc3\xff\"'\\[]{}=#.\n\r\t ,0e-", 25);
  size_t next = 0;
  for (size_t at = 0; at < text.size(); ++at)
    for (int k = 0; k < 3; ++k) {
      std::string damaged = text;
      damaged[at] = bytes[next++ % bytes.size()];
      expect_survived(damaged);
      damaged = text;
      damaged.insert(at, 1, bytes[next++ % bytes.size()]);
      expect_survived(damaged);
    }
}

TEST(RunFileLimits, NestingIsBounded) {
  constexpr int kDeep = 100'000;
  const auto repeat = [](const std::string& part, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += part;
    return text;
  };
  expect_refused("[train]\nlr = " + repeat("[", kDeep) + "\n", 2);
  expect_refused("[train]\nlr = " + repeat("[", kDeep) + repeat("]", kDeep) + "\n", 2);
  expect_refused("[train]\nlr = " + repeat("{a=", kDeep) + "\n", 2);
  expect_refused("[" + repeat("a.", kDeep) + "a]\n", 1);
  expect_refused("[[" + repeat("a.", kDeep) + "a]]\n", 1);
  expect_refused(repeat("a.", kDeep) + "a = 1\n", 1);
  expect_refused(repeat("a . ", kDeep) + "a = 1\n", 1);
  expect_refused(repeat("\"a\".", kDeep) + "a = 1\n", 1);
  expect_refused(repeat("'a' .\t", kDeep) + "a = 1\n", 1);
  expect_refused("[train]\nlr = {" + repeat("a.", kDeep) + "a = 1}\n", 2);
  // As deep as the limits of one line and of nested values allow together.
  expect_survived("x = " + repeat("[{a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a=[\n", 127) + repeat("]}]", 127) + "\n");
}

TEST(RunFileLimits, StrangeText) {
  const std::string zero(1, '\0');
  expect_refused(zero, 1);
  expect_refused("[train]" + zero + "\n", 1);
  expect_refused("# a comment" + zero, 1);
  expect_refused("[train]\nlr = 1" + zero + "\n", 2);
  expect_refused("\xef\xbb\xbf[train]\n", 1);  // byte order mark
  expect_refused("\xff\xfe[\0t\0", 1);
  expect_refused("[data]\npath = \"\"\"\n\"\"\"\xc3\xa9\n", 2);
  expect_refused("[data]\npath = '''\n'''\xc3\xa9\n", 2);
  expect_refused("[data]\npath = \"\xc3\"\n", 2);
  expect_refused("# \xff\n", 1);
  for (const char* text : {"=",
                           "[",
                           "]",
                           "[[",
                           "[]",
                           "[[]]",
                           "[train",
                           "[train]]",
                           "[\"",
                           "a",
                           "a=",
                           "\"",
                           "'",
                           "\\",
                           "{",
                           "}",
                           "[train]x",
                           "[train]\n[train]",
                           "train.lr = 1\n[train]\n",
                           ".",
                           "a..b = 1",
                           "a. = 1",
                           "\r",
                           "[train]\rlr = 1"})
    expect_survived(text);
  expect_survived(std::string(1'000'000, '\n'));
  expect_survived(std::string(1'000'000, 'a'));
  expect_survived("# " + std::string(1'000'000, 'a'));
  expect_survived("[data]\npath = \"" + std::string(1'000'000, 'a') + "\"\n");
}

}  // namespace
}  // namespace mw::test
