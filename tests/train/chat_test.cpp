// Chat: where an answer ends, and that later turns are computed as a whole conversation is.
#include "train/loop/chat.h"

#include "formats/byte_level_tokenizer.h"
#include "support/thread_comm.h"
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

// A model without weights always chooses token 0. All ranks stop at either end of an answer, and at nothing else.
TEST(Chat, EndsAnswersWithEitherTokenOfTheTemplate) {
  using Tokens = std::vector<std::string_view>;
  for (Tokens special : {Tokens{"<|end|>", "<|return|>", "<|start|>"}, Tokens{"<|return|>", "<|end|>", "<|start|>"},
                         Tokens{"<|start|>", "<|return|>", "<|end|>"}}) {
    special.insert(special.end(), {"<|message|>", "<|channel|>"});
    run_ranks(2, [&](Comm& world, Stream&) {
      RunSpec run = small_run();
      run.native.vocab = 300;
      run.mesh.ep = 2;
      run.train.global_batch = 2;
      run.train.micro_batches = 1;
      run.train.seq_len = 700;
      run.sample.tokens = 3;
      run.sample.temperature = 0;
      Engine engine(build_native_model(run.native), run, world, 1);
      for (Parameter& p : engine.params.all())
        p.set_master(engine.device, 0, std::vector<float>(static_cast<size_t>(p.held.count)));
      refresh_weights(engine);
      const std::unique_ptr<Tokenizer> tokenizer = world.rank() == 0 ? byte_level_tokenizer(special) : nullptr;
      Chat chat(engine, tokenizer.get(), run.sample, &find_chat_template("gpt_oss", true));
      std::string answer;
      const std::vector<int32_t> turn = world.rank() == 0 ? chat.encode("a") : std::vector<int32_t>();
      EXPECT_TRUE(chat.answer(turn, [&](std::string_view piece) { answer += piece; }));
      EXPECT_EQ(answer.empty(), special[0] != "<|start|>" || world.rank() == 1) << special[0];
    });
  }
}

}  // namespace
}  // namespace mw::test
