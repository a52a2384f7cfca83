// The index of a checkpoint against damaged and hostile text.
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "formats/io/checksum.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_reader.h"
#include "train/helpers.h"

namespace mw::test {
namespace {

using nlohmann::json;

json part(const char* tensor, int64_t axis, int64_t begin, int64_t count, int64_t first, int64_t size) {
  return {{"tensor", tensor},
          {"axis", axis},
          {"begin", begin},
          {"count", count},
          {"first", first},
          {"size", size},
          {"file", "rank-00000.safetensors"},
          {"key", fmt::format("{}@{}", tensor, begin)},
          {"xxh3", "0123456789abcdef"}};
}

// Entries of axis 0 of a tensor of three columns.
json slice(const char* tensor, int64_t begin, int64_t count) { return part(tensor, 0, begin, count, 0, 3 * count); }

json valid_index() {
  json index = {{"format", "moewright-checkpoint"}, {"version", 2}, {"step", 12}, {"samples", 96}, {"run", ""}};
  index["tensors"] = {{"param.a", {6, 3}}, {"param.b", {2}}, {"adam_m.a", {6, 3}}};
  index["slices"] = {slice("param.a", 0, 2),          slice("param.a", 2, 4),          part("param.b", 0, 0, 2, 0, 2),
                     part("adam_m.a", 1, 0, 1, 0, 6), part("adam_m.a", 1, 1, 2, 0, 5), part("adam_m.a", 1, 1, 2, 5, 7)};
  return index;
}

// As the first version wrote it.
json old_index() {
  json index = valid_index();
  index["version"] = 1;
  index["slices"].erase(5);
  index["slices"].erase(4);
  index["slices"][3] = slice("adam_m.a", 0, 6);
  for (json& entry : index["slices"])
    for (const char* key : {"axis", "first", "size"}) entry.erase(key);
  return index;
}

CheckpointIndex parse(const std::string& text) { return parse_checkpoint_index(text, "dir/index.json"); }

void expect_refused(const json& index, std::string_view part) {
  const std::string message = error_of([&] { parse(index.dump()); }, Exit::checkpoint);
  EXPECT_TRUE(contains(message, part) && contains(message, "dir/index.json")) << message << "\n" << index.dump();
}

TEST(CheckpointIndex, ReadsALossWhereThereIsOne) {
  json index = valid_index();
  EXPECT_EQ(parse(index.dump()).state.loss, std::nullopt);
  index["loss"] = 1.25;
  EXPECT_EQ(parse(index.dump()).state.loss, 1.25);
  index["loss"] = "low";
  expect_refused(index, "\"loss\" expects a number");
}

TEST(CheckpointIndex, TokensOfTheData) {
  json index = valid_index();
  EXPECT_TRUE(parse(index.dump()).state.data_tokens.empty());
  index["data_tokens"] = {int64_t{1} << 40, 0};
  EXPECT_EQ(parse(index.dump()).state.data_tokens, (std::vector<int64_t>{int64_t{1} << 40, 0}));
  for (const json& value : {json(7), json("7"), json::array({-1}), json::array({1.5}), json::array({~uint64_t{0}})}) {
    index["data_tokens"] = value;
    expect_refused(index, "\"data_tokens\" expects a list");
  }
}

TEST(CheckpointIndex, HistoryOfSteps) {
  json index = valid_index();
  EXPECT_EQ(parse(index.dump()).state.skipped, 0);
  EXPECT_TRUE(parse(index.dump()).state.history.losses.empty());
  index["skipped"] = 2;
  index["history"] = {{"losses", {0.1, 2}}, {"norms", {3.5, 1e-300}}};
  const RunState state = parse(index.dump()).state;
  EXPECT_EQ(state.skipped, 2);
  EXPECT_EQ(state.history.losses, (std::vector<double>{0.1, 2}));
  EXPECT_EQ(state.history.norms, (std::vector<double>{3.5, 1e-300}));
  index["history"]["norms"] = {1};
  expect_refused(index, "2 losses and 1 norms");
  index["history"]["norms"] = {1, "x"};
  expect_refused(index, "\"norms\" expects a list of numbers");
  index["history"].erase("norms");
  expect_refused(index, "\"norms\" is missing");
  index.erase("history");
  index["skipped"] = 1'000'000;
  expect_refused(index, "steps were skipped");
  index["skipped"] = -1;
  expect_refused(index, "\"skipped\" expects an integer");
}

TEST(CheckpointIndex, ReadsWhatIsThere) {
  const CheckpointIndex index = parse(valid_index().dump(1));
  EXPECT_EQ(index.state.step, 12);
  EXPECT_EQ(index.state.samples, 96);
  ASSERT_EQ(index.tensors.size(), 3u);
  ASSERT_EQ(index.slices.size(), 6u);
  EXPECT_EQ(index.slices[1].part, (TensorSlice{0, 2, 4, 0, 12}));
  EXPECT_EQ(index.slices[1].key, "param.a@2");
  EXPECT_EQ(index.slices[5].part, (TensorSlice{1, 1, 2, 5, 7}));
  // A checkpoint of nothing is complete.
  json none = valid_index();
  none["tensors"] = json::object();
  none["slices"] = json::array();
  EXPECT_TRUE(parse(none.dump()).tensors.empty());
}

TEST(CheckpointIndex, ReadsTheFirstVersion) {
  const CheckpointIndex index = parse(old_index().dump());
  ASSERT_EQ(index.slices.size(), 4u);
  EXPECT_EQ(index.slices[1].part, (TensorSlice{0, 2, 4, 0, 12}));
  EXPECT_EQ(index.slices[3].part, (TensorSlice{0, 0, 6, 0, 18}));
  json gap = old_index();
  gap["slices"][1]["count"] = 3;
  expect_refused(gap, "param.a: slices end at 5 of 6");
}

TEST(CheckpointIndex, RefusesEveryCut) {
  const std::string text = valid_index().dump();
  for (size_t size = 0; size < text.size(); ++size) error_of([&] { parse(text.substr(0, size)); }, Exit::checkpoint);
  error_of([&] { parse(text + "x"); }, Exit::checkpoint);
  error_of([&] { parse(std::string(100000, '[')); }, Exit::checkpoint);
}

// Every byte changed: accepted or refused as a checkpoint, nothing else.
TEST(CheckpointIndex, SurvivesEveryChangedByte) {
  const std::string text = valid_index().dump();
  for (size_t at = 0; at < text.size(); ++at)
    for (const char value : {'\0', '\xff', '{', '}', '"', ',', '9', '-', '.', ':'}) {
      try {
        parse(with_value(text, at, value));
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Exit::checkpoint) << e.what();
      }
    }
}

TEST(CheckpointIndex, RefusesBadValuesInEveryField) {
  const std::vector<json> not_integers = {json(nullptr),   true, 1.5, "1", json::array(), json::object(),
                                          json::array({1})};
  std::vector<json> bad = not_integers;
  for (const json& value : {json(-1), json(INT64_MIN), json(uint64_t{1} << 63), json(~uint64_t{0})})
    bad.push_back(value);
  for (const char* key : {"step", "samples", "version"})
    for (const json& value : bad) {
      json index = valid_index();
      index[key] = value;
      expect_refused(index, key);
    }
  for (const char* key : {"axis", "begin", "count", "first", "size"})
    for (const json& value : bad) {
      json index = valid_index();
      index["slices"][1][key] = value;
      expect_refused(index, "param.a");
    }
  for (const char* key : {"axis", "begin", "count", "first", "size"})
    for (const int64_t value : {int64_t{5}, int64_t{7}, int64_t{1} << 31, int64_t{1} << 62}) {
      json index = valid_index();
      index["slices"][1][key] = value;
      expect_refused(index, "param.a");
    }
  bad.push_back(json(0));
  bad.push_back(json(int64_t{1} << 48));
  for (const json& value : bad) {
    json index = valid_index();
    index["tensors"]["param.a"][0] = value;
    expect_refused(index, "param.a");
    index["tensors"]["param.a"] = value;
    expect_refused(index, "param.a");
  }
  for (const json& shape : {json::array(), json::array({1, 1, 1, 1, 6}), json::array({1 << 24, 1 << 24, 6})}) {
    json index = valid_index();
    index["tensors"]["param.a"] = shape;
    expect_refused(index, "param.a");
  }
  for (const char* key : {"format", "run"})
    for (const json& value : {json(nullptr), json(1), json::array()}) {
      json index = valid_index();
      index[key] = value;
      expect_refused(index, key);
    }
  for (const char* key : {"tensor", "file", "key", "xxh3"})
    for (const json& value : {json(nullptr), json(1), json::array(), json::object()}) {
      json index = valid_index();
      index["slices"][0][key] = value;
      expect_refused(index, key);
    }
}

TEST(CheckpointIndex, RefusesMissingFieldsAndWrongTypes) {
  const json whole = valid_index();
  for (const auto& [key, value] : whole.items()) {
    json index = whole;
    index.erase(key);
    expect_refused(index, key);
  }
  for (const auto& [key, value] : whole["slices"][0].items()) {
    json index = whole;
    index["slices"][0].erase(key);
    expect_refused(index, key);
  }
  for (const json& value : {json(nullptr), json(1), json("x"), json::array({1})}) {
    json index = whole;
    index["tensors"] = value;
    expect_refused(index, "");
    index = whole;
    index["slices"] = value == json::array({1}) ? json::object() : value;
    expect_refused(index, "");
    index = whole;
    index["slices"][2] = value;
    expect_refused(index, "");
    error_of([&] { parse(value.dump()); }, Exit::checkpoint);
  }
  json index = whole;
  index["version"] = 3;
  expect_refused(index, "version 3");
  index["version"] = 0;
  expect_refused(index, "version 0");
  index = whole;
  index["format"] = "other";
  expect_refused(index, "moewright-checkpoint");
}

TEST(CheckpointIndex, RefusesDuplicateKeys) {
  const std::string text = valid_index().dump();
  for (const char* twice :
       {R"("step":12)", R"("param.b":[2])", R"("begin":2)", R"("first":5)", R"("format":"moewright-checkpoint")"}) {
    std::string changed = text;
    const size_t at = changed.find(twice);
    ASSERT_NE(at, std::string::npos) << twice;
    changed.insert(at, std::string(twice) + ",");
    error_of([&] { parse(changed); }, Exit::checkpoint);
  }
}

TEST(CheckpointIndex, RefusesGapsAndOverlaps) {
  const auto with_slices = [](std::vector<std::pair<int64_t, int64_t>> of_a) {
    json index = valid_index();
    index["slices"] = {part("param.b", 0, 0, 2, 0, 2), slice("adam_m.a", 0, 6)};
    for (const auto& [begin, count] : of_a) index["slices"].push_back(slice("param.a", begin, count));
    return index;
  };
  EXPECT_EQ(parse(with_slices({{4, 2}, {0, 1}, {1, 3}}).dump()).slices.size(), 5u);  // in any order
  expect_refused(with_slices({}), "param.a: slices end at 0 of 6");
  expect_refused(with_slices({{0, 2}, {3, 3}}), "param.a: entries 2 to 3 are in no slice");
  expect_refused(with_slices({{1, 5}}), "param.a: entries 0 to 1 are in no slice");
  expect_refused(with_slices({{0, 5}}), "param.a: slices end at 5 of 6");
  expect_refused(with_slices({{0, 3}, {2, 4}}), "param.a: entry 2 is in two slices");
  expect_refused(with_slices({{0, 6}, {0, 6}}), "param.a: element 0 of entries 0 to 6 is in two slices");
  json index = valid_index();
  index["slices"].push_back(slice("param.c", 0, 1));
  expect_refused(index, "param.c");
}

TEST(CheckpointIndex, RefusesGapsAndOverlapsInsideABox) {
  const auto with_parts = [](const std::vector<json>& of_a) {
    json index = valid_index();
    index["slices"] = {part("param.b", 0, 0, 2, 0, 2), slice("adam_m.a", 0, 6)};
    for (const json& entry : of_a) index["slices"].push_back(entry);
    return index;
  };
  const auto of = [](int64_t first, int64_t size) { return part("param.a", 1, 0, 3, first, size); };
  EXPECT_EQ(parse(with_parts({of(7, 11), of(0, 1), of(1, 6)}).dump()).slices.size(), 5u);
  expect_refused(with_parts({of(0, 7), of(8, 10)}), "param.a: elements 7 to 8 of entries 0 to 3 are in no slice");
  expect_refused(with_parts({of(1, 17)}), "param.a: elements 0 to 1 of entries 0 to 3 are in no slice");
  expect_refused(with_parts({of(0, 17)}), "param.a: slices of entries 0 to 3 end at 17 of 18 elements");
  expect_refused(with_parts({of(0, 9), of(8, 10)}), "param.a: element 8 of entries 0 to 3 is in two slices");
  expect_refused(with_parts({of(0, 19)}), "elements 0 + 19 of 18");
  expect_refused(with_parts({of(INT64_MAX / 2, INT64_MAX / 2)}), "param.a");
  // Two axes cannot be told apart from a double or a hole without walking every element: one axis per tensor.
  expect_refused(with_parts({part("param.a", 1, 0, 1, 0, 6), part("param.a", 0, 1, 5, 0, 15)}),
                 "param.a: slices along axis 1 and axis 0");
  expect_refused(with_parts({part("param.a", 0, 0, 3, 0, 9), part("param.a", 1, 0, 3, 0, 18)}),
                 "param.a: slices along axis 0 and axis 1");
}

TEST(CheckpointIndex, RefusesFilesOutsideItsFolder) {
  for (const char* file : {"", ".", "..", "../x", "a/b", "/etc/passwd", ".hidden"}) {
    json index = valid_index();
    index["slices"][0]["file"] = file;
    expect_refused(index, "file name");
  }
  json index = valid_index();
  index["slices"][0]["file"] = std::string("a\0b", 3);
  expect_refused(index, "file name");
}

TEST(Checkpoints, AreListedWhenComplete) {
  const ScratchDir dir;
  EXPECT_TRUE(list_checkpoints(dir.path()).empty());
  EXPECT_EQ(newest_checkpoint(dir / "absent"), "");
  for (const char* name : {"step-00000010", "step-00000002", "step-00000030", "other"}) {
    std::filesystem::create_directory(dir / name);
    if (std::string(name) != "step-00000030") write_raw(dir / name + "/DONE", "x\n");
  }
  write_raw(dir / "step-00000099", "a file");
  EXPECT_EQ(list_checkpoints(dir.path()), (std::vector<std::string>{dir / "step-00000002", dir / "step-00000010"}));
  EXPECT_EQ(newest_checkpoint(dir.path()), dir / "step-00000010");
}

TEST(Checkpoints, IndexIsCheckedAgainstDone) {
  const ScratchDir dir;
  const std::string text = valid_index().dump();
  EXPECT_TRUE(contains(error_of([&] { read_checkpoint_index(dir / "absent"); }, Exit::checkpoint), "no checkpoint"));
  write_raw(dir / "index.json", text);
  EXPECT_TRUE(contains(error_of([&] { read_checkpoint_index(dir.path()); }, Exit::checkpoint), "no DONE"));
  write_raw(dir / "DONE", xxh3_hex(as_span(text)) + "\n");
  EXPECT_EQ(read_checkpoint_index(dir.path()).state.step, 12);
  for (const std::string& done : {std::string(), std::string("x"), xxh3_hex(as_span(text)), std::string(5000, 'a')}) {
    write_raw(dir / "DONE", done);
    error_of([&] { read_checkpoint_index(dir.path()); }, Exit::checkpoint);
  }
  write_raw(dir / "DONE", xxh3_hex(as_span(text)) + "\n");
  write_raw(dir / "index.json", with_value(text, 30, 'x'));
  EXPECT_TRUE(contains(error_of([&] { read_checkpoint_index(dir.path()); }, Exit::checkpoint), "DONE says"));
}

// What was written loads: in the same engine's successor, bit for bit.
TEST(Checkpoints, RoundTrip) {
  const ScratchDir dir;
  const auto world = make_self_comm();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    RunSpec run = small_run();
    run.train.dtype = run.moments = dtype;
    const ModelSpec model = build_native_model(run.native);
    Engine written(model, run, *world, 1), read(model, run, *world, 1);
    take_first_step(written);
    save_checkpoint(written, dir / word_of(dtype), {1, 16}, 2);
    const RunState state = load_checkpoint(read, newest_checkpoint(dir / word_of(dtype))).state;
    EXPECT_EQ(state.step, 1);
    EXPECT_EQ(state.samples, 16);
    for (size_t i = 0; i < written.params.all().size(); ++i) {
      const Parameter &a = written.params.all()[i], &b = read.params.all()[i];
      const auto same = [](TensorView x, TensorView y) {
        return std::memcmp(x.data, y.data, static_cast<size_t>(x.bytes())) == 0;
      };
      for (int64_t j = 0; j < a.held.count; ++j) ASSERT_EQ(a.master_at(j), b.master_at(j)) << a.row.name;
      EXPECT_TRUE(same(a.adam_m, b.adam_m) && same(a.adam_v, b.adam_v)) << a.row.name;
    }
    const std::vector<MicroBatch> batches = random_batches(written.plan);
    EXPECT_EQ(accumulate_gradients(written, stage(written, batches)).loss,
              accumulate_gradients(read, stage(read, batches)).loss);
  }
}

