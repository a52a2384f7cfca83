// AdamW: each thread updates four elements, or one where an address does not allow that. Small tensors share a kernel.
#include "ops/adamw.h"

#include <cmath>
#include <type_traits>

#include "ops/gpu/launch.h"
#include "ops/gpu/master_weights.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"

namespace mw::gpu {
namespace {

constexpr int kPack = kWidePack<float>;

// Second moments are raised by a power of two before their root is taken, because hardware takes values below 2^-126
// for 0.
constexpr float kRaise = 0x1p24f, kLowerRoot = 0x1p-12f;

// The factors that all elements of a tensor share.
struct Factors {
  float keep1, take1, keep2, take2, shrink, rate, inverse_root, eps, grad_scale;  // inverse_root: of raised moments
  uint32_t seed;
};

template <class Type>
constexpr DType kTypeOf = std::is_same_v<Type, float>  ? DType::f32
                          : std::is_same_v<Type, bf16> ? DType::bf16
                                                       : DType::u16;

template <class Gradient, class Moment, class Weight>
struct Update {
  Factors by;
  const Gradient* gradient;
  Weight* weight;  // float, or uint16_t: the rests beside `copy`
  Moment *first, *second;
  bf16* copy;

  static bool fits(const AdamWTensor& tensor) {
    return tensor.grad.dtype == kTypeOf<Gradient> && tensor.m.dtype == kTypeOf<Moment> &&
           tensor.w.dtype == kTypeOf<Weight>;
  }
  static Update of(const AdamWTensor& tensor, const Factors& by) {
    return {by,
            tensor.grad.as<Gradient>(),
            tensor.w.as<Weight>(),
            tensor.m.as<Moment>(),
            tensor.v.as<Moment>(),
            tensor.copy_bf16.data == nullptr ? nullptr : tensor.copy_bf16.as<bf16>()};
  }
  bool allows_packs() const { return allow_packs<kPack>(gradient, weight, first, second) && allow_packs<kPack>(copy); }
  template <int N>
  __device__ void apply(int64_t i) const {
    const Pack<Gradient, N> gradients = load<N>(gradient + i);
    const Pack<Moment, N> m_then = load<N>(first + i), v_then = load<N>(second + i);
    const Pack<float, N> w_then = load_weights<N>(weight, copy, i);
    Pack<float, N> w, m, v;
    Pack<uint32_t, N> chances;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float g = to_float(gradients.at[k]) * by.grad_scale;
      m.at[k] = by.keep1 * to_float(m_then.at[k]) + by.take1 * g;
      v.at[k] = by.keep2 * to_float(v_then.at[k]) + by.take2 * (g * g);
      chances.at[k] = chance_of(m.at[k], w_then.at[k], by.seed);
      w.at[k] = w_then.at[k] * by.shrink -
                by.rate * divide_quickly(m.at[k], root_quickly(v.at[k] * kRaise) * by.inverse_root + by.eps);
    }
    store_moments(first + i, m, chances);
    store_moments<16>(second + i, v, chances);
    store_weights(weight, copy, i, w);
  }
};

// Larger tensors have a kernel each.
constexpr int64_t kMostOfSmall = int64_t{1} << 20;
constexpr int kListTensors = 32;  // of one launch, which takes the list as an argument
constexpr int64_t kPacksOfBlock = kThreads;

template <class Update>
struct UpdateList {
  Update updates[kListTensors];
  int64_t counts[kListTensors];
  int64_t ends[kListTensors];  // blocks up to the end of each tensor
  bool aligned[kListTensors];
  int size = 0;
};

// A thread has one pack.
template <class Update>
__global__ void __launch_bounds__(kThreads) update_list_kernel(UpdateList<Update> list) {
  int t = 0;
  while (blockIdx.x >= list.ends[t]) ++t;
  const Update update = list.updates[t];
  const int64_t block = blockIdx.x - (t == 0 ? 0 : list.ends[t - 1]);
  const int64_t begin = (block * kPacksOfBlock + threadIdx.x) * kPack, count = list.counts[t];
  if (list.aligned[t] && begin + kPack <= count) return update.template apply<kPack>(begin);
  for (int64_t i = begin; i < begin + kPack && i < count; ++i) update.template apply<1>(i);
}

// In double, as torch has them: 1 - beta2 would lose digits in fp32.
Factors factors_of(const AdamW& rule, int64_t step, float grad_scale, const AdamWTensor& tensor) {
  const double beta1 = rule.beta1, beta2 = rule.beta2, steps = static_cast<double>(step), lr = tensor.lr;
  return {static_cast<float>(beta1),
          static_cast<float>(1.0 - beta1),
          static_cast<float>(beta2),
          static_cast<float>(1.0 - beta2),
          static_cast<float>(1.0 - lr * static_cast<double>(tensor.decay)),
          static_cast<float>(lr / (1.0 - std::pow(beta1, steps))),
          static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, steps))) * kLowerRoot,
          static_cast<float>(rule.eps),
          grad_scale,
          static_cast<uint32_t>(step)};
}

// Updates the tensors of these types, and leaves the others out.
template <class Update>
void update_alike(Stream& stream, const AdamW& rule, int64_t step, float grad_scale,
                  std::span<const AdamWTensor> tensors) {
  UpdateList<Update> list;
  const auto finish_list = [&] {
    if (list.size > 0) launch(stream, update_list_kernel<Update>, list.ends[list.size - 1], kThreads, 0, list);
    list.size = 0;
  };
  for (const AdamWTensor& tensor : tensors) {
    const int64_t count = tensor.w.numel();
    if (count == 0 || !Update::fits(tensor)) continue;
    const Update update = Update::of(tensor, factors_of(rule, step, grad_scale, tensor));
    if (count > kMostOfSmall) {
      for_each_pack<kPack>(stream, count, update.allows_packs(), update);
      continue;
    }
    const int64_t before = list.size == 0 ? 0 : list.ends[list.size - 1];
    list.updates[list.size] = update;
    list.counts[list.size] = count;
    list.aligned[list.size] = update.allows_packs();
    list.ends[list.size++] = before + ceil_div(count, kPacksOfBlock * kPack);
    if (list.size == kListTensors) finish_list();
  }
  finish_list();
}

}  // namespace

void adamw(Stream& stream, const AdamW& rule, int64_t step, float grad_scale, std::span<const AdamWTensor> tensors) {
  const auto run = [&]<class Gradient, class Moment>(Gradient, Moment) {
    update_alike<Update<Gradient, Moment, float>>(stream, rule, step, grad_scale, tensors);
    update_alike<Update<Gradient, Moment, uint16_t>>(stream, rule, step, grad_scale, tensors);
  };
  run(float(), float());
  run(float(), bf16());
  run(bf16(), float());
  run(bf16(), bf16());
}

}  // namespace mw::gpu
