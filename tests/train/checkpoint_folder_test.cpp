// The folder of checkpoints: what is kept, what is offered, and how much is written.
#include "train/checkpoint/checkpoint.h"

#include <fmt/ranges.h>

#include <chrono>
#include <future>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/counting_comm.h"
#include "support/thread_comm.h"
#include "train/checkpoint/checkpoint_files.h"
#include "train/checkpoint/checkpoint_folder.h"
#include "train/checkpoint/shared_folder.h"
#include "train/helpers.h"

namespace mw::test {
namespace {

struct Saver {
  Saver() : engine(build_native_model(small_run().native), small_run(), *world, 1) {
    engine.params.initialise(3, engine.stream);
    engine.params.repack(engine.stream);
  }
  void save(int64_t step, int64_t keep) { save_checkpoint(engine, dir.path(), {step, step}, keep); }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
      found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }

  ScratchDir dir;
  std::unique_ptr<Comm> world = make_self_comm();
  Engine engine;
};

using Names = std::vector<std::string>;

TEST(CheckpointFolder, KeepsTheNewest) {
  Saver s;
  for (const int64_t step : {2, 4, 6}) s.save(step, 2);
  EXPECT_EQ(s.names(), (Names{"step-00000004", "step-00000006"}));
}

// Watches a folder when the ranks meet.
class WatchingComm : public ForwardingComm {
 public:
  WatchingComm(Comm& inner, std::string folder) : ForwardingComm(inner), folder_(std::move(folder)) {}
  void barrier() override {
    look();
    ForwardingComm::barrier();
  }
  using ForwardingComm::all_reduce_max;
  void all_reduce_max(std::span<int64_t> values) override {
    look();
    ForwardingComm::all_reduce_max(values);
  }
  Progress* progress() override { return &progress_; }

  bool was_there = false;  // when they met last
  int64_t moves = 0;       // until then

 private:
  void look() {
    was_there = std::filesystem::exists(folder_);
    moves = progress_.read().moves;
  }

  std::string folder_;
  Progress progress_;
};

// Removing thousands of files takes long: no other rank waits for it, and the watchdog sees it move.
TEST(CheckpointFolder, RemovesOldOnesWhenTheNewOneIsCompleteForAllRanks) {
  const ScratchDir dir;
  const std::string old = dir / "step-00000002";
  const std::unique_ptr<Comm> alone = make_self_comm();
  WatchingComm world(*alone, old);
  Engine engine(build_native_model(small_run().native), small_run(), world, 1);
  save_checkpoint(engine, dir.path(), {2, 2}, 1);
  for (int rank = 1; rank < 50; ++rank)
    write_raw(old + fmt::format("/rank-{:05}.safetensors", rank), "of a larger run");
  save_checkpoint(engine, dir.path(), {4, 4}, 1);
  EXPECT_TRUE(world.was_there);
  EXPECT_FALSE(std::filesystem::exists(old));
  EXPECT_GE(world.progress()->read().moves - world.moves, 50);
}

// A run that went back to an older step writes lower steps than those that are there.
TEST(CheckpointFolder, NeverPrunesTheOneJustWritten) {
  Saver s;
  for (const int64_t step : {30, 40}) s.save(step, 2);
  s.save(10, 2);
  EXPECT_EQ(s.names(), (Names{"step-00000010", "step-00000040"}));
  s.save(20, 1);
  EXPECT_EQ(s.names(), Names{"step-00000020"});
}

// Without a broadcast of each rank's entries to all.
TEST(CheckpointFolder, RankZeroAloneGathersTheEntries) {
  for (const int ranks : {1, 5})
    run_ranks(ranks, [&](Comm& world, Stream&) {
      CountingComm counting(world);
      nlohmann::json own = nlohmann::json::array(), expected = nlohmann::json::array();
      for (int rank = 0; rank < ranks; ++rank)
        for (int i = 0; i < rank % 3 * 40; ++i) {  // some have none
          if (world.rank() == rank) own.push_back({{"tensor", i}, {"of", rank}});
          if (world.rank() == 0) expected.push_back({{"tensor", i}, {"of", rank}});
        }
      EXPECT_EQ(gather_entries(counting, own), expected);
      EXPECT_EQ(counting.gathered_bytes, 0);
      EXPECT_EQ(counting.exchanges(256), 1);
    });
}

// Nobody could read it, and older ones would be gone.
TEST(CheckpointFolder, IsNotCompleteWithAnIndexThatIsTooLarge) {
  Saver s;
  s.save(1, 1);
  const std::string folder = s.dir / "step-00000001", text = read_raw(folder + "/index.json");
  std::filesystem::remove(folder + "/DONE");
  const nlohmann::json slices = nlohmann::json::parse(text)["slices"];
  const CheckpointContents contents{{1, 1}, to_toml(small_run()), ""};
  const auto complete = [&](size_t limit) {
    complete_checkpoint(folder, contents, s.engine.plan.params, slices, limit);
  };
  const std::string error = error_of([&] { complete(text.size() / 2); }, Exit::checkpoint);
  EXPECT_TRUE(contains(error, fmt::format("index.json: {} slices take", slices.size()))) << error;
  EXPECT_TRUE(list_checkpoints(s.dir.path()).empty());
  complete(2 * text.size());
  EXPECT_EQ(list_checkpoints(s.dir.path()), Names{folder});
}

TEST(CheckpointFolder, EveryRankMustSeeIt) {
  const ScratchDir shared, own;
  run_ranks(3, [&](Comm& world, Stream&) { check_shared_folder(world, shared.path()); });
  EXPECT_TRUE(std::filesystem::is_empty(shared.path()));
  run_ranks(3, [&](Comm& world, Stream&) {
    const std::string dir = world.rank() == 1 ? own.path() : shared.path();
    try {
      check_shared_folder(world, dir, std::chrono::milliseconds(300));
      ADD_FAILURE() << "rank " << world.rank() << " misses nothing";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::checkpoint);
      EXPECT_NE(std::string(error.what()).find("rank 1 on"), std::string::npos) << error.what();
    }
  });
  EXPECT_TRUE(std::filesystem::is_empty(shared.path()));
}