// Master weights that an engine splits (on a GPU, with such widths) are stored as those it does not, and come back to
// the bit; a reader splits what it is asked to.
TEST(Checkpoints, SplitMasterWeights) {
  const ScratchDir dir;
  const auto world = make_self_comm();
  const RunSpec run = even_run();
  const ModelSpec model = build_native_model(run.native);
  Engine written(model, run, *world, 1), read(model, run, *world, 1);
  take_first_step(written);
  save_checkpoint(written, dir.path(), {1, 16}, 2);
  const std::string folder = newest_checkpoint(dir.path());
  load_checkpoint(read, folder);
  CheckpointReader reader(folder);
  for (size_t i = 0; i < written.params.all().size(); ++i) {
    const Parameter &a = written.params.all()[i], &b = read.params.all()[i];
    ASSERT_EQ(a.is_split(), written.device.kind != DeviceKind::cpu && a.row.role == ParamRole::matrix) << a.row.name;
    const auto count = static_cast<size_t>(a.held.count);
    std::vector<uint16_t> rests(count);
    std::vector<bf16> near(count);
    reader.read("param." + a.row.name, a.row.shape, whole_tensor(a.row.shape), {},
                {rests.data(), DType::u16, {a.held.count}}, {near.data(), DType::bf16, {a.held.count}});
    for (size_t j = 0; j < count; ++j) {
      const auto at = static_cast<int64_t>(j);
      ASSERT_EQ(a.master_at(at), b.master_at(at)) << a.row.name;
      ASSERT_EQ(a.master_at(at), join_float(near[j], rests[j])) << a.row.name;
    }
  }
  const std::vector<MicroBatch> batches = random_batches(written.plan);
  EXPECT_EQ(accumulate_gradients(written, stage(written, batches)).loss,
            accumulate_gradients(read, stage(read, batches)).loss);
}

