// cuDNN graphs: describe tensors and operations, let cuDNN build a plan, and run the plan many times. The only file
// that includes cuDNN's header.
#pragma once

#include <cudnn.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/gpu/launch.h"

namespace mw::gpu::cudnn {

constexpr int64_t kAlignment = 256;  // of scratch

inline std::string last_reason() {
  std::array<char, 512> text{};
  cudnnGetLastErrorString(text.data(), text.size());
  return text.data();
}

inline void check(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS)
    fail(Exit::internal, fmt::format("{} failed: {}: {}", what, cudnnGetErrorString(status), last_reason()));
}

struct Refused {};  // by cuDNN, while a plan is built

inline void require(cudnnStatus_t status) {
  if (status != CUDNN_STATUS_SUCCESS) throw Refused();
}

using Tensor = cudnnBackendDescriptor_t;

// Dimensions are [sequence, head, position, column].
struct Layout {
  std::array<int64_t, 4> dims, strides;
};

inline Layout packed(int64_t sequences, int64_t heads, int64_t rows, int64_t columns) {
  return {{sequences, heads, rows, columns}, {heads * rows * columns, rows * columns, columns, 1}};
}

inline Layout transposed(Layout layout) {
  std::swap(layout.dims[2], layout.dims[3]);
  std::swap(layout.strides[2], layout.strides[3]);
  return layout;
}

