#include "formats/weights/hf_shards.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

namespace mw {
namespace {

int64_t bytes_of(const HfTensor& tensor, DType dtype) { return tensor.numel() * size_of(written_dtype(tensor, dtype)); }

}  // namespace

DType written_dtype(const HfTensor& tensor, DType dtype) { return tensor.keeps_f32 ? DType::f32 : dtype; }

std::vector<HfShard> cut_into_shards(const std::vector<HfTensor>& tensors, DType dtype, int64_t limit) {
  std::vector<HfShard> shards(1);
  int64_t filled = 0;  // bytes of the last one
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t bytes = bytes_of(tensors[i], dtype);
    if (filled > 0 && bytes > limit - filled) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().tensors.push_back(i);
    filled += bytes;
  }
  for (size_t s = 0; s < shards.size(); ++s)
    shards[s].file = shards.size() == 1 ? "model.safetensors"
                                        : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
  return shards;
}

std::string hf_index_text(const std::vector<HfTensor>& tensors, const std::vector<HfShard>& shards, DType dtype) {
  int64_t total = 0;
  std::map<std::string, std::string> file_of;
  for (const HfShard& shard : shards)
    for (const size_t i : shard.tensors) {
      file_of[tensors[i].name] = shard.file;
      total += bytes_of(tensors[i], dtype);
    }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", file_of}};
  return index.dump(2) + "\n";
}

}  // namespace mw