// From moments in fp32 to those in bf16 and back: rounded to the nearest, then exact.
TEST(Checkpoints, MomentsAreConverted) {
  const ScratchDir dir;
  const auto world = make_self_comm();
  RunSpec run = small_run();
  const ModelSpec model = build_native_model(run.native);
  Engine wide(model, run, *world, 1), back(model, run, *world, 1);
  run.moments = DType::bf16;
  Engine narrow(model, run, *world, 1);
  take_first_step(wide);
  save_checkpoint(wide, dir / "wide", {1, 16}, 2);
  load_checkpoint(narrow, newest_checkpoint(dir / "wide"));
  save_checkpoint(narrow, dir / "narrow", {1, 16}, 2);
  load_checkpoint(back, newest_checkpoint(dir / "narrow"));
  int64_t inexact = 0;
  for (size_t i = 0; i < wide.params.all().size(); ++i)
    for (const auto field : {&Parameter::adam_m, &Parameter::adam_v}) {
      const TensorView a = wide.params.all()[i].*field, b = narrow.params.all()[i].*field,
                       c = back.params.all()[i].*field;
      if (a.data == nullptr) continue;
      ASSERT_EQ(b.dtype, DType::bf16);
      for (int64_t j = 0; j < a.numel(); ++j) {
        ASSERT_EQ(b.as<bf16>()[j].bits, to_bf16(a.as<float>()[j]).bits);
        ASSERT_EQ(c.as<float>()[j], to_float(b.as<bf16>()[j]));
        inexact += c.as<float>()[j] != a.as<float>()[j];
      }
    }
  EXPECT_GT(inexact, 0);
}

