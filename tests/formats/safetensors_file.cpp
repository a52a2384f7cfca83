// Files, folders and the writer.
#include <sys/resource.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <limits>

#include "formats/io/checksum.h"
#include "formats/weights/safetensors.h"
#include "formats/weights/safetensors_writer.h"
#include "helpers.h"

namespace mw::test {
namespace {

std::string iota_bytes(size_t count, int start = 0) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(start + static_cast<int>(i));
  return bytes;
}

std::string to_text(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void write_single(const std::string& path, const std::string& name, const std::string& dtype, int64_t elements,
                  const std::string& bytes) {
  SafetensorsWriter writer;
  writer.declare(name, dtype, {elements});
  writer.begin(path);
  writer.write(name, as_span(bytes));
  writer.finish();
}

TEST(Safetensors, RoundTripInPieces) {
  const ScratchDir dir;
  const std::string path = dir / "w.safetensors";
  const std::string z = iota_bytes(24), a = iota_bytes(7, 100);
  SafetensorsWriter writer;
  writer.declare("z", "F32", {2, 3});
  writer.declare("a", "U8", {7});
  writer.declare("none", "BF16", {0, 4});
  writer.declare("scalar \"quoted\" \xc3\xa9", "I16", {});
  writer.set_metadata("format", "pt");
  writer.begin(path);
  for (size_t i = 0; i < 24; i += 5) {  // the tensors take turns, in unequal pieces
    writer.write("z", as_span(z).subspan(i, std::min<size_t>(5, 24 - i)));
    if (i < 7) writer.write("a", as_span(a).subspan(i, std::min<size_t>(5, 7 - i)));
  }
  writer.write("scalar \"quoted\" \xc3\xa9", as_span("\x01\x02"));
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.finish();
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));

