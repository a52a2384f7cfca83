// A checkpoint loads whatever way its tensors were cut: along any axis, and at any element.
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "engine/state_slices.h"
#include "formats/io/checksum.h"
#include "formats/weights/safetensors_writer.h"
#include "train/checkpoint/checkpoint.h"
#include "train/helpers.h"

namespace mw::test {
namespace {

struct Stored {
  CheckpointSlice slice;
  std::vector<int64_t> shape;  // of the tensor in the file
  std::vector<float> values;
};

// One box of the global values, and some of its elements.
std::vector<float> cut(const std::vector<float>& values, const std::vector<int64_t>& shape, const TensorSlice& part) {
  std::vector<float> out(static_cast<size_t>(part.size));
  for_each_shared_run(shape, whole_tensor(shape), part, [&](int64_t from, int64_t to, int64_t count) {
    std::copy_n(values.begin() + from, count, out.begin() + to);
  });
  return out;
}

class Recut {
 public:
  // Saves a trained engine in `folder`.
  explicit Recut(const std::string& folder) : folder_(folder + "/step-00000001") {
    take_first_step(engine);
    save_checkpoint(engine, folder, {1, 16}, 2);
    index_ = nlohmann::json::parse(read_text_file(folder_ + "/index.json", size_t{1} << 24));
  }
  const std::string& folder() const { return folder_; }

  // Writes every tensor again in two files: `parts_of` says how one of that shape is cut.
  void write(int64_t version,
             const std::function<std::vector<TensorSlice>(const std::vector<int64_t>& shape)>& parts_of) {
    std::vector<Stored> files[2];
    for (const Parameter& p : engine.params.all())
      for (const auto& [kind, view] : {std::pair("param.", p.master), {"adam_m.", p.adam_m}, {"adam_v.", p.adam_v}}) {
        if (view.data == nullptr) continue;
        const std::vector<float> values(view.as<float>(), view.as<float>() + view.numel());
        for (const TensorSlice& part : parts_of(p.row.shape)) {
          Stored s{{kind + p.row.name, part, "", "", ""}, p.row.shape, cut(values, p.row.shape, part)};
          if (part.size == box_elements(p.row.shape, part)) s.shape[static_cast<size_t>(part.axis)] = part.count;
          else s.shape = {part.size};
          std::vector<Stored>& file = files[count_++ % 2];
          s.slice.key = fmt::format("{}#{}", s.slice.tensor, file.size());
          file.push_back(std::move(s));
        }
      }
    index_["version"] = version;
    index_["slices"] = nlohmann::json::array();
    for (int i = 0; i < 2; ++i) write_file(fmt::format("rank-{:05}.safetensors", i), files[i], version);
    const std::string text = index_.dump();
    write_raw(folder_ + "/index.json", text);
    write_raw(folder_ + "/DONE", xxh3_hex(as_span(text)) + "\n");
  }

  // The checkpoint in another engine.
  void expect_loads() {
    Engine read(engine.plan.model, engine.plan.run, *world, 1);
    EXPECT_EQ(load_checkpoint(read, folder_).state.step, 1);
    for (size_t i = 0; i < engine.params.all().size(); ++i) {
      const Parameter &a = engine.params.all()[i], &b = read.params.all()[i];
      for (const auto field : {&Parameter::master, &Parameter::adam_m, &Parameter::adam_v}) {
        const TensorView x = a.*field, y = b.*field;
        if (x.data == nullptr) continue;
        EXPECT_EQ(std::memcmp(x.data, y.data, static_cast<size_t>(x.bytes())), 0) << a.row.name;
      }
    }
  }

  std::unique_ptr<Comm> world = make_self_comm();
  Engine engine{build_native_model(small_run().native), small_run(), *world, 1};

 private:
  void write_file(const std::string& name, const std::vector<Stored>& tensors, int64_t version) {
    SafetensorsWriter writer;
    std::map<std::string, const Stored*> by_key;
    for (const Stored& s : tensors) by_key[s.slice.key] = &s;
    for (const auto& [key, s] : by_key) writer.declare(key, "F32", s->shape);
    writer.begin(folder_ + "/" + name);
    for (const auto& [key, s] : by_key) {
      const auto bytes = std::as_bytes(std::span(s->values));
      writer.write(key, bytes);
      const TensorSlice& part = s->slice.part;
      nlohmann::json entry = {
          {"tensor", s->slice.tensor}, {"begin", part.begin}, {"count", part.count}, {"file", name}, {"key", key},
          {"xxh3", xxh3_hex(bytes)}};
      if (version > 1) {
        entry["axis"] = part.axis;
        entry["first"] = part.first;
        entry["size"] = part.size;
      }
      index_["slices"].push_back(entry);
    }
    writer.finish();
  }

