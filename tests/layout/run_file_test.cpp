#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "base/text.h"
#include "config/run_keys.h"
#include "layout/helpers.h"

namespace mw::test {
namespace {

RunSpec parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_run_text(text, "run.toml", overrides);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> lines_that_differ(const std::string& a, const std::string& b) {
  const std::vector<std::string> before = lines_of(a), after = lines_of(b);
  EXPECT_EQ(before.size(), after.size());
  std::vector<std::string> changed;
  for (size_t i = 0; i < std::min(before.size(), after.size()); ++i)
    if (before[i] != after[i]) changed.push_back(after[i]);
  return changed;
}

// Another legal value of a key, as TOML.
std::string other_value(const KeyDoc& doc) {
  if (doc.value == "true") return "false";
  if (doc.value == "false") return "true";
  if (doc.value.front() == '[') return R"(["", ".h", "a \"quoted\" \\ name", "é"])";
  if (doc.value.front() == '"') {
    // A key that takes a few words lists them in the hint when given another.
    try {
      parse("", {doc.key + "=no such choice"});
    } catch (const Error& e) {
      std::string choices = e.hint().substr(e.hint().find(':') + 2);
      std::replace(choices.begin(), choices.end(), ',', ' ');
      std::istringstream words(choices);
      for (std::string word; words >> word;)
        if (word != "\"\"" && "\"" + word + "\"" != doc.value) return "\"" + word + "\"";
    }
    return R"("/some dir/ü, \"x\" \\ \t = # '")";
  }
  const bool real = doc.value.find_first_of(".e") != std::string::npos;
  const double value = std::stod(doc.value);
  for (const double other : {value / 2 + 0.001, value * 2 + 1, value + 1, 1.0}) {
    const std::string text = real ? fmt::format("{:.17g}", other) : fmt::format("{:.0f}", std::floor(other) + 1);
    if (text != doc.value && !refusal_of([&] { parse("", {doc.key + "=" + text}); })) return text;
  }
  ADD_FAILURE() << "no other value for " << doc.key;
  return doc.value;
}

TEST(RunFile, EveryKeySetsItsOwnFieldAndRoundTrips) {
  const std::string defaults = to_toml(RunSpec{});
  ASSERT_GT(run_file_reference().size(), 80u);
  for (const KeyDoc& doc : run_file_reference()) {
    const std::string value = other_value(doc);
    const size_t dot = doc.key.find('.');
    const std::string file = "[" + doc.key.substr(0, dot) + "]\n" + doc.key.substr(dot + 1) + " = " + value + "\n";
    const std::string printed = to_toml(parse(file));
    const std::vector<std::string> changed = lines_that_differ(defaults, printed);
    ASSERT_EQ(changed.size(), 1u) << doc.key << " = " << value;
    EXPECT_EQ(changed[0].substr(0, changed[0].find(" =")), doc.key.substr(dot + 1));
    EXPECT_EQ(to_toml(parse(printed)), printed) << doc.key;
    EXPECT_EQ(to_toml(parse(doc.key + " = " + value + "\n")), printed) << doc.key;  // dotted, without a section
    EXPECT_EQ(to_toml(parse("", {doc.key + "=" + value})), printed) << doc.key;
    EXPECT_EQ(to_toml(parse(printed, {doc.key + "=" + doc.value})), defaults) << doc.key;
  }
}

TEST(RunFile, EmptyAndCommentedFilesAreTheDefaults) {
  const std::string defaults = to_toml(RunSpec{});
  EXPECT_EQ(to_toml(parse("")), defaults);
  EXPECT_EQ(to_toml(parse("\n# nothing\n[train]\n")), defaults);
  EXPECT_EQ(to_toml(parse(commented_run_file())), defaults);
  for (const KeyDoc& doc : run_file_reference()) {
    EXPECT_NE(doc.meaning, "") << doc.key;
    if (doc.key.rfind("debug.", 0) == 0) continue;
    EXPECT_TRUE(contains(commented_run_file(), doc.key.substr(doc.key.find('.') + 1) + " = " + doc.value)) << doc.key;
  }
}