// Of a run that was resumed: what only says where things are written is no change.
TEST(CheckpointFolder, TellsWhatChangedSince) {
  const RunSpec then = small_run();
  const auto told = [&](const RunSpec& now) {
    return fmt::format("{}", fmt::join(describe_changes(to_toml(then), now), "\n"));
  };
  RunSpec now = then;
  now.checkpoint.dir = "elsewhere";
  now.log.every = 77;
  EXPECT_EQ(told(now), "");
  now.train.lr = 0.25;
  now.mesh.ep = 2;
  EXPECT_EQ(told(now),
            fmt::format("changed since the checkpoint: train.lr = 0.25 (was {}), mesh.ep = 2 (was 1)", then.train.lr));
  now.data.val_path = "held out";
  EXPECT_TRUE(contains(told(now), "warning: data.val_path changed: of the samples from here on")) << told(now);
  now = then;
  now.train.seed += 1;
  now.data.path = "other";
  EXPECT_TRUE(contains(told(now), "\nwarning: data.path, train.seed changed: of the samples")) << told(now);
  // Where documents begin decides which tokens a sample has only if samples hold whole documents.
  now = then;
  now.data.document_token = 7;
  EXPECT_FALSE(contains(told(now), "warning")) << told(now);
  now.data.whole_documents = true;
  EXPECT_TRUE(contains(told(now), "\nwarning: data.whole_documents, data.document_token changed: of the samples"))
      << told(now);
  // Data that grew at the same path; one warning where its path changed, too.
  EXPECT_EQ(describe_data_change({}, {5}), "");
  EXPECT_EQ(describe_data_change({5, 6}, {5, 6}), "");
  const std::string grown = describe_data_change({500, 6}, {512, 6});
  EXPECT_EQ(grown, "the data (512 + 6 tokens, was 500 + 6)");
  const std::vector<std::string> warned = describe_changes(to_toml(then), then, grown);
  ASSERT_EQ(warned.size(), 1u);
  EXPECT_TRUE(contains(warned[0], "warning: the data (512 + 6 tokens, was 500 + 6) changed: of the samples"))
      << warned[0];
  EXPECT_FALSE(contains(fmt::format("{}", fmt::join(describe_changes(to_toml(then), now, grown), "\n")), "512"));
  now = then;
  now.native.top_k += 1;
  EXPECT_TRUE(contains(told(now), "\nwarning: model.top_k changed: the weights were trained as another model"))
      << told(now);
  const std::vector<std::string> unknown = describe_changes("[model]\nwith = 3\n", then);
  ASSERT_EQ(unknown.size(), 1u);
  EXPECT_TRUE(contains(unknown[0], "warning: whether settings have changed")) << unknown[0];
}

// A folder that the user renamed is no longer one of the run's: it is neither resumed from nor pruned.
TEST(CheckpointFolder, LeavesOtherNamesAlone) {
  Saver s;
  s.save(1, 1);
  for (const char* name : {"step-00000001-best", "step-", "step-1x", "step--0", "step- 3", "step-99999999999999999999"})
    std::filesystem::copy(s.dir / "step-00000001", s.dir / name);
  s.save(2, 1);
  EXPECT_EQ(newest_checkpoint(s.dir.path()), s.dir / "step-00000002");
  EXPECT_EQ(list_checkpoints(s.dir.path()).size(), 1u);
  EXPECT_EQ(s.names().size(), 7u);
}

