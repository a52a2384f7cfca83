#include "ops/row_gate.h"

#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"

namespace mw::gpu {
namespace {

// A block takes a row.
template <class T>
__global__ void gate_rows_kernel(float* gates, T* x, int64_t width) {
  const float gate = 1.0f / (1.0f + expf(-gates[blockIdx.x]));
  T* row = x + static_cast<int64_t>(blockIdx.x) * width;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) row[i] = from_float<T>(gate * to_float(row[i]));
  __syncthreads();  // all have read the logit
  if (threadIdx.x == 0) gates[blockIdx.x] = gate;
}

struct GateBackward {
  const float* gates;
  float* d;
  __device__ void operator()(int64_t r) const { d[r] *= gates[r] * (1.0f - gates[r]); }
};

}  // namespace

void gate_rows(Stream& stream, TensorView gate_R, TensorView x_RN) {
  with_float_type(x_RN.dtype, [&](auto type) {
    using T = decltype(type);
    launch(stream, gate_rows_kernel<T>, x_RN.rows(), kThreads, 0, gate_R.as<float>(), x_RN.as<T>(), x_RN.cols());
  });
}

void gate_backward(Stream& stream, TensorView gate_R, TensorView d_gate_R) {
  for_each(stream, gate_R.numel(), GateBackward{gate_R.as<float>(), d_gate_R.as<float>()});
}

}  // namespace mw::gpu