  const SafetensorsFile file(path);
  EXPECT_EQ(file.path(), path);
  ASSERT_EQ(file.entries().size(), 4u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(to_text(file.data(*file.find("z"))), z);
  EXPECT_EQ(to_text(file.data(*file.find("a"))), a);
  EXPECT_EQ(to_text(file.data(*file.find("scalar \"quoted\" \xc3\xa9"))), "\x01\x02");
  EXPECT_TRUE(file.data(*file.find("none")).empty());
  EXPECT_EQ(file.find("none")->shape, (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(file.find("a")->begin, 0);  // by name
  EXPECT_EQ(file.find("absent"), nullptr);
  uint64_t length = 0;
  std::memcpy(&length, read_raw(path).data(), 8);
  EXPECT_EQ(length % 8, 0u);
}

TEST(Safetensors, WriterKeepsTheDeclaredOrderOnRequest) {
  const ScratchDir dir;
  SafetensorsWriter writer;
  writer.declare("z", "U8", {1});
  writer.declare("a", "U8", {1});
  writer.begin(dir / "f", SafetensorsWriter::Order::as_declared);
  writer.write("a", as_span("A"));
  writer.write("z", as_span("Z"));
  writer.finish();
  const SafetensorsFile file(dir / "f");
  EXPECT_EQ(file.find("z")->begin, 0);
  EXPECT_EQ(to_text(file.data(*file.find("a"))), "A");
}

TEST(Safetensors, WriterWithoutTensors) {
  const ScratchDir dir;
  SafetensorsWriter writer;
  writer.begin(dir / "f");
  writer.finish();
  EXPECT_TRUE(SafetensorsFile(dir / "f").entries().empty());
}

TEST(Safetensors, WriterRefusesMistakes) {
  const ScratchDir dir;
  SafetensorsWriter writer;
  writer.declare("a", "F32", {2});
  EXPECT_TRUE(contains(error_of([&] { writer.declare("a", "F32", {2}); }), "declared twice"));
  error_of([&] { writer.declare("b", "F31", {2}); });
  error_of([&] { writer.declare("b", "F32", {-1}); });
  error_of([&] { writer.declare("b", "F32", {int64_t{1} << 40, int64_t{1} << 40}); });
  error_of([&] { writer.declare("__metadata__", "F32", {1}); });
  error_of([&] { writer.declare("\xff", "F32", {1}); });
  error_of([&] { writer.write("a", {}); }, Exit::internal);
  EXPECT_TRUE(contains(error_of([&] { writer.begin(dir / "absent/f"); }), "absent/f"));
  writer.begin(dir / "f");
  const std::string bytes = iota_bytes(9);
  error_of([&] { writer.write("c", as_span(bytes)); }, Exit::internal);
  error_of([&] { writer.write("a", as_span(bytes)); }, Exit::internal);
  writer.write("a", as_span(bytes).first(7));
  EXPECT_TRUE(contains(error_of([&] { writer.finish(); }, Exit::internal), "7 of 8"));
}

TEST(Safetensors, UnfinishedWriterLeavesTheOldFile) {
  const ScratchDir dir;
  write_single(dir / "f", "old", "U8", 1, "x");
  {
    SafetensorsWriter writer;
    writer.declare("new", "U8", {1});
    writer.begin(dir / "f");
  }
  EXPECT_FALSE(std::filesystem::exists(dir / "f.tmp"));
  EXPECT_NE(SafetensorsFile(dir / "f").find("old"), nullptr);
}

TEST(Safetensors, FullDiskIsAnErrorThatNamesThePath) {
  const ScratchDir dir;
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = old;
  small.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = error_of([&] { write_single(dir / "f", "a", "U8", 10000, std::string(10000, 'x')); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_TRUE(contains(message, dir / "f") && contains(message, "errno")) << message;
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(Safetensors, ReadsAsFloat) {
  const ScratchDir dir;
  const std::vector<float> values = {0.0f, -1.5f, 3.25f, 65504.0f};
  std::string f32, b16;
  for (const float value : values) {
    f32 += bytes_of(value);
    b16 += bytes_of(to_bf16(value));
  }
  write_single(dir / "f32", "x", "F32", 4, f32);
  write_single(dir / "bf16", "x", "BF16", 4, b16);
  const SafetensorsFile exact(dir / "f32"), rounded(dir / "bf16");
  std::vector<float> out(3);
  read_as_f32(exact, exact.entries()[0], 1, out);
  EXPECT_EQ(out, (std::vector<float>{-1.5f, 3.25f, 65504.0f}));
  read_as_f32(rounded, rounded.entries()[0], 0, out);
  EXPECT_EQ(out, (std::vector<float>{0.0f, -1.5f, 3.25f}));
  std::vector<int64_t> ids(1);
  const std::string message = error_of([&] { read_as_i64(exact, exact.entries()[0], 0, ids); });
  EXPECT_TRUE(contains(message, "F32") && contains(message, "\"x\"")) << message;
  for (const int64_t first : {int64_t{-1}, int64_t{2}, int64_t{5}, std::numeric_limits<int64_t>::max()}) {
    error_of([&] { read_as_f32(exact, exact.entries()[0], first, out); }, Exit::internal);
  }
  read_as_f32(exact, exact.entries()[0], 4, std::span<float>());
}

TEST(Safetensors, ReadsEveryHalf) {
  const ScratchDir dir;
  std::string bytes;
  for (int bits = 0; bits < 65536; ++bits) bytes += bytes_of(static_cast<uint16_t>(bits));
  write_single(dir / "f", "h", "F16", 65536, bytes);
  const SafetensorsFile file(dir / "f");
  std::vector<float> out(65536);
  read_as_f32(file, file.entries()[0], 0, out);
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = static_cast<int>((bits >> 10) & 31);
    const auto mantissa = static_cast<float>(bits & 1023);
    const float magnitude = exponent == 0    ? std::ldexp(mantissa, -24)
                            : exponent != 31 ? std::ldexp(1024 + mantissa, exponent - 25)
                            : mantissa == 0  ? std::numeric_limits<float>::infinity()
                                             : std::nanf("");
    if (std::isnan(magnitude)) EXPECT_TRUE(std::isnan(out[bits]));
    else EXPECT_EQ(std::bit_cast<uint32_t>(out[bits]), std::bit_cast<uint32_t>(bits >= 32768 ? -magnitude : magnitude));
  }
}

TEST(Safetensors, ReadsAsInteger) {
  const ScratchDir dir;
  write_single(dir / "i64", "x", "I64", 2, bytes_of(int64_t{-5}) + bytes_of(int64_t{1} << 40));
  write_single(dir / "i32", "x", "I32", 2, bytes_of(int32_t{-5}) + bytes_of(int32_t{7}));
  const SafetensorsFile wide(dir / "i64"), narrow(dir / "i32");
  std::vector<int64_t> out(2);
  read_as_i64(wide, wide.entries()[0], 0, out);
  EXPECT_EQ(out, (std::vector<int64_t>{-5, int64_t{1} << 40}));
  read_as_i64(narrow, narrow.entries()[0], 0, out);
  EXPECT_EQ(out, (std::vector<int64_t>{-5, 7}));
  std::vector<float> floats(1);
  error_of([&] { read_as_f32(wide, wide.entries()[0], 0, floats); });
}

TEST(Safetensors, OpenRefusesWhatIsNoFile) {
  const ScratchDir dir;
  error_of([&] { SafetensorsFile(dir / "absent"); });
  error_of([&] { SafetensorsFile(dir.path()); });
  write_raw(dir / "empty", "");
  error_of([&] { SafetensorsFile(dir / "empty"); });
}

class SafetensorsFolder : public testing::Test {
 protected:
  void SetUp() override {
    write_single(dir_ / "s1.safetensors", "model.a", "U8", 1, "A");
    write_single(dir_ / "s2.safetensors", "model.b", "U8", 1, "B");
  }
  void write_index(const std::string& text) { write_raw(dir_ / "model.safetensors.index.json", text); }
  void expect_refused(const std::string& index, std::string_view part) {
    write_index(index);
    const std::string message = error_of([&] { open_safetensors_folder(dir_.path()); });
    EXPECT_TRUE(contains(message, part)) << index << "\n" << message;
  }
  ScratchDir dir_;
};

TEST_F(SafetensorsFolder, FindsTensorsAcrossShards) {
  write_index(R"({"metadata":{"total_size":2,"x":[{"y":null}]},)"
              R"("weight_map":{"model.a":"s1.safetensors","model.b":"s2.safetensors"}})");
  SafetensorsSet opened = open_safetensors_folder(dir_.path());
  const SafetensorsSet set = std::move(opened);
  EXPECT_EQ(set.names(), (std::vector<std::string>{"model.a", "model.b"}));
  const SafetensorsLocation b = set.require("model.b");
  EXPECT_EQ(to_text(b.file->data(*b.entry)), "B");
  EXPECT_FALSE(set.find("model.c"));
  EXPECT_TRUE(contains(error_of([&] { set.require("model.c"); }), "did you mean \"model."));
}

// 350,000 tensors, as a model of a trillion parameters in small experts may have, take 40 MB.
TEST_F(SafetensorsFolder, ReadsLargeIndexes) {
  write_index("{\"weight_map\":" + std::string(size_t{48} << 20, ' ') +
              R"({"model.a":"s1.safetensors","model.b":"s2.safetensors"}})");
  EXPECT_EQ(open_safetensors_folder(dir_.path()).names().size(), 2u);
}

TEST_F(SafetensorsFolder, PrefersTheSingleFile) {
  write_index("damaged");
  write_single(dir_ / "model.safetensors", "whole", "U8", 1, "W");
  EXPECT_EQ(open_safetensors_folder(dir_.path()).names(), (std::vector<std::string>{"whole"}));
}

TEST_F(SafetensorsFolder, RefusesBadIndexes) {
  EXPECT_TRUE(contains(error_of([&] { open_safetensors_folder(dir_.path()); }), "got neither"));
  expect_refused(R"({"weight_map":{"model.a":"s3.safetensors"}})", "s3.safetensors, but the file does not exist");
  expect_refused(R"({"weight_map":{"model.b":"s1.safetensors"}})", "\"model.b\" is not in s1.safetensors");
  expect_refused(R"({"weight_map":{"model.b":"s1.safetensors","model.a":"s2.safetensors"}})", "is not in");
  for (const char* name : {"../x", "/etc/passwd", "a/b", "..", ".", "", "a..b", "a\\u0000b", "./s1.safetensors"}) {
    expect_refused(fmt::format(R"({{"weight_map":{{"model.a":"{}"}}}})", name), "within the folder");
  }
  for (const char* text :
       {"", "[]", "{}", "1", "null", "\"x\"", R"({"weight_map":1})", R"({"weight_map":[]})", R"({"weight_map":"x"})",
        R"({"weight_map":null})", R"({"weight_map":{"a":1}})", R"({"weight_map":{"a":{}}})",
        R"({"weight_map":{"a":["s1.safetensors"]}})", R"({"weight_map":{"a":null}})",
        R"({"weight_map":{},"weight_map":{}})", R"({"weight_map":{}} x)", R"({"weight_map":{})",
        R"({"weight_map":{"a":"s1.safetensors","a":"s1.safetensors"}})",
        R"({"metadata":{"weight_map":{"model.a":"s1.safetensors"}}})"}) {
    expect_refused(text, "");
  }
  expect_refused("{\"metadata\":" + std::string(100000, '['), "nested more than");
}

TEST_F(SafetensorsFolder, RefusesATensorInTwoFiles) {
  write_single(dir_ / "s2.safetensors", "model.a", "U8", 1, "B");
  expect_refused(R"({"weight_map":{"model.a":"s1.safetensors","model.b":"s2.safetensors"}})", "in two files");
}

TEST_F(SafetensorsFolder, RefusesADamagedShard) {
  write_raw(dir_ / "s2.safetensors", read_raw(dir_ / "s2.safetensors") + "x");
  expect_refused(R"({"weight_map":{"model.a":"s1.safetensors","model.b":"s2.safetensors"}})", "s2.safetensors");
}

TEST(Checksum, KnownValuesAndPieces) {
  EXPECT_EQ(xxh3_hex({}), "2d06800538d394c2");  // XXH3_64bits of nothing, from the specification
  const std::string text = iota_bytes(1000);
  for (const size_t piece : {1u, 7u, 256u, 1000u}) {
    Xxh3Stream stream;
    for (size_t i = 0; i < text.size(); i += piece)
      stream.update(as_span(text).subspan(i, std::min(piece, text.size() - i)));
    EXPECT_EQ(stream.hex(), xxh3_hex(as_span(text)));
  }
  EXPECT_NE(xxh3(std::string_view(text)), xxh3(std::string_view(text).substr(1)));
}

}  // namespace
}  // namespace mw::test
