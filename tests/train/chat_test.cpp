// Chat: where an answer ends, and that later turns are computed as a whole conversation is.
#include "train/loop/chat.h"

#include "train/helpers.h"

namespace mw::test {
namespace {

std::string shown(AnswerText& text, const std::vector<std::string>& pieces) {
  std::string all;
  for (const std::string& piece : pieces) all += text.add(piece) + "|";
  return all;
}

TEST(AnswerText, EndsWhereTheUserBegins) {
  AnswerText text;
  EXPECT_EQ(shown(text, {"a\n", "\nUs", "e", "\nUser", ": b"}), "a|\n||\nUse||");
  EXPECT_TRUE(text.ended());
  EXPECT_EQ(text.finish(), "");
}

TEST(AnswerText, ShowsWhatOnlyLooksLikeTheEnd) {
  AnswerText text;
  EXPECT_EQ(shown(text, {"x\nUser", " y", "\nUser"}), "x|\nUser y||");
  EXPECT_FALSE(text.ended());
  EXPECT_EQ(text.finish(), "\nUser");
}

// The second answer is what `generate` makes of the conversation so far.
TEST(Chat, KeepsEarlierTurns) {
  const std::unique_ptr<Comm> world = make_self_comm();
  RunSpec run = small_run();
  run.native.vocab = 128;  // answers are ASCII
  run.train.global_batch = run.train.micro_batches = 1;
  run.train.seq_len = 200;
  run.sample.tokens = 12;
  run.sample.temperature = 0;
  Engine engine(build_native_model(run.native), run, *world, 1);
  engine.params.initialise(3, engine.stream);
  refresh_weights(engine);
  const std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer();
  Chat chat(engine, tokenizer.get(), run.sample);
  std::string conversation;
  for (const char* turn : {"one", "two"}) {
    conversation += fmt::format("{}User: {}\nAssistant:", conversation.empty() ? "" : "\n", turn);
    std::string answer, expected;
    ASSERT_TRUE(chat.answer(chat.encode(turn), [&](std::string_view piece) { answer += piece; }));
    Engine other(build_native_model(run.native), run, *world, 1);
    other.params.initialise(3, other.stream);
    refresh_weights(other);
    generate(other, tokenizer.get(), run.sample, {conversation},
             [&](size_t, std::string_view piece) { expected += piece; });
    EXPECT_EQ(answer, expected);
    EXPECT_GE(answer.size(), 12u);
    conversation += answer;
  }
  EXPECT_FALSE(chat.answer({}, [](std::string_view) {}));
}

}  // namespace
}  // namespace mw::test