// The other keys of [model] must be absent there.
TEST(RunFile, ACommentedFileOfAPresetNamesItAlone) {
  RunSpec run;
  run.native.preset = "mixtral-8x7b";
  const std::string text = commented_run_file(run);
  EXPECT_TRUE(contains(text, "preset = \"mixtral-8x7b\"")) << text;
  EXPECT_FALSE(contains(text, "expert_width = ") || contains(text, "vocab = ")) << text;
  EXPECT_EQ(to_toml(parse(text)), to_toml(run));
}

TEST(RunFile, RealsKeepTheirValue) {
  for (const char* value : {"0.1", "3e-4", "1e-8", "0.30000000000000004", "5e-324", "1", "10"}) {
    const RunSpec run = parse("", {std::string("train.lr=") + value});
    EXPECT_EQ(run.train.lr, std::strtod(value, nullptr));
    EXPECT_EQ(parse(to_toml(run)).train.lr, run.train.lr) << value;
  }
}

TEST(RunFile, NamesAHuggingFaceModel) {
  const RunSpec run = parse("model = \"hf:/models/a b\"\n[train]\nlr = 0.5\n");
  EXPECT_EQ(run.hf_dir, "/models/a b");
  EXPECT_EQ(to_toml(parse(to_toml(run))), to_toml(run));
  EXPECT_FALSE(contains(to_toml(run), "[model]"));
  EXPECT_EQ(parse("", {"model=hf:/m"}).hf_dir, "/m");
  EXPECT_EQ(parse("", {"model=\"hf:/m\""}).hf_dir, "/m");
  EXPECT_EQ(parse("[model]\nwidth = 512\n", {"model=hf:/m"}).hf_dir, "/m");
  for (const char* value : {"\"\"", "\"hf:\"", "\"/m\"", "3", "[\"hf:/m\"]"})
    error_of([&] { parse(std::string("model = ") + value + "\n"); }, Exit::config);
  for (const char* value : {"", "hf:", "/m", "3"})
    error_of([&] { parse("", {std::string("model=") + value}); }, Exit::config);
  error_of([] { parse("model = \"hf:/m\"\n[model]\nwidth = 512\n"); }, Exit::config);  // one or the other
  const std::string message = error_of([] { parse("model = \"hf:/m\"\n", {"model.width=512"}); }, Exit::config);
  EXPECT_TRUE(contains(message, "model.width cannot change the model of /m")) << message;
}

TEST(RunFile, TellsWhichKeysChanged) {
  const auto told = [](const RunSpec& from, const RunSpec& to) {
    std::string text;
    for (const KeyChange& change : changed_keys(from, to))
      text += fmt::format("{}: {} -> {}\n", change.key, change.from, change.to);
    return text;
  };
  EXPECT_EQ(told(parse(""), parse("")), "");
  EXPECT_EQ(told(parse("[model]\nwidth = 64\n[data]\npath = \"a\"\n"),
                 parse("[model]\nwidth = 128\n[data]\npath = \"b\"\n[train]\nlr = 1e-3\n")),
            "model.width: 64 -> 128\ndata.path: \"a\" -> \"b\"\ntrain.lr: 0.0003 -> 0.001\n");
  EXPECT_EQ(told(parse("model = \"hf:/m\"\n"), parse("[model]\nwidth = 128\n")),
            "model: \"hf:/m\" -> a table of its own\n");
  EXPECT_EQ(told(parse("model = \"hf:/m\"\n"), parse("model = \"hf:/n\"\n")), "model: \"hf:/m\" -> \"hf:/n\"\n");
}

TEST(RunFile, EveryWordOfAChoiceRoundTrips) {
  for (const KeyRule& rule : key_rules())
    if (const auto* choice = std::get_if<ChoiceKey>(&rule.kind))
      for (const std::string& word : choice->words) {
        RunSpec run = parse("", {rule.key + "=" + word});
        EXPECT_EQ(choice->word(run), word) << rule.key;
      }
}

TEST(RunFile, NamesWhoMultipliesRowsWithExperts) {
  EXPECT_EQ(parse("").moe.expert_products, ExpertProducts::automatic);
  EXPECT_EQ(parse("[moe]\nexpert_products = \"grouped\"\n").moe.expert_products, ExpertProducts::grouped);
  EXPECT_EQ(parse("", {"moe.expert_products=per_expert"}).moe.expert_products, ExpertProducts::per_expert);
  error_of([] { parse("", {"moe.expert_products=library"}); }, Exit::config);
}

