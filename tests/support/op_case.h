// OpCase: one operator with parameters, an independent reference and a tolerance with its reason. The same case checks
// a backend against the reference, checks gradients by finite differences, times the operator and lists what is
// supported.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "core/stream.h"
#include "core/tensor.h"
#include "ops/adamw.h"
#include "support/test_device.h"

namespace mw::test {

// A named tensor of a case, held as fp32 on the host; `dtype` is what the operator sees.
struct CaseTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
  DType dtype = DType::f32;
};
using Tensors = std::map<std::string, CaseTensor>;

struct OpCase {
  std::string name;  // "rms_norm/bf16/33x96"
  Tensors inputs;    // differentiable and constant inputs alike
  // Runs the operator: reads inputs, returns its outputs. Every tensor has its own memory, filled with NaN before.
  std::function<Tensors(Stream&, const Tensors& inputs)> forward;
  // Runs the backward operator for given output gradients: returns the gradient of each differentiable input, under its
  // name.
  std::function<Tensors(Stream&, const Tensors& inputs, const Tensors& d_outputs)> backward;  // may be empty
  // The plain mathematics in double precision, written for reading, sharing no code with the operator. It may leave out
  // outputs of `forward` that it has nothing to say about.
  std::function<std::map<std::string, std::vector<double>>(const Tensors& inputs)> reference;
  double tolerance = 1e-5;           // on |a-b| / max(|b|, rms(b)), largest over elements
  double gradient_tolerance = 1e-3;  // on the directional derivative of the reference by central differences
  std::string reason;                // why these tolerances
  double flops = 0, bytes = 0;       // of one forward call, for timing
  // Outputs that carry no gradient: d_outputs has no entry for them. Integer outputs never carry one.
  std::set<std::string> constant_outputs = {};
};

// Deterministic inputs: normal values of the given scale under a named stream, rounded to `dtype`.
CaseTensor random_tensor(const std::string& name, std::vector<int64_t> shape, DType dtype, float scale = 1.0f);
CaseTensor integer_tensor(std::vector<int64_t> shape, std::vector<int> values);

// Device copies: a tensor in its dtype (i32 for integer tensors), kept alive by the returned object. The memory has
// exactly the tensor's size, so that AddressSanitizer sees an over-read.
struct Owned {
  Owned() = default;
  Owned(Owned&&) = default;
  Owned& operator=(Owned&&) = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  DeviceVector<std::byte> memory;
  TensorView view;
};
Owned to_operand(const CaseTensor& tensor);
Owned make_output(DType dtype, std::vector<int64_t> shape);  // filled with NaN bits, or large integers
CaseTensor to_case_tensor(const Owned& tensor);

// While one lives, tensors are made one element beyond a border of 16 bytes, as slices of a tensor may lie.
struct OffBorders {
  OffBorders();
  ~OffBorders();
  OffBorders(const OffBorders&) = delete;
  OffBorders& operator=(const OffBorders&) = delete;
};

// A stream of the test device with `threads` threads and a workspace large enough for tests, its first MiB filled with
// NaN bits.
struct TestStream {
  explicit TestStream(int threads = 2, size_t workspace_bytes = size_t{256} << 20, QueueOptions options = {});
  std::unique_ptr<std::byte, void (*)(void*)> memory;  // uninitialised, but for the start
  Stream stream;
};

// adamw of one tensor.
inline void update_by_adamw(Stream& stream, const AdamW& rule, int64_t step, float lr, float decay, float grad_scale,
                            TensorView grad, TensorView w, TensorView m, TensorView v, TensorView copy_bf16 = {}) {
  const AdamWTensor tensor{lr, decay, grad, w, m, v, copy_bf16};
  adamw(stream, rule, step, grad_scale, {&tensor, 1});
}

// Largest |a-b| / max(|b|, rms(b)); infinite when an element of a is not finite where b is, or the sizes differ.
double largest_error(const std::vector<float>& a, const std::vector<double>& b);

// Forward against the reference; GoogleTest failures name the case, the output and the element.
void check_forward(const OpCase& op_case, Stream& stream);
// backward against central differences of the reference along random directions of every returned gradient, and along
// at least 16 single elements of each. L = sum of c * output with random cotangents c, given to backward as d_outputs.
void check_gradient(const OpCase& op_case, Stream& stream);
// The same call (forward, and backward where there is one) on 1, 2 and 3 threads gives the same bits (leave out for
// operators that only promise it per thread count).
void check_thread_invariance(const OpCase& op_case);

}  // namespace mw::test
