#include "formats/weights/hf_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "formats/weights/axis_order.h"
#include "formats/weights/mxfp4.h"

namespace mw {
namespace {

constexpr int64_t kBlock = 128;

int64_t blocks_of(int64_t n) { return (n + kBlock - 1) / kBlock; }

bool is_fp8(const SafetensorsEntry& entry) { return entry.dtype == "F8_E4M3"; }

void check_shape(const SafetensorsLocation& at, const std::vector<int64_t>& shape) {
  if (at.entry->shape != shape)
    fail(Exit::data,
         fmt::format("{}: tensor \"{}\" has shape {}, expected {}", at.file->path(), at.entry->name,
                     format_shape(at.entry->shape), format_shape(shape)),
         kOtherWeights);
}

// Multiplies elements [first, first + values.size()) of a matrix with `columns` columns by the scales of their blocks.
void apply_scales(const SafetensorsLocation& scales, int64_t columns, int64_t first, std::span<float> values) {
  std::vector<float> row(static_cast<size_t>(blocks_of(columns)));
  const int64_t end = first + static_cast<int64_t>(values.size());
  for (int64_t at = first; at < end;) {
    const int64_t r = at / columns, row_end = std::min(end, (r + 1) * columns);
    read_as_f32(*scales.file, *scales.entry, r / kBlock * std::ssize(row), row);
    for (; at < row_end; ++at)
      values[static_cast<size_t>(at - first)] *= row[static_cast<size_t>((at - r * columns) / kBlock)];
  }
}

}  // namespace

std::string scale_name(const std::string& tensor) { return tensor + "_scale_inv"; }

std::vector<std::string> stored_names(const SafetensorsSet& files, const HfTensor& tensor) {
  if (tensor.is_mxfp4) return {mxfp4_blocks_name(tensor.name), mxfp4_scales_name(tensor.name)};
  const SafetensorsLocation at = files.find(tensor.name);
  if (at.entry != nullptr && is_fp8(*at.entry)) return {tensor.name, scale_name(tensor.name)};
  return {tensor.name};
}

void check_hf_tensor(const SafetensorsSet& files, const HfTensor& tensor) {
  if (tensor.is_mxfp4) return check_mxfp4(files, tensor.name, tensor.shape);
  const SafetensorsLocation at = files.require(tensor.name);
  check_shape(at, tensor.shape);
  if (!is_fp8(*at.entry)) return;
  if (tensor.shape.size() != 2)
    fail(Exit::data,
         fmt::format("{}: tensor \"{}\" is fp8 with shape {}, but only matrices may be fp8", at.file->path(),
                     tensor.name, format_shape(tensor.shape)),
         "convert the tensor to BF16");
  const SafetensorsLocation scales = files.require(scale_name(tensor.name));
  check_shape(scales, {blocks_of(tensor.shape[0]), blocks_of(tensor.shape[1])});
  if (scales.entry->dtype != "F32")
    fail(Exit::data,
         fmt::format("{}: tensor \"{}\": expected dtype F32, got {}", scales.file->path(), scales.entry->name,
                     scales.entry->dtype),
         "store the scales of fp8 weights as F32");
}

void read_hf_tensor(const SafetensorsSet& files, const HfTensor& tensor, int64_t first, std::span<float> out) {
  const auto read_runs = [&](const auto& read) {
    for_each_file_run(tensor, first, std::ssize(out), [&](int64_t done, int64_t begin, int64_t stride, int64_t count) {
      read(begin, stride, out.subspan(static_cast<size_t>(done), static_cast<size_t>(count)));
    });
  };
  if (tensor.is_mxfp4)  // whose rows are those of the parameter
    return read_runs([&](int64_t begin, int64_t, std::span<float> run) { read_mxfp4(files, tensor.name, begin, run); });
  const SafetensorsLocation at = files.require(tensor.name);
  read_runs([&](int64_t begin, int64_t stride, std::span<float> run) {
    read_as_f32(*at.file, *at.entry, begin, run, stride);
  });
  if (is_fp8(*at.entry)) apply_scales(files.require(scale_name(tensor.name)), tensor.shape.back(), first, out);
}

}  // namespace mw
