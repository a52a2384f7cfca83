// Opening the data of a run: what is warned about, and how ranks share the look at the files.
#include <filesystem>
#include <numeric>

#include "support/thread_comm.h"
#include "support/token_writers.h"
#include "train/data/comm_ranks.h"
#include "train/data/data.h"
#include "train/helpers.h"

namespace mw::test {
namespace {

TEST(OpenSamples, WarnWhereValidationDataIsTrainingDataToo) {
  const ScratchDir dir;
  for (const char* folder : {"s", "t", "other"}) std::filesystem::create_directory(dir / folder);
  for (const char* name : {"s/train_1.bin", "s/train_2.bin", "s/val_1.bin", "other/val_1.bin"})
    write_token_shard(dir / name, std::vector<int32_t>{1, 2, 3});
  for (const char* name : {"t/a.txt", "t/b.txt", "other/b.txt"}) write_raw(dir / name, "text");
  write_megatron(dir / "m", {{1, 2}});
  std::filesystem::create_symlink(dir / "s/val_1.bin", dir / "other/link.bin");
  RunSpec run = small_run();
  const auto doubt = [&](DataKind kind, const std::string& path, const std::string& val_path) {
    run.data.kind = kind;
    run.data.path = dir / path;
    run.data.val_path = val_path.empty() ? "" : dir / val_path;
    return doubt_about_validation(run);
  };
  const DataKind text = DataKind::text, shards = DataKind::shards, megatron = DataKind::megatron;
  EXPECT_EQ(doubt(shards, "s", ""), "");
  EXPECT_EQ(doubt(shards, "s/train_*.bin", "s/val_*.bin"), "");
  EXPECT_EQ(doubt(shards, "s", "other/val_1.bin"), "");
  EXPECT_EQ(doubt(text, "t", "other"), "");
  EXPECT_EQ(doubt(megatron, "m", "other/m"), "");
  const std::string one = doubt(shards, "s", "s/val_*.bin");
  EXPECT_TRUE(contains(one, "1 of 1 files") && contains(one, dir / "s/val_1.bin")) << one;
  EXPECT_TRUE(contains(doubt(shards, "s", "other"), "1 of 2 files of data.val_path")) << "through a link";
  EXPECT_TRUE(contains(doubt(shards, "s/*_1.bin", "s"), "2 of 3 files"));
  EXPECT_TRUE(contains(doubt(text, "t", "t/b.txt"), "1 of 1 files"));
  EXPECT_TRUE(contains(doubt(text, "t/../t", "t"), "2 of 2 files"));
  EXPECT_TRUE(contains(doubt(megatron, "m", "m.idx"), "m.bin"));
  run.data.blend = {"0.5 " + (dir / "s/train_*.bin"), "0.5 " + (dir / "s/val_1.bin")};
  EXPECT_TRUE(contains(doubt(shards, "", "s/val_1.bin"), "1 of 1 files"));
}

TEST(OpenSamples, WarnWhereTextHoldsNulBytes) {
  const ScratchDir dir;
  for (const char* folder : {"mixed", "text"}) std::filesystem::create_directory(dir / folder);
  write_raw(dir / "mixed/a.txt", "text");
  write_raw(dir / "mixed/b.o", std::string("ELF\0", 4));
  write_raw(dir / "mixed/c.o", std::string(4095, 'x') + '\0');
  write_raw(dir / "text/long", std::string(4096, 'x') + '\0');
  RunSpec run = small_run();
  run.data.path = dir / "text";
  EXPECT_EQ(doubt_about_text(run), "") << "beyond the first 4 KiB";
  run.data.val_path = dir / "mixed";
  const std::string doubt = doubt_about_text(run);
  EXPECT_TRUE(contains(doubt, dir / "mixed/b.o" + " holds NUL bytes") && contains(doubt, "(2 of 3 files at ") &&
              contains(doubt, "data.suffixes"))
      << doubt;
  run.data.suffixes = {".txt", ""};
  EXPECT_EQ(doubt_about_text(run), "");
  run.data.blend = {"1 " + (dir / "mixed/a.txt"), "1 " + (dir / "mixed/c.o")};
  EXPECT_TRUE(contains(doubt_about_text(run), dir / "mixed/c.o" + " holds")) << doubt_about_text(run);
  run.data.kind = DataKind::shards;
  EXPECT_EQ(doubt_about_text(run), "");
}

// Whole files are held out, so that the share of the bytes may be another than the one asked for.
TEST(OpenSamples, WarnWhereTextHoldsOutAnotherShare) {
  const ScratchDir dir;
  for (const char* folder : {"two", "many", "one"}) std::filesystem::create_directory(dir / folder);
  for (const char* name : {"two/a.txt", "two/b.txt", "one/a.txt"}) write_raw(dir / name, std::string(1000, 'x'));
  for (int i = 0; i < 400; ++i) write_raw(dir / fmt::format("many/{}.txt", i), std::string(10, 'x'));
  RunSpec run = small_run();
  const auto doubt = [&](const std::string& path, double fraction) {
    run.data.path = path.empty() ? "" : dir / path;
    run.data.val_fraction = fraction;
    return doubt_about_split(run);
  };
  const std::string half = doubt("two", 0.05);
  EXPECT_TRUE(contains(half, "data.val_fraction = 0.05 asks for 5 % of data.path = \"" + dir / "two" + "\"") &&
              contains(half, "1 of 2 files, with 50 % of the bytes") && contains(half, "data.val_path"))
      << half;
  EXPECT_EQ(doubt("two", 0.4), "");
  EXPECT_EQ(doubt("two", 0.9), "");
  EXPECT_EQ(doubt("two", 0), "");
  EXPECT_EQ(doubt("many", 0.2), "");
  EXPECT_EQ(doubt("one", 0.05), "");
  EXPECT_EQ(doubt("one/a.txt", 0.05), "");
  EXPECT_EQ(doubt("absent", 0.05), "");
  run.data.blend = {"1 " + (dir / "many"), "2 " + (dir / "two")};
  EXPECT_TRUE(contains(doubt("", 0.2), "of data.blend = \"" + dir / "two" + "\""));
  run.data.val_path = dir / "one";
  EXPECT_EQ(doubt("", 0.2), "");
}

// Token files of each kind, each with one damaged part, which one of the ranks checks.
TEST(OpenSamples, RanksShareTheLookAtFilesAndTheErrors) {
  const ScratchDir dir;
  std::vector<int32_t> tokens(600);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<std::vector<int32_t>> documents;
  std::filesystem::create_directory(dir / "s");
  for (size_t i = 0; i < 6; ++i) {
    documents.emplace_back(tokens.begin() + static_cast<int64_t>(100 * i),
                           tokens.begin() + static_cast<int64_t>(100 * i + 100));
    write_token_shard(dir / fmt::format("s/{}.bin", i), documents.back());
  }
  write_megatron(dir / "m", documents);
  RunSpec run = small_run();
  run.data.val_fraction = 0;
  const auto read_all = [&](const OpeningRanks& ranks) {
    const std::unique_ptr<SampleOrder> samples = open_samples(run, 1000, false, ranks);
    std::vector<int32_t> read(static_cast<size_t>(samples->source().size()));
    samples->source().read(0, read);
    return read;
  };
  const auto expect_same_errors = [&](const std::string& part) {
    run_ranks(4, [&](Comm& world, Stream&) {
      const std::string message = error_of([&] { read_all(CommRanks(world)); });
      EXPECT_TRUE(contains(message, part) && contains(message, "data.path: ")) << message;
    });
  };
  for (const DataKind kind : {DataKind::shards, DataKind::megatron}) {
    run.data.kind = kind;
    run.data.path = kind == DataKind::shards ? dir / "s" : dir / "m";
    run_ranks(4, [&](Comm& world, Stream&) { EXPECT_EQ(read_all(CommRanks(world)), tokens); });
  }
  write_raw(dir / "m.idx", with_value(read_raw(dir / "m.idx"), 34 + 4 * 5, int32_t{-3}));
  expect_same_errors("m.idx: sequence 5: negative length -3");
  run.data.kind = DataKind::shards;
  for (const char* name : {"s/4.bin", "s/2.bin"}) {  // the first bad one is named
    write_raw(dir / name, "x");
    run.data.path = dir / "s";
    expect_same_errors(name);
  }
  run.data.path = dir / "absent";
  expect_same_errors("absent: no token shard found");
}

}  // namespace
}  // namespace mw::test