TEST(CheckpointFolder, SortsByNumber) {
  const ScratchDir dir;
  for (const char* name : {"step-99999999", "step-100000000", "step-00000005"})
    write_raw((dir / name) + "/DONE", "x\n");
  EXPECT_EQ(list_checkpoints(dir.path()),
            (Names{dir / "step-00000005", dir / "step-99999999", dir / "step-100000000"}));
}

std::string everything_of(const std::string& folder) {
  std::string all;
  for (const char* name : {"/index.json", "/DONE", "/rank-00000.safetensors"}) all += read_raw(folder + name);
  return all;
}

// Gradients change while it is written, and come in none of its bytes.
TEST(CheckpointFolder, WritesBesideTheNextGradients) {
  Saver s;
  s.save(1, 1);
  const std::string at_once = everything_of(s.dir / "step-00000001");
  std::filesystem::remove_all(s.dir / "step-00000001");
  {
    CheckpointSave save(s.engine, s.dir.path(), {1, 1}, 1);
    EXPECT_EQ(save.folder(), s.dir / "step-00000001");
    EXPECT_TRUE(list_checkpoints(s.dir.path()).empty());
    accumulate_gradients(s.engine, stage(s.engine, random_batches(s.engine.plan)));
    EXPECT_TRUE(list_checkpoints(s.dir.path()).empty());
    save.finish();
  }
  EXPECT_EQ(everything_of(s.dir / "step-00000001"), at_once);
}

TEST(CheckpointFolder, WhatIsNotFinishedIsNoCheckpoint) {
  Saver s;
  s.save(1, 1);
  { const CheckpointSave given_up(s.engine, s.dir.path(), {2, 2}, 1); }
  EXPECT_EQ(list_checkpoints(s.dir.path()), Names{s.dir / "step-00000001"});
  EXPECT_FALSE(std::filesystem::exists(s.dir / "step-00000002/DONE"));
  s.save(2, 1);
  EXPECT_EQ(list_checkpoints(s.dir.path()), Names{s.dir / "step-00000002"});
}

// What was begun and never completed takes a disk's room until it goes.
TEST(CheckpointFolder, RemovesWhatNeverCompleted) {
  Saver s;
  for (const char* name : {"step-00000001", "step-00000002", "step-00000003", "step-00000009"})
    for (const char* file : {"/rank-00000.safetensors", "/rank-00007.safetensors.tmp"})
      write_raw((s.dir / name) + file, "begun");
  write_raw((s.dir / "step-00000002") + "/notes.txt", "the user's");
  s.save(3, 2);
  EXPECT_EQ(s.names(), (Names{"step-00000002", "step-00000003", "step-00000009"}));
  EXPECT_FALSE(std::filesystem::exists((s.dir / "step-00000002") + "/rank-00000.safetensors"));
  EXPECT_FALSE(std::filesystem::exists((s.dir / "step-00000003") + "/rank-00007.safetensors.tmp"));
}

TEST(CheckpointFolder, IsOneRunsAtATime) {
  const ScratchDir dir;
  RunSpec run = small_run();
  EXPECT_EQ(claim_checkpoint_folder(run), nullptr);
  run.checkpoint.dir = dir / "new/one";
  std::unique_ptr<OutputLock> lock = claim_checkpoint_folder(run);
  EXPECT_TRUE(lock->is_held());
  auto second = std::async(std::launch::async, [&] { return claim_checkpoint_folder(run) != nullptr; });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  lock.reset();  // while the other one waits
  EXPECT_TRUE(second.get());
}

// Of a folder that was resumed from and lies elsewhere, a checkpoint of the same step is another one.
TEST(CheckpointFolder, TellsItsOwnFromOthersOfThatStep) {
  Saver a, b;
  a.save(4, 1);
  b.save(4, 1);
  RunSpec run = small_run();
  run.checkpoint.dir = b.dir.path();
  EXPECT_TRUE(holds_checkpoint(run, b.dir / "step-00000004"));
  EXPECT_FALSE(holds_checkpoint(run, a.dir / "step-00000004"));
  refuse_newer_checkpoints(run, 4, (b.dir / "step-00000004") + "/");
  const std::string error =
      error_of([&] { refuse_newer_checkpoints(run, 4, a.dir / "step-00000004"); }, Exit::checkpoint);
  EXPECT_TRUE(contains(error, "step-00000004") && contains(error, b.dir.path())) << error;
}

TEST(CheckpointFolder, CannotBeReadIsNotEmpty) {
  const ScratchDir dir;
  EXPECT_TRUE(list_checkpoints(dir / "absent").empty());
  write_raw(dir / "file", "x");
  EXPECT_TRUE(contains(error_of([&] { list_checkpoints(dir / "file"); }, Exit::checkpoint), "cannot read the folder"));
}

