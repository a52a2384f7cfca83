#include "formats/weights/hf_shards.h"

#include <nlohmann/json.hpp>

#include "formats/helpers.h"

namespace mw::test {
namespace {

std::vector<HfTensor> tensors_of(const std::vector<int64_t>& sizes) {
  std::vector<HfTensor> tensors;
  for (const int64_t size : sizes) tensors.push_back({fmt::format("t{}", tensors.size()), {size}, "p", 0});
  return tensors;
}

std::vector<std::vector<size_t>> cut(const std::vector<HfTensor>& tensors, DType dtype, int64_t limit) {
  std::vector<std::vector<size_t>> parts;
  for (const HfShard& shard : cut_into_shards(tensors, dtype, limit)) parts.push_back(shard.tensors);
  return parts;
}

using Parts = std::vector<std::vector<size_t>>;

TEST(HfShards, HoldAtMostTheLimit) {
  const std::vector<HfTensor> tensors = tensors_of({4, 4, 4, 9, 1, 1});
  EXPECT_EQ(cut(tensors, DType::f32, 32),
            (Parts{{0, 1}, {2}, {3}, {4, 5}}));  // the fourth is larger than a file may be
  EXPECT_EQ(cut(tensors, DType::f32, 31), (Parts{{0}, {1}, {2}, {3}, {4, 5}}));
  EXPECT_EQ(cut(tensors, DType::bf16, 32), (Parts{{0, 1, 2}, {3, 4, 5}}));
  EXPECT_EQ(cut(tensors, DType::f32, int64_t{1} << 60), (Parts{{0, 1, 2, 3, 4, 5}}));
  EXPECT_EQ(cut(tensors, DType::f32, 1), (Parts{{0}, {1}, {2}, {3}, {4}, {5}}));
  std::vector<HfTensor> wide = tensors;
  wide[0].keeps_f32 = true;
  EXPECT_EQ(cut(wide, DType::bf16, 31), (Parts{{0, 1}, {2, 3, 4, 5}}));
}

TEST(HfShards, AreNamedAndIndexed) {
  const std::vector<HfTensor> tensors = tensors_of({4, 4, 9});
  EXPECT_EQ(cut_into_shards(tensors, DType::bf16, 1000).front().file, "model.safetensors");
  const std::vector<HfShard> shards = cut_into_shards(tensors, DType::bf16, 17);
  ASSERT_EQ(shards.size(), 2u);
  EXPECT_EQ(shards[0].file, "model-00001-of-00002.safetensors");
  const auto index = nlohmann::json::parse(hf_index_text(tensors, shards, DType::bf16));
  EXPECT_EQ(index.at("metadata").at("total_size"), 34);
  EXPECT_EQ(index.at("weight_map"), nlohmann::json({{"t0", "model-00001-of-00002.safetensors"},
                                                    {"t1", "model-00001-of-00002.safetensors"},
                                                    {"t2", "model-00002-of-00002.safetensors"}}));
}

}  // namespace
}  // namespace mw::test