TEST(CheckpointIndex, RecordsAPlacement) {
  json index = valid_index();
  EXPECT_EQ(parse_checkpoint_index(index.dump(), "index").placements, nullptr);
  const json good = {{"version", 3}, {"layers", {json::array(), {{3, 1}, {2, 0}}}}};
  index["placement"] = good;
  const SharedPlacements placements = parse_checkpoint_index(index.dump(), "index").placements;
  ASSERT_NE(placements, nullptr);
  EXPECT_EQ(placements->version, 3);
  ASSERT_EQ(placements->layers.size(), 2u);
  EXPECT_EQ(placements->layers[0], ExpertPlacement{});
  EXPECT_EQ(placements->layers[1], (ExpertPlacement{2, {{{1, 1}}, {{0, 1}}, {{1, 0}}, {{0, 0}}}}));
  const auto refuse = [&](auto change, const char* why) {
    index["placement"] = good;
    change(index["placement"]);
    const std::string message = error_of([&] { parse_checkpoint_index(index.dump(), "index"); }, Exit::checkpoint);
    EXPECT_TRUE(contains(message, why)) << message;
  };
  refuse([](json& p) { p = 7; }, "placement: expects");
  refuse([](json& p) { p["version"] = -1; }, "\"version\" expects");
  refuse([](json& p) { p["version"] = 1.5; }, "\"version\" expects");
  refuse([](json& p) { p["layers"][0] = 1; }, "layer 0: expects a list of ranks");
  refuse([](json& p) { p["layers"][1][0] = "all"; }, "layer 1: expects a list of experts");
  refuse([](json& p) { p["layers"][1][0][0] = int64_t{1} << 40; }, "expected an expert from 0 to 3, got 1099511627776");
  refuse([](json& p) { p["layers"][1][0][0] = -1; }, "got -1");
  refuse([](json& p) { p["layers"][1][0][0] = 1; }, "rank 0 twice");
  refuse([](json& p) { p["layers"][1][0][1] = 0; }, "expert 1 to no rank");
}

}  // namespace
}  // namespace mw::test
