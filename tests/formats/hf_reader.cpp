#include "formats/weights/hf_reader.h"

#include <cmath>

#include "formats/helpers.h"
#include "formats/weights/safetensors_writer.h"

namespace mw::test {
namespace {

struct Stored {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

template <class T>
Stored stored(const std::string& name, const char* dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {name, dtype, std::move(shape), {bytes.begin(), bytes.end()}};
}

void write_folder(const ScratchDir& dir, const std::vector<Stored>& tensors) {
  SafetensorsWriter writer;
  for (const Stored& t : tensors) writer.declare(t.name, t.dtype, t.shape);
  writer.begin(dir / "model.safetensors");
  for (const Stored& t : tensors) writer.write(t.name, t.bytes);
  writer.finish();
}

std::vector<uint8_t> codes_of(int64_t count) {
  std::vector<uint8_t> codes;
  for (int64_t i = 0; i < count; ++i) codes.push_back(static_cast<uint8_t>(i * 37 % 127));  // no NaN
  return codes;
}

// The format's definition, by its bits.
double e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? mantissa / 8.0 * std::pow(2.0, -6) : (1 + mantissa / 8.0) * std::pow(2.0, exponent - 7);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

TEST(HfReader, EveryE4m3Code) {
  const ScratchDir dir;
  std::vector<uint8_t> codes;
  for (int code = 0; code < 256; ++code) codes.push_back(static_cast<uint8_t>(code));
  write_folder(dir, {stored("w", "F8_E4M3", {2, 128}, codes), stored<float>("w_scale_inv", "F32", {1, 1}, {1.0f})});
  const SafetensorsSet files = open_safetensors_folder(dir.path());
  const HfTensor tensor{"w", {2, 128}, "", 0};
  check_hf_tensor(files, tensor);
  std::vector<float> values(256);
  read_hf_tensor(files, tensor, 0, values);
  for (size_t i = 0; i < 256; ++i) {
    if ((i & 0x7f) == 0x7f) EXPECT_TRUE(std::isnan(values[i])) << i;
    else EXPECT_EQ(static_cast<double>(values[i]), e4m3(static_cast<uint8_t>(i))) << i;
  }
  EXPECT_EQ(values[0x7e], 448.0f);
}

TEST(HfReader, BlocksHaveTheirScales) {
  constexpr int64_t kRows = 130, kColumns = 300;  // 2 x 3 blocks, the last ones cut
  const ScratchDir dir;
  const std::vector<uint8_t> codes = codes_of(kRows * kColumns);
  const std::vector<float> scales = {0.5f, 2.0f, 3.0f, 0.25f, 7.0f, 1e-4f};
  write_folder(dir, {stored("w", "F8_E4M3", {kRows, kColumns}, codes), stored("w_scale_inv", "F32", {2, 3}, scales)});
  const SafetensorsSet files = open_safetensors_folder(dir.path());
  const HfTensor tensor{"w", {kRows, kColumns}, "", 0};
  check_hf_tensor(files, tensor);
  // Parts that begin and end inside rows and blocks.
  for (const auto& [first, count] :
       {std::pair<int64_t, int64_t>{0, kRows * kColumns}, {127, 2}, {38000, 1000}, {5, 0}}) {
    std::vector<float> values(static_cast<size_t>(count));
    read_hf_tensor(files, tensor, first, values);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = first + i, row = at / kColumns, column = at % kColumns;
      const auto scale = static_cast<double>(scales[static_cast<size_t>(row / 128 * 3 + column / 128)]);
      const double expected = e4m3(codes[static_cast<size_t>(at)]) * scale;
      EXPECT_NEAR(static_cast<double>(values[static_cast<size_t>(i)]), expected, 1e-6 * expected) << at;
    }
  }
}

TEST(HfReader, ScalesThatDoNotFitAreRefused) {
  const auto refuse = [](const std::vector<Stored>& tensors, const char* why) {
    const ScratchDir dir;
    write_folder(dir, tensors);
    const SafetensorsSet files = open_safetensors_folder(dir.path());
    const std::string message = error_of([&] { check_hf_tensor(files, {"w", {4, 8}, "", 0}); }, Exit::data);
    EXPECT_NE(message.find(why), std::string::npos) << message;
  };
  const Stored weight = stored("w", "F8_E4M3", {4, 8}, codes_of(32));
  refuse({weight}, "w_scale_inv");
  refuse({weight, stored<float>("w_scale_inv", "F32", {1, 2}, {1, 1})}, "shape");
  refuse({weight, stored<int32_t>("w_scale_inv", "I32", {1, 1}, {1})}, "dtype");
  refuse({stored("w", "F8_E4M3", {8, 4}, codes_of(32))}, "shape");
  refuse({stored("v", "F8_E4M3", {4, 8}, codes_of(32))}, "is missing");
}

TEST(HfReader, OtherTypesNeedNoScales) {
  const ScratchDir dir;
  write_folder(dir, {stored<float>("w", "F32", {1, 2}, {1.5f, -2.0f})});
  const SafetensorsSet files = open_safetensors_folder(dir.path());
  std::vector<float> values(1);
  check_hf_tensor(files, {"w", {1, 2}, "", 0});
  read_hf_tensor(files, {"w", {1, 2}, "", 0}, 1, values);
  EXPECT_EQ(values[0], -2.0f);
}

// The model of these tests: 2 experts of width 32 in one layer of width 64.
ModelSpec gpt_oss_model() {
  ModelSpec model;
  model.family = "gpt_oss";
  model.vocab = 8;
  model.width = 64;
  LayerSpec layer;
  layer.attention.heads = layer.attention.kv_heads = 1;
  layer.attention.head_dim = 2;
  layer.attention.sinks = true;
  layer.feed_forward = FeedForwardKind::moe;
  layer.activation = Activation::clamped_swiglu;
  layer.moe.experts = 2;
  layer.moe.top_k = 1;
  layer.moe.width = 32;
  layer.moe.bias = true;
  model.layers = {layer};
  return model;
}

const HfTensor& tensor_of(const std::vector<HfTensor>& tensors, const std::string& end) {
  for (const HfTensor& tensor : tensors)
    if (tensor.name.size() >= end.size() && tensor.name.substr(tensor.name.size() - end.size()) == end) return tensor;
  ADD_FAILURE() << end;
  return tensors.front();
}

// gpt-oss stores [E, D, 2 F], [E, F, D] and [E, 2 F], with gate and up in turn.
TEST(HfReader, AxesInAnotherOrder) {
  constexpr int64_t E = 2, D = 64, F = 32;
  const ModelSpec model = gpt_oss_model();
  std::vector<float> up(E * D * 2 * F), down(E * F * D), bias(E * 2 * F);
  for (std::vector<float>* values : {&up, &down, &bias})
    for (size_t i = 0; i < values->size(); ++i) (*values)[i] = static_cast<float>(i);
  const std::string at = "model.layers.0.mlp.experts.";
  const ScratchDir dir;
  write_folder(dir,
               {stored(at + "down_proj", "F32", {E, F, D}, down), stored(at + "gate_up_proj", "F32", {E, D, 2 * F}, up),
                stored(at + "gate_up_proj_bias", "F32", {E, 2 * F}, bias)});
  const SafetensorsSet files = open_safetensors_folder(dir.path());
  const std::vector<HfTensor> tensors = hf_tensors(model);
  const auto read = [&](const char* name, int64_t first, int64_t count) {
    const HfTensor& tensor = tensor_of(tensors, name);
    check_hf_tensor(files, tensor);
    std::vector<float> values(static_cast<size_t>(count));
    read_hf_tensor(files, tensor, first, values);
    return values;
  };
  // Whole, and a part that begins and ends inside rows.
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, E * 2 * F * D}, {37, 5000}}) {
    const std::vector<float> values = read("gate_up_proj", first, count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t p = first + i, d = p % D, f = p / D % F, c = p / D / F % 2, e = p / D / F / 2;
      ASSERT_EQ(values[static_cast<size_t>(i)], static_cast<float>((e * D + d) * 2 * F + 2 * f + c)) << p;
    }
  }
  const std::vector<float> of_down = read("down_proj", 0, E * D * F),
                           of_bias = read("gate_up_proj_bias", 3, E * 2 * F - 3);
  for (int64_t p = 0; p < E * D * F; ++p)
    ASSERT_EQ(of_down[static_cast<size_t>(p)], static_cast<float>((p / F / D * F + p % F) * D + p / F % D)) << p;
  for (int64_t p = 3; p < E * 2 * F; ++p)
    ASSERT_EQ(of_bias[static_cast<size_t>(p - 3)], static_cast<float>(p / F / 2 * 2 * F + p % F * 2 + p / F % 2)) << p;
}

