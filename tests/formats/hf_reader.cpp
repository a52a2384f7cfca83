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

}  // namespace
}  // namespace mw::test