TEST(RunFile, OverridesApplyInOrder) {
  const RunSpec run = parse(
      "[train]\nlr = 0.5\nsteps = 7\n",
      {"train.lr=1e-3", "data.path=/usr/include/c++", "train.lr=2e-3", "train.byte_baseline=true",
       "data.suffixes=[\"\", \".h\"]", "sample.prompt=42", "log.jsonl=a=b", "log.trace=", "sample.temperature=1"});
  EXPECT_EQ(run.train.lr, 2e-3);
  EXPECT_EQ(run.train.steps, 7);
  EXPECT_EQ(run.data.path, "/usr/include/c++");
  EXPECT_TRUE(run.train.byte_baseline);
  EXPECT_EQ(run.data.suffixes, (std::vector<std::string>{"", ".h"}));
  EXPECT_EQ(run.sample.prompt, "42");  // a text key takes what stands there
  EXPECT_EQ(run.log.jsonl, "a=b");
  EXPECT_EQ(run.log.trace, "");
  EXPECT_EQ(run.sample.temperature, 1.0);
  EXPECT_EQ(parse("", {"data.path='it''s'"}).data.path, "'it''s'");  // not TOML: meant as it stands
  EXPECT_EQ(parse("", {"data.path=\"quoted é\""}).data.path, "quoted é");
  EXPECT_EQ(parse("", {"data.path=plain é"}).data.path, "plain é");
}

