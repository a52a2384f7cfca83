// The header parser against damaged and hostile files.
#include "formats/weights/safetensors.h"
#include "helpers.h"

namespace mw::test {
namespace {

std::string make_file(const std::string& header, size_t buffer_size) {
  return bytes_of<uint64_t>(header.size()) + header + std::string(buffer_size, '\x11');
}

SafetensorsHeader parse(const std::string& bytes) { return parse_safetensors_header(as_span(bytes), "f.safetensors"); }

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

const std::string kHeader =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},)"
    R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
    R"("none":{"dtype":"I64","shape":[0,5],"data_offsets":[4,4]},)"
    R"("scalar":{"dtype":"U8","shape":[],"data_offsets":[28,29]}})";
constexpr size_t kBuffer = 29;

void expect_refused(const std::string& header, size_t buffer, std::string_view part) {
  const std::string message = error_of([&] { parse(make_file(header, buffer)); });
  EXPECT_TRUE(contains(message, part) && contains(message, "f.safetensors")) << header << "\n" << message;
}

TEST(SafetensorsHeader, ReadsEveryKindOfEntry) {
  const SafetensorsHeader header = parse(make_file(kHeader + "   ", kBuffer));
  ASSERT_EQ(header.entries.size(), 4u);
  EXPECT_EQ(header.entries[0].name, "a");
  EXPECT_EQ(header.entries[1].name, "b");
  EXPECT_EQ(header.entries[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header.entries[1].begin, 4);
  EXPECT_EQ(header.entries[2].element_count(), 0);
  EXPECT_EQ(header.entries[3].element_count(), 1);
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.buffer_offset, static_cast<int64_t>(8 + kHeader.size() + 3));
}

TEST(SafetensorsHeader, AcceptsAnEmptyFileOfTensors) {
  EXPECT_TRUE(parse(make_file("{}", 0)).entries.empty());
  EXPECT_TRUE(parse(make_file(R"({"__metadata__":{}})", 0)).entries.empty());
}

TEST(SafetensorsHeader, RefusesEveryCut) {
  const std::string file = make_file(kHeader, kBuffer);
  for (size_t size = 0; size < file.size(); ++size) {
    error_of([&] { parse(file.substr(0, size)); });
  }
  error_of([&] { parse(file + "x"); });
}

TEST(SafetensorsHeader, RefusesEveryCutOfALargeHeader) {
  std::string header = "{";
  for (int i = 0; i < 200; ++i) {
    header += fmt::format(R"({}"layer.{}":{{"dtype":"F16","shape":[4],"data_offsets":[{},{}]}})", i == 0 ? "" : ",", i,
                          8 * i, 8 * i + 8);
  }
  header += "}";
  EXPECT_EQ(parse(make_file(header, 1600)).entries.size(), 200u);
  for (size_t size = 0; size < header.size(); size += 64) {
    expect_refused(header.substr(0, size), 1600, "");
  }
}

// No byte of the header may be changed into something that over-reads: it parses or it is an Error.
TEST(SafetensorsHeader, SurvivesEveryChangedByte) {
  const std::string file = make_file(kHeader, kBuffer);
  for (size_t at = 0; at < 8 + kHeader.size(); ++at) {
    for (const char value : {'\0', '\xff', '{', '}', '[', ']', '"', ',', '9', '-', '.', ' '}) {
      try {
        const SafetensorsHeader header = parse(with_value(file, at, value));
        for (const SafetensorsEntry& entry : header.entries) {
          EXPECT_LE(entry.end, static_cast<int64_t>(file.size()) - header.buffer_offset);
        }
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Exit::data);
      }
    }
  }
}