  std::string folder_;
  nlohmann::json index_;
  int64_t count_ = 0;
};

TEST(CheckpointSlices, LoadHoweverTheyWereCut) {
  const ScratchDir dir;
  Recut saved(dir.path());
  const RngKey key = make_rng_key(17, "cuts");
  uint64_t counter = 0;
  const auto random = [&](int64_t below) {
    return static_cast<int64_t>(bits_at(key, counter++) % static_cast<uint64_t>(below));
  };
  for (int trial = 0; trial < 4; ++trial) {
    saved.write(2, [&](const std::vector<int64_t>& shape) {
      const int axis = static_cast<int>(random(static_cast<int64_t>(shape.size())));
      std::vector<TensorSlice> parts;
      for (int64_t at = 0, extent = shape[static_cast<size_t>(axis)]; at < extent; at += parts.back().count) {
        const TensorSlice box = whole_box(shape, axis, at, 1 + random(extent - at));
        if (random(2) == 0) {
          parts.push_back(box);
          continue;
        }
        for (TensorSlice part = box; part.first < box.size; part.first += part.size) {
          part.size = 1 + random(box.size - part.first);
          parts.push_back(part);
        }
      }
      return parts;
    });
    saved.expect_loads();
  }
}

// What a save cuts: parts that are together what was cut.
TEST(CheckpointSlices, OfARankAreCutIntoParts) {
  const std::unique_ptr<Comm> world = make_self_comm();
  Engine engine(build_native_model(small_run().native), small_run(), *world, 1);
  engine.params.initialise(3, engine.stream);
  constexpr int64_t kMost = 7;
  for (const LocalSlice& slice : local_slices(engine.params, true)) {
    int64_t at = 0;
    for (const LocalSlice& part : cut_slice(slice, kMost)) {
      EXPECT_EQ(part.tensor, slice.tensor);
      EXPECT_EQ(part.part, (TensorSlice{slice.part.axis, slice.part.begin, slice.part.count, slice.part.first + at,
                                        std::min(kMost, slice.part.size - at)}));
      EXPECT_EQ(part.values.numel(), part.part.size);
      EXPECT_EQ(part.values.as<float>(), slice.values.as<float>() + at);
      EXPECT_EQ(part.place, slice.place + at);
      at += part.part.size;
    }
    EXPECT_EQ(at, slice.part.size);
  }
}

TEST(CheckpointSlices, OfTheFirstVersionLoad) {
  const ScratchDir dir;
  Recut saved(dir.path());
  saved.write(1, [](const std::vector<int64_t>& shape) {
    std::vector<TensorSlice> parts = {whole_box(shape, 0, 0, 1)};
    if (shape[0] > 1) parts.push_back(whole_box(shape, 0, 1, shape[0] - 1));
    return parts;
  });
  saved.expect_loads();
}

// A file whose tensors are cut otherwise than its index says.
TEST(CheckpointSlices, MustHaveTheShapeOfTheirPart) {
  const ScratchDir dir;
  Recut saved(dir.path());
  saved.write(2, [](const std::vector<int64_t>& shape) {
    return std::vector<TensorSlice>{whole_box(shape, static_cast<int>(shape.size()) - 1, 0, shape.back())};
  });
  saved.expect_loads();
  std::string text = read_text_file(saved.folder() + "/index.json", size_t{1} << 24);
  nlohmann::json index = nlohmann::json::parse(text);
  for (nlohmann::json& s : index["slices"])
    if (s["tensor"] == "param.embed") {
      nlohmann::json half = s;
      half["size"] = half["first"] = s["size"].get<int64_t>() / 2;
      s["size"] = half["size"];
      index["slices"].push_back(half);
      break;
    }
  text = index.dump();
  write_raw(saved.folder() + "/index.json", text);
  write_raw(saved.folder() + "/DONE", xxh3_hex(as_span(text)) + "\n");
  const std::string message = error_of([&] { load_checkpoint(saved.engine, saved.folder()); }, Exit::checkpoint);
  EXPECT_TRUE(contains(message, "F32") && contains(message, "the index says F32")) << message;
}

}  // namespace
}  // namespace mw::test