// A graph under construction, then the plan that runs it. Owns all cuDNN descriptors.
class Graph {
 public:
  explicit Graph(cudnnHandle_t handle) : handle_(handle) {}
  Graph(Graph&&) = default;
  ~Graph() {
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) (void)cudnnBackendDestroyDescriptor(*part);
  }

  // Adds an operand. Operands are numbered in the order of these calls, which is the order of `operands` in run().
  // `alignment`: of their addresses, in bytes.
  Tensor operand(const Layout& layout, cudnnDataType_t type = CUDNN_DATA_BFLOAT16, int64_t alignment = 16) {
    memory_ids_.push_back(next_id_);
    return finish(tensor(layout, type, alignment));
  }
  // A tensor in scratch, aligned to kAlignment.
  Tensor scratch(const Layout& layout) {
    memory_ids_.push_back(next_id_);
    scratch_offsets_.push_back(scratch_bytes_);
    const int64_t bytes = layout.dims[0] * layout.strides[0] * static_cast<int64_t>(sizeof(float));
    scratch_bytes_ += ceil_div(bytes, kAlignment) * kAlignment;
    return finish(tensor(layout, CUDNN_DATA_FLOAT));
  }
  // An intermediate tensor that need not exist in memory.
  Tensor computed(const Layout& layout, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    const Tensor t = tensor(layout, type);
    set(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, true);
    return finish(t);
  }
  Tensor number(float value) {
    number_ids_.push_back(next_id_);
    numbers_.push_back(value);
    const Tensor t = tensor(packed(1, 1, 1, 1), CUDNN_DATA_FLOAT);
    set(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, true);
    return finish(t);
  }

  // Each operation returns its output tensor.
  Tensor multiply(Tensor a, Tensor b, Tensor to) {
    const auto product = create(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(product, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    finish(product);
    const auto operation = create(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, a);
    set(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, b);
    set(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, to);
    set(operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, product);
    return add(operation, to);
  }
  // Reduces over the dimensions in which `to` is shorter.
  Tensor reduce(cudnnReduceTensorOp_t by, Tensor x, Tensor to) {
    const auto reduction = create(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(reduction, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    set(reduction, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, by);
    finish(reduction);
    const auto operation = create(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set(operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, reduction);
    set(operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, x);
    set(operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, to);
    return add(operation, to);
  }
  Tensor reshape(Tensor x, Tensor to) {
    const auto operation = create(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, x);
    set(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, to);
    return add(operation, to);
  }
  Tensor apply(cudnnPointwiseMode_t mode, Tensor x, Tensor to) {
    return pointwise(mode, CUDNN_DATA_FLOAT, {x, nullptr, nullptr, to});
  }
  Tensor apply(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor to) {
    return pointwise(mode, CUDNN_DATA_FLOAT, {x, b, nullptr, to});
  }
  Tensor is_greater_or_equal(Tensor a, Tensor b, Tensor to) {
    return pointwise(CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, {a, b, nullptr, to});
  }
  Tensor select(Tensor where, Tensor x, Tensor otherwise, Tensor to) {
    return pointwise(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, {x, otherwise, where, to});
  }
  // Each element's position along the axis.
  Tensor index(int64_t axis, Tensor x, Tensor to) {
    return pointwise(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, {x, nullptr, nullptr, to}, axis);
  }

  // Turns the graph into a plan: the first of cuDNN's proposals, best first, that can be built.
  void plan() {
    const auto graph = create(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    require(cudnnBackendSetAttribute(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                     static_cast<int64_t>(operations_.size()), operations_.data()));
    set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle_);
    finish(graph);
    for (const auto proposal : proposals(graph)) {
      const auto plan = create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, proposal);
      if (cudnnBackendFinalize(plan) != CUDNN_STATUS_SUCCESS) continue;
      require(cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, nullptr,
                                       &plan_scratch_bytes_));
      plan_ = plan;
      return;
    }
    throw Refused();
  }

  int64_t scratch_bytes() const { return scratch_bytes_ + plan_scratch_bytes_; }

  void run(std::vector<void*> operands, std::byte* scratch) {
    std::vector<int64_t> ids = memory_ids_;
    std::vector<void*>& memory = operands;
    for (int64_t offset : scratch_offsets_) memory.push_back(scratch + offset);
    ids.insert(ids.end(), number_ids_.begin(), number_ids_.end());
    for (float& number : numbers_) memory.push_back(&number);
    MW_CHECK(ids.size() == memory.size(), "{} tensors, {} addresses", ids.size(), memory.size());
    const auto count = static_cast<int64_t>(ids.size());
    void* plan_scratch = scratch + scratch_bytes_;

    cudnnBackendDescriptor_t pack = nullptr;
    check(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack),
          "describing attention's operands");
    const std::unique_ptr<void, cudnnStatus_t (*)(void*)> owner(pack, cudnnBackendDestroyDescriptor);
    const auto describe = [&](cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
                              const void* values) {
      check(cudnnBackendSetAttribute(pack, name, type, n, values), "describing attention's operands");
    };
    describe(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data());
    describe(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, memory.data());
    describe(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &plan_scratch);
    check(cudnnBackendFinalize(pack), "describing attention's operands");
    check(cudnnBackendExecute(handle_, plan_, pack), "attention by cuDNN");
  }

 private:
  cudnnBackendDescriptor_t create(cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t part = nullptr;
    require(cudnnBackendCreateDescriptor(type, &part));
    parts_.push_back(part);
    return part;
  }
  template <class T>
  void set(cudnnBackendDescriptor_t part, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, T value) {
    require(cudnnBackendSetAttribute(part, name, type, 1, &value));
  }
  cudnnBackendDescriptor_t finish(cudnnBackendDescriptor_t part) {
    require(cudnnBackendFinalize(part));
    return part;
  }
  Tensor add(cudnnBackendDescriptor_t operation, Tensor to) {
    operations_.push_back(finish(operation));
    return to;
  }
  Tensor tensor(const Layout& layout, cudnnDataType_t type, int64_t alignment = 16) {
    const Tensor t = create(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
    require(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, layout.dims.data()));
    require(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, layout.strides.data()));
    set(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, next_id_++);
    set(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, alignment);
    return t;
  }

  struct Pointwise {
    Tensor x, b, where, to;
  };
  Tensor pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t type, const Pointwise& p, int64_t axis = -1) {
    const auto function = create(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(function, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
    set(function, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, type);
    if (axis >= 0) set(function, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
    finish(function);
    const auto operation = create(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    const auto name = [&](cudnnBackendAttributeName_t attribute, cudnnBackendDescriptor_t what) {
      if (what != nullptr) set(operation, attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, what);
    };
    name(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function);
    name(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, p.x);
    name(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, p.b);
    name(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, p.where);
    name(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, p.to);
    return add(operation, p.to);
  }

  std::vector<cudnnBackendDescriptor_t> proposals(cudnnBackendDescriptor_t graph) {
    const auto heuristics = create(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, graph);
    set(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
    finish(heuristics);
    int64_t count = 0;
    require(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0,
                                     &count, nullptr));
    std::vector<cudnnBackendDescriptor_t> found(static_cast<size_t>(count));
    for (auto& proposal : found) proposal = create(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    require(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count,
                                     &count, found.data()));
    found.resize(static_cast<size_t>(count));
    return found;
  }

  cudnnHandle_t handle_;
  std::vector<cudnnBackendDescriptor_t> parts_, operations_;
  cudnnBackendDescriptor_t plan_ = nullptr;
  int64_t next_id_ = 1, scratch_bytes_ = 0, plan_scratch_bytes_ = 0;
  std::vector<int64_t> memory_ids_, number_ids_, scratch_offsets_;
  std::vector<float> numbers_;
};

}  // namespace mw::gpu::cudnn
