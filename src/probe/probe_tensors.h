// Shapes and tensors for the measurements of operators.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/stream.h"
#include "core/tensor_store.h"
#include "layout/platform_profile.h"
#include "ops/attention.h"
#include "ops/matmul.h"
#include "probe/meter.h"

namespace mw {

struct Product {
  int64_t rows = 0, width = 0;  // [rows, width] x [width, width]
  int64_t narrow = 0;           // or x [width, narrow], where it is not 0
  int64_t result_width() const { return narrow > 0 ? narrow : width; }
  double flops() const { return 2.0 * static_cast<double>(rows) * static_cast<double>(width * result_width()); }
};

struct HeadWidth {
  int64_t keys = 0, values = 0;
  double mean() const { return static_cast<double>(keys + values) / 2; }
  bool operator==(const HeadWidth&) const = default;
};

// Sizes with run times from microseconds to about 20 ms on such a device.
struct ProbeSizes {
  std::vector<Product> dense;
  int64_t experts = 0;
  std::vector<int64_t> expert_counts;  // numbers of experts to measure, ascending; `experts` is one of them
  std::vector<Product> expert;         // rows: average per expert
  std::vector<int64_t> seq_lens;
  int64_t attention_tokens = 0;  // at least; longer sequences are measured one at a time
  int64_t heads = 0, kv_heads = 0;
  HeadWidth width;                // used for all lengths
  std::vector<HeadWidth> widths;  // in ascending order of their means
  int64_t width_seq_len = 0;      // used for all widths
  int64_t elements = 0;           // of a tensor larger than any cache
};

ProbeSizes sizes_for(DeviceKind device);
// The expert products whose tensors stay below 4 GiB with this number of experts.
std::vector<Product> expert_products(const ProbeSizes& sizes, int64_t experts);
// The dtypes used in training: fp32 on GPUs is for tests only.
std::vector<DType> dtypes_on(DeviceKind device);
// The shapes of all lengths and head widths.
std::vector<AttentionShape> attention_shapes(const ProbeSizes& sizes);
// The shape with this length and width. Latent attention, the only kind with two head widths, has keys and values for
// every head.
AttentionShape attention_shape(const ProbeSizes& sizes, int64_t seq_len, HeadWidth width);

// Tensors of one measurement, filled with random values.
class ProbeTensors {
 public:
  ProbeTensors(Stream& stream, const std::vector<TensorSlot>& slots);
  TensorView operator()(const std::string& name) { return store_.fixed(name); }
  // The weights of weight_slots: `count` matrices of [n, k].
  std::vector<Weight> weights(DType dtype, int64_t count, int64_t n, int64_t k);

 private:
  Stream& stream_;
  TensorStore store_;
};

std::vector<TensorSlot> weight_slots(Stream& stream, DType dtype, int64_t count, int64_t n, int64_t k);

// A measured time minus the operator's latency, at least a tenth of it.
double net(double seconds, const PlatformProfile& profile);

}  // namespace mw