TEST(SafetensorsHeader, RefusesBadLengths) {
  const std::string file = make_file(kHeader, kBuffer);
  for (const uint64_t length :
       {uint64_t{0}, uint64_t{1}, kHeader.size() - 1, kHeader.size() + 1, file.size() - 8, file.size() - 7,
        uint64_t{100'000'001}, uint64_t{1} << 31, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    error_of([&] { parse(with_value(file, 0, length)); });
  }
}

TEST(SafetensorsHeader, RefusesBadValuesInEveryNumericField) {
  const std::string fields[] = {R"("shape":[2,3)", R"("data_offsets":[4,28)", R"("shape":[2])",
                                R"("data_offsets":[0,4)"};
  for (const std::string& field : fields) {
    for (size_t at = 0; at < field.size(); ++at) {
      if (std::isdigit(static_cast<unsigned char>(field[at])) == 0) continue;
      for (const char* bad : {"-1", "2147483648", "9223372036854775807", "9223372036854775808", "18446744073709551615",
                              "1e400", "NaN", "null", "true", "\"1\"", "1.0", "[1]", "{}", "", "1e2", "0x1", "--1"}) {
        std::string mutated = field;
        mutated.erase(at, std::isdigit(static_cast<unsigned char>(field[at + 1 < field.size() ? at + 1 : at])) != 0 &&
                                  at + 1 < field.size()
                              ? 2
                              : 1);
        mutated.insert(at, bad);
        expect_refused(replaced(kHeader, field, mutated), kBuffer, "");
      }
    }
  }
}

TEST(SafetensorsHeader, RefusesWrongTypesAndMissingKeys) {
  const std::string entry = R"({"dtype":"U8","shape":[],"data_offsets":[28,29]})";
  for (const char* bad :
       {"1", "\"x\"", "null", "[]", "{}", R"({"dtype":"U8","shape":[]})", R"({"dtype":"U8","data_offsets":[28,29]})",
        R"({"shape":[],"data_offsets":[28,29]})", R"({"dtype":8,"shape":[],"data_offsets":[28,29]})",
        R"({"dtype":"U8","shape":1,"data_offsets":[28,29]})", R"({"dtype":["U8"],"shape":[],"data_offsets":[28,29]})",
        R"({"dtype":"U8","shape":{},"data_offsets":[28,29]})", R"({"dtype":"U8","shape":[],"data_offsets":[28]})",
        R"({"dtype":"U8","shape":[],"data_offsets":[]})", R"({"dtype":"U8","shape":[],"data_offsets":[28,29,30]})",
        R"({"dtype":"U8","shape":[],"data_offsets":"28"})",
        R"({"dtype":"U8","shape":[],"data_offsets":[28,29],"more":1})"}) {
    expect_refused(replaced(kHeader, entry, bad), kBuffer, "scalar");
  }
  expect_refused(replaced(kHeader, "\"U8\"", "\"U9\""), kBuffer, "expected a known dtype, got \"U9\"");
  expect_refused(replaced(kHeader, "\"pt\"", "1"), kBuffer, "__metadata__");
  expect_refused(replaced(kHeader, R"({"format":"pt"})", "[]"), kBuffer, "__metadata__");
  expect_refused(replaced(kHeader, R"("pt")", R"({"a":"b"})"), kBuffer, "expected a string");
  for (const char* text : {"", " {}", "[]", "null", "{", "{}}", "{}x", "{},", "{\"a\"}", "\xef\xbb\xbf{}"}) {
    expect_refused(text, 0, "");
  }
  expect_refused(std::string("{}\0{}", 5), 0, "zero byte");
  expect_refused("{\"\xff\":1}", 0, "");
}

TEST(SafetensorsHeader, RefusesDuplicates) {
  expect_refused(replaced(kHeader, "\"scalar\"", "\"a\""), kBuffer, "duplicate tensor \"a\"");
  expect_refused(replaced(kHeader, "\"scalar\"", R"("\u0061")"), kBuffer, "duplicate tensor \"a\"");
  expect_refused(replaced(kHeader, R"("format":"pt")", R"("format":"pt","format":"pt")"), kBuffer, "duplicate");
  expect_refused(replaced(kHeader, R"("shape":[2])", R"("shape":[2],"shape":[2])"), kBuffer, "duplicate \"shape\"");
  expect_refused(R"({"__metadata__":{},"__metadata__":{}})", 0, "duplicate");
}

TEST(SafetensorsHeader, RefusesOverlapsHolesAndSizes) {
  const auto pair = [](int b0, int e0, int b1, int e1) {
    return fmt::format(R"({{"x":{{"dtype":"U8","shape":[4],"data_offsets":[{},{}]}},)"
                       R"("y":{{"dtype":"I32","shape":[1],"data_offsets":[{},{}]}}}})",
                       b0, e0, b1, e1);
  };
  EXPECT_EQ(parse(make_file(pair(0, 4, 4, 8), 8)).entries.size(), 2u);
  EXPECT_EQ(parse(make_file(pair(4, 8, 0, 4), 8)).entries.size(), 2u);
  expect_refused(pair(0, 4, 0, 4), 4, "overlap");
  expect_refused(pair(0, 4, 2, 6), 6, "overlap");
  expect_refused(pair(0, 4, 5, 9), 9, "bytes belong to no tensor");
  expect_refused(pair(1, 5, 5, 9), 9, "bytes belong to no tensor");
  expect_refused(pair(0, 4, 4, 8), 9, "expected a buffer of 8 bytes, got 9");
  expect_refused(pair(0, 4, 4, 8), 7, "within [0, 7]");
  expect_refused(pair(0, 3, 3, 7), 7, "expected 4 bytes");
  expect_refused(pair(4, 0, 4, 8), 8, "within");
}

TEST(SafetensorsHeader, RefusesOverflowingShapes) {
  const auto one = [](const std::string& shape) {
    return fmt::format(R"({{"x":{{"dtype":"F32","shape":[{}],"data_offsets":[0,0]}}}})", shape);
  };
  EXPECT_EQ(parse(make_file(one("0,9223372036854775807"), 0)).entries[0].element_count(), 0);
  expect_refused(one("4294967296,4294967296"), 0, "exceeds 2^63 bytes");
  expect_refused(one("4611686018427387904"), 0, "exceeds 2^63 bytes");  // the product with 4 bytes wraps to 0
  expect_refused(one("9223372036854775807,2,0"), 0, "exceeds 2^63 bytes");
  std::string many = "1";
  for (int i = 0; i < 64; ++i) many += ",1";
  expect_refused(one(many), 0, "at most 64 dimensions");
}

TEST(SafetensorsHeader, RefusesDeepNestingWithoutRecursion) {
  expect_refused("{\"a\":" + std::string(2'000'000, '['), 0, "");
  std::string objects;
  for (int i = 0; i < 300'000; ++i) objects += "{\"a\":";
  expect_refused(objects, 0, "");
}

TEST(SafetensorsHeader, ElementsMayBePartsOfBytes) {
  EXPECT_EQ(safetensors_bytes("F4", {3, 2}), 3);
  EXPECT_EQ(safetensors_bytes("F6_E2M3", {4}), 3);
  EXPECT_EQ(safetensors_bytes("C64", {}), 8);
  EXPECT_EQ(safetensors_bytes("F4", {0}), 0);
  EXPECT_EQ(safetensors_bytes("F4", {3}), -1);
  EXPECT_EQ(safetensors_bytes("F6_E3M2", {2}), -1);
  EXPECT_EQ(safetensors_bytes("F32", {int64_t{1} << 59}), -1);
  EXPECT_EQ(safetensors_bytes("F32", {-1}), -1);
}

}  // namespace
}  // namespace mw::test