TEST(CheckpointFolder, ErrorsOfWritingComeAtTheEnd) {
  Saver s;
  s.save(1, 2);
  std::filesystem::create_directories((s.dir / "step-00000002") + "/rank-00000.safetensors/in the way");
  CheckpointSave save(s.engine, s.dir.path(), {2, 2}, 2);
  const std::string error = error_of([&] { save.finish(); }, Exit::checkpoint);
  EXPECT_TRUE(contains(error, "rank-00000.safetensors")) << error;
  EXPECT_EQ(list_checkpoints(s.dir.path()), Names{s.dir / "step-00000001"});
}

// Of the ranks the last one fails alone, or the first one, which writes the index: all have its error.
TEST(CheckpointFolder, AllRanksFailTogetherAndNothingIsLeft) {
  for (const char* name : {"/rank-00001.safetensors", "/index.json"}) {
    const ScratchDir dir;
    run_ranks(2, [&](Comm& world, Stream&) {
      Engine engine(build_native_model(small_run().native), small_run(), world, 1);
      engine.params.initialise(3, engine.stream);
      save_checkpoint(engine, dir.path(), {1, 1}, 1);
      const std::string folder = dir / "step-00000002", obstacle = folder + name;
      if (world.rank() == 0) std::filesystem::create_directories(obstacle + "/in the way");
      world.barrier();
      CheckpointSave save(engine, dir.path(), {2, 2}, 1);
      try {
        save.finish();
        ADD_FAILURE() << "rank " << world.rank() << " knows nothing of " << name;
      } catch (const Error& error) {
        EXPECT_TRUE(is_save_failure(error) && contains(error.what(), obstacle)) << error.what();
      }
      world.barrier();
      std::vector<std::string> left;
      for (const auto& entry : std::filesystem::directory_iterator(folder)) left.push_back(entry.path().native());
      EXPECT_EQ(left, Names{obstacle});
      EXPECT_EQ(list_checkpoints(dir.path()), Names{dir / "step-00000001"});
      world.barrier();
      if (world.rank() == 0) std::filesystem::remove_all(obstacle);
      world.barrier();
      save_checkpoint(engine, dir.path(), {2, 2}, 1);
      EXPECT_EQ(newest_checkpoint(dir.path()), folder);
    });
  }
}

TEST(CheckpointFolder, BytesAreThoseOfTheTensors) {
  Saver s;
  s.save(1, 1);
  int64_t written = 0;
  for (const CheckpointSlice& slice : read_checkpoint_index(s.dir / "step-00000001").slices)
    written += slice.part.size * 4;
  EXPECT_EQ(checkpoint_bytes(s.engine.plan), written);
  // Every tensor is written once, however many ranks hold it.
  RunSpec spread = small_run();
  spread.mesh.ep = 2;
  const Plan of_four = make_plan(s.engine.plan.model, spread, 4, 3, {});
  EXPECT_EQ(checkpoint_bytes(of_four), written);
  RunSpec halved = small_run();
  halved.moments = DType::bf16;
  int64_t trained = 0;
  for (const ParamRow& row : of_four.params) trained += row.trained ? row.numel() : 0;
  EXPECT_EQ(checkpoint_bytes(make_plan(s.engine.plan.model, halved, 1, 0, {})), written - 4 * trained);
}

TEST(CheckpointFolder, TakesNoWeightsThatAreNotFinite) {
  Saver s;
  s.save(1, 1);
  s.engine.params.find("layers.1.moe.w_up").master.as<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  const std::string message = error_of([&] { s.save(2, 1); }, Exit::numeric);
  EXPECT_TRUE(contains(message, "step 2") && contains(message, "layers.1.moe.w_up")) << message;
  EXPECT_EQ(s.names(), Names{"step-00000001"});
}

TEST(CheckpointFolder, OffersAnOlderOne) {
  Saver s;
  for (const int64_t step : {2, 4}) s.save(step, 2);
  std::filesystem::remove(s.dir / "step-00000004/index.json");
  for (const char* slash : {"", "/"}) {
    try {
      load_checkpoint(s.engine, (s.dir / "step-00000004") + slash);
      ADD_FAILURE() << "a checkpoint without index was loaded";
    } catch (const Error& error) {
      EXPECT_TRUE(contains(error.hint(), "checkpoint.resume=" + (s.dir / "step-00000002"))) << error.hint();
      EXPECT_TRUE(contains(error.hint(), fmt::format("move {} away", s.dir / "step-00000004"))) << error.hint();
    }
  }
}

}  // namespace
}  // namespace mw::test