// Every nibble, with small and large scales; rows of gate and up in turn.
TEST(HfReader, Mxfp4) {
  constexpr int64_t E = 2, D = 64, F = 32, kRows = E * 2 * F;
  std::vector<uint8_t> blocks(kRows * D / 2), scales(kRows * D / 32);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<uint8_t>(i * 37 % 256);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(100 + i * 7 % 50);
  const std::string at = "model.layers.0.mlp.experts.gate_up_proj";
  const Stored stored_blocks = stored(at + "_blocks", "U8", {E, 2 * F, D / 32, 16}, blocks),
               stored_scales = stored(at + "_scales", "U8", {E, 2 * F, D / 32}, scales);
  const ScratchDir dir;
  write_folder(dir, {stored_blocks, stored_scales});
  const SafetensorsSet files = open_safetensors_folder(dir.path());
  const std::vector<HfTensor> tensors = hf_mxfp4_tensors(gpt_oss_model());
  const HfTensor& tensor = tensor_of(tensors, "gate_up_proj");
  EXPECT_EQ(stored_names(files, tensor), (std::vector<std::string>{at + "_blocks", at + "_scales"}));
  check_hf_tensor(files, tensor);
  const double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, kRows * D}, {4099, 321}}) {
    std::vector<float> values(static_cast<size_t>(count));
    read_hf_tensor(files, tensor, first, values);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t p = first + i, row = p / D / F / 2 * 2 * F + p / D % F * 2 + p / D / F % 2,
                    element = row * D + p % D;
      const int nibble = blocks[static_cast<size_t>(element / 2)] >> (element % 2 * 4) & 15;
      const double magnitude = magnitudes[nibble % 8] * std::pow(2.0, scales[static_cast<size_t>(element / 32)] - 127);
      ASSERT_EQ(static_cast<double>(values[static_cast<size_t>(i)]), nibble < 8 ? magnitude : -magnitude) << p;
    }
  }
  const auto refuse = [&](const std::vector<Stored>& wrong, const char* why) {
    const ScratchDir other;
    write_folder(other, wrong);
    const SafetensorsSet found = open_safetensors_folder(other.path());
    const std::string message = error_of([&] { check_hf_tensor(found, tensor); }, Exit::data);
    EXPECT_NE(message.find(why), std::string::npos) << message;
  };
  refuse({stored_blocks}, "_scales");
  refuse({stored_blocks, stored(at + "_scales", "U8", {E, F, D / 16}, scales)}, "expected U8");
  refuse({stored(at + "_blocks", "I8", {E, 2 * F, D / 32, 16}, blocks), stored_scales}, "expected U8");
}

TEST(HfReader, Mxfp4NeedsWholeBlocks) {
  ModelSpec model = gpt_oss_model();
  model.width = 48;
  const ScratchDir dir;
  write_folder(dir, {stored<uint8_t>("model.layers.0.mlp.experts.gate_up_proj_blocks", "U8", {1}, {0})});
  const SafetensorsSet files = open_safetensors_folder(dir.path());
  const std::vector<HfTensor> tensors = hf_mxfp4_tensors(model);
  const std::string message = error_of([&] { check_hf_tensor(files, tensor_of(tensors, "gate_up_proj")); }, Exit::data);
  EXPECT_NE(message.find("rows of 48"), std::string::npos) << message;
}

}  // namespace
}  // namespace mw::test