TEST(RunFile, OverridesAreChecked) {
  for (const char* text : {"", "=", "=3", "train.lr", "train.lr:3"}) error_of([&] { parse("", {text}); }, Exit::usage);
  const std::string deep(100'000, '[');
  for (const std::string& text : {std::string("train.lr="),
                                  std::string("train.lr=fast"),
                                  std::string("train.lr=1 2"),
                                  std::string("train.lr=1\ntrain.steps=2"),
                                  std::string("train.lr=\xc3\xa9"),
                                  std::string("train.lr=\xff"),
                                  std::string("train.lr=1#\x01"),
                                  "train.lr=" + deep,
                                  std::string("train.steps=1.5"),
                                  std::string("train.steps=0x"),
                                  std::string("train.steps=\"3\""),
                                  std::string("train.steps=99999999999999999999"),
                                  std::string("data.suffixes=.h"),
                                  std::string("data.suffixes=[1]"),
                                  std::string("data.suffixes=[\"\\u0000\"]"),
                                  std::string("data.kind=txt"),
                                  std::string("model.activation=silu"),
                                  std::string("model.score=tanh"),
                                  std::string("model.qk_norm=yes"),
                                  std::string("model.attention=linear"),
                                  std::string("data.path=\"a\\u0000\""),
                                  std::string("data.path=a\0b", 13),
                                  std::string("data.path=\xff"),
                                  std::string("data.path=\xed\xa0\x80"),
                                  std::string("train.byte_baseline=1"),
                                  std::string("train=3"),
                                  std::string("trian.lr=3"),
                                  std::string("train.lr.x=3"),
                                  std::string("model=hf:\xff")}) {
    const std::optional<Error> error = refusal_of([&] { parse("", {text}); });
    ASSERT_TRUE(error) << printable(text);
    EXPECT_EQ(error->code(), Exit::config) << error->what();
    EXPECT_TRUE(contains(error->what(), "command line")) << error->what();
  }
}

TEST(RunFile, UnknownKeysNameTheNearest) {
  for (const KeyDoc& doc : run_file_reference()) {
    if (doc.key.size() < 10) continue;              // mesh.epp may as well mean mesh.pp
    if (doc.key.rfind("debug.", 0) == 0) continue;  // for tests: not suggested
    const std::string typo = doc.key + doc.key.back();
    const std::string message = error_of([&] { parse(typo + " = 1\n"); }, Exit::config);
    EXPECT_TRUE(contains(message, "unknown key \"" + typo + "\", did you mean \"" + doc.key + "\"?")) << message;
  }
  EXPECT_TRUE(contains(error_of([] { parse("[mesh]\ne = 1\n"); }, Exit::config), "did you mean"));
  EXPECT_TRUE(contains(error_of([] { parse("[trian]\nlr = 1\n"); }, Exit::config), "did you mean \"train.lr\""));
  EXPECT_TRUE(contains(error_of([] { parse("[trian]\n"); }, Exit::config), "did you mean \"train\""));
  EXPECT_TRUE(contains(error_of([] { parse("[train.lr]\n"); }, Exit::config), "train.lr expects a number"));
  EXPECT_TRUE(contains(error_of([] { parse("[train.lr.deep]\n"); }, Exit::config), "train.lr expects a number"));
  EXPECT_TRUE(contains(error_of([] { parse("[[train]]\nlr = 1\n"); }, Exit::config), "train expects a section"));
  EXPECT_TRUE(contains(error_of([] { parse("train = 1\n"); }, Exit::config), "train expects a section"));
  EXPECT_TRUE(contains(error_of([] { parse("lr = 1\n"); }, Exit::config), "unknown key \"lr\""));
  EXPECT_TRUE(contains(error_of([] { parse("\"\\u001b[31m\" = 1\n"); }, Exit::config), "\\x1b[31m"));
}

// Checkpoints of earlier versions hold every key of their time.
TEST(RunFile, IgnoresAFormerKeyWithoutEffect) {
  EXPECT_NO_THROW(parse("[verify]\nrouting = \"learned\"\n"));
  const std::string message = error_of([] { parse("[verify]\nrouting = \"one_expert\"\n"); }, Exit::config);
  EXPECT_TRUE(contains(message, "did you mean \"moe.forced_load\"?")) << message;
}

TEST(RunFile, KnowsTheNamesOfOtherTrainers) {
  const auto refusal = [](const std::string& text) {
    const std::optional<Error> error = refusal_of([&] { parse("", {text}); });
    return error ? std::string(error->what()) + " / " + error->hint() : "accepted";
  };
  for (const auto& [wrong, right] :
       std::vector<std::pair<std::string, std::string>>{{"steps=5", "train.steps"},
                                                        {"train.learning_rate=1e-3", "train.lr"},
                                                        {"train.batch_size=8", "train.global_batch"},
                                                        {"train.micro-batch-size=2", "train.micro_batches"},
                                                        {"model.hidden_size=64", "model.width"},
                                                        {"width=64", "model.width"},
                                                        {"model.num_experts=8", "model.experts"},
                                                        {"training.lr=1", "train.lr"}})
    EXPECT_TRUE(contains(refusal(wrong), "did you mean \"" + right + "\"?")) << refusal(wrong);
  EXPECT_TRUE(contains(refusal("every=5"), "did you mean \"checkpoint.every\" or \"log.every\"?"))
      << refusal("every=5");
  // There is no such key, and no other key does the same.
  for (const char* wrong : {"mesh.dp=2", "mesh.cp=2"})
    EXPECT_FALSE(contains(refusal(wrong), "did you mean")) << refusal(wrong);
  EXPECT_TRUE(contains(refusal("mesh.dp=2"), "ranks / (mesh.pp x mesh.tp)")) << refusal("mesh.dp=2");
  EXPECT_TRUE(contains(refusal("mesh.cp=2"), "context parallelism is not supported")) << refusal("mesh.cp=2");
}

TEST(RunFile, HintsSayHowToWriteTheExpectedType) {
  const auto hint = [](const std::string& text) {
    const std::optional<Error> error = refusal_of([&] { parse("", {text}); });
    return error ? error->hint() : "accepted";
  };
  EXPECT_TRUE(contains(hint("data.suffixes=[.py]"), "'data.suffixes=[\"...\"]'")) << hint("data.suffixes=[.py]");
  EXPECT_TRUE(contains(hint("train.batch_ramp=5"), "[\"100 64\", \"200 128\"]")) << hint("train.batch_ramp=5");
  EXPECT_TRUE(contains(hint("train.lr=fast"), "without quotes"));
  EXPECT_TRUE(contains(hint("train.steps=2.5"), "a whole number"));
  EXPECT_TRUE(contains(hint("train.steps=99999999999999999999"), "set train.steps to at most"));
  EXPECT_TRUE(contains(hint("train.steps=-99999999999999999999"), "set train.steps to at least 1"));
  EXPECT_TRUE(contains(hint("train.lr=1e999"), "set train.lr to at most 10"));
  EXPECT_TRUE(contains(hint("train.lr=-1e999"), "set train.lr to at least 0"));
  EXPECT_TRUE(contains(hint("train.byte_baseline=yes"), "true or false"));
}

TEST(RunFile, MessagesNameFileAndLine) {
  const auto message = [](const std::string& text) { return error_of([&] { parse(text); }, Exit::config); };
  EXPECT_EQ(message("\n\n[train]\nlr = 1\nstepz = 3\n").rfind("run.toml:5: ", 0), 0u);
  EXPECT_EQ(message("[train]\nlr = -1\n").rfind("run.toml:2: train.lr = -1 is out of range", 0), 0u);
  // Half of it would be one step, which has no deviation.
  EXPECT_EQ(message("[train]\nspike_window = 3\n").rfind("run.toml:2: train.spike_window = 3 is out of range", 0), 0u);
  EXPECT_EQ(message("[train]\n\n\nlr = \"fast\"\n").rfind("run.toml:4: train.lr expects a number, got a string", 0),
            0u);
  EXPECT_EQ(message("[data]\nkind = \"txet\"\n"),
            "run.toml:2: data.kind = \"txet\" is not known, did you mean \"text\"?");
  EXPECT_EQ(message("[train]\nlr = \n").rfind("run.toml:2: not valid TOML", 0), 0u);
  EXPECT_EQ(message("[train]\nlr = 1\n\nlr = 2\n").rfind("run.toml:4: not valid TOML", 0), 0u);
  EXPECT_EQ(message("[train]\neps = 0.0\n").rfind("run.toml:2: train.eps", 0), 0u);  // would divide zero by zero
  EXPECT_EQ(message("a\n\n\x01").rfind("run.toml:3: control byte 0x01", 0), 0u);
  EXPECT_EQ(message("[train]\n\xc3\xa9 = 1\n").rfind("run.toml:2: a non-ASCII character", 0), 0u);
}

TEST(RunFile, TakesAnyTextInDoubleQuotes) {
  EXPECT_EQ(parse("[data] # na\xc3\xafve\npath = \"/d\xc3\xa9/\xd1\x97/\xf0\x9f\x99\x82\\\\\"\n").data.path,
            "/d\xc3\xa9/\xd1\x97/\xf0\x9f\x99\x82\\");
  const auto message = [](const std::string& text) { return error_of([&] { parse(text); }, Exit::config); };
  EXPECT_TRUE(contains(message("[data]\npath = '\xc3\xa9'\n"), "run.toml:2: a non-ASCII character in single quotes"));
  EXPECT_TRUE(contains(message("[data]\npath = \"\\\xc3\xa9\"\n"), "run.toml:2: a non-ASCII character after a backsl"));
  EXPECT_TRUE(contains(message("[data]\npath = \"\xc3\"\n"), "run.toml:2: not UTF-8"));
  // A quote inside a number opens no string for the TOML library, which must not see the character then.
  EXPECT_TRUE(contains(message("[model]\nlayers = 0xa.path=\"\xd1\x97\"\n"), "run.toml:2: not valid TOML"));
}

TEST(RunFile, ReadsFiles) {
  const ScratchDir dir;
  write_raw(dir / "run.toml", "[train]\r\nlr = 0.25 # windows\r\n");
  EXPECT_EQ(read_run_file(dir / "run.toml", {"train.steps=5"}).train.lr, 0.25);
  write_raw(dir / "large.toml", std::string((size_t{1} << 20) + 1, '\n'));
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  for (const char* name : {"absent.toml", "", "pipe", "large.toml", "run.toml/x"}) {
    const std::optional<Error> error = refusal_of([&] { read_run_file(dir / name, {}); });
    ASSERT_TRUE(error) << name;
    EXPECT_EQ(error->code(), Exit::config);
    EXPECT_TRUE(contains(error->what(), dir / name)) << error->what();
  }
}

}  // namespace
}  // namespace mw::test
