// The token layout: a counting sort of choices by (position of the expert, choice). With a capacity the sort runs
// twice: first for a list per expert, in which each domain's choices beyond the capacity are found and dropped. Rows
// are copied with one wave per row and summed with one per slice, in words of 16 bytes where width and alignment allow.
#include "ops/token_layout.h"

#include <vector>

#include "ops/gpu/counting_sort.h"
#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"

namespace mw::gpu {
namespace {

constexpr int64_t kMaxGrid = 1 << 16;
constexpr int kWavesPerBlock = kThreads / kWave;

// The choices to sort. Rows and choices fit 32 bits.
struct Choices {
  const int32_t* ids;
  const float* weights;
  const int32_t* position_of_expert;  // null: each expert is at its own
  int32_t count, experts, top_k;

  // Ids are valid unless a caller is broken: then memory stays whole and, where the host looks, `bad_ids` is reported.
  __device__ bool is_bad(int64_t i) const { return ids[i] < 0 || ids[i] >= experts; }
  __device__ int32_t expert_of(int64_t i) const { return is_bad(i) ? 0 : ids[i]; }
  __device__ int32_t position_of(int64_t i) const {
    const int32_t expert = expert_of(i);
    return position_of_expert == nullptr ? expert : position_of_expert[expert];
  }
};

struct PositionOf {
  Choices choices;
  __device__ int32_t operator()(int64_t i) const { return choices.position_of(i); }
};
// The same for the choices that are not dropped (row_of = -1).
struct KeptPositionOf {
  Choices choices;
  const int32_t* row_of;
  __device__ int32_t operator()(int64_t i) const { return row_of[i] < 0 ? -1 : choices.position_of(i); }
};

struct PlaceRow {
  Choices choices;
  int32_t *row_of, *token_ids, *expert_ids;
  float* sorted_weights;
  __device__ void operator()(int64_t i, int32_t position, int32_t r) const {
    if (position < 0) return;
    row_of[i] = r;
    token_ids[r] = static_cast<int32_t>(i) / choices.top_k;
    expert_ids[r] = choices.expert_of(i);
    sorted_weights[r] = choices.weights[i];
  }
};

// Ascending order of the result: descending weight, then ascending choice. A total order on all bit patterns, NaNs too.
__device__ SortKey make_rank_key(float weight, int64_t choice) {
  const uint32_t ascending = ordered_bits(weight == 0.0f ? 0.0f : weight);  // -0 becomes +0
  return static_cast<SortKey>(~ascending) << 32 | static_cast<SortKey>(choice);
}

// No choice is dropped yet.
struct PlaceRankKey {
  Choices choices;
  int32_t* row_of;
  SortKey* keys;
  int64_t* bad_ids;
  __device__ void operator()(int64_t i, int32_t, int32_t place) const {
    if (choices.is_bad(i)) *bad_ids = 1;
    row_of[i] = 0;
    keys[place] = make_rank_key(choices.weights[i], i);
  }
};

// First of keys[begin, end), which are in ascending order of choice, whose choice is not below `choice`.
__device__ int64_t find_choice(const SortKey* keys, int64_t begin, int64_t end, int64_t choice) {
  while (begin < end) {
    const int64_t middle = (begin + end) / 2;
    if (static_cast<int64_t>(keys[middle] & 0xffffffffu) < choice) begin = middle + 1;
    else end = middle;
  }
  return begin;
}

// One block per (domain, position) at a time: all but the first `capacity` keys are dropped.
__global__ void drop_kernel(const SortKey* keys, const int32_t* first_E, int64_t E, int64_t count,
                            int64_t domain_choices, int64_t domains, int64_t capacity, int32_t* row_of) {
  for (int64_t segment = blockIdx.x; segment < domains * E; segment += gridDim.x) {
    const int64_t domain = segment / E, position = segment % E;
    const int64_t first = first_E[position], last = position + 1 < E ? first_E[position + 1] : count;
    const int64_t begin = find_choice(keys, first, last, domain * domain_choices);
    const int64_t end = find_choice(keys, begin, last, (domain + 1) * domain_choices);
    if (end - begin <= capacity) continue;
    const SortKey last_kept = select_key(keys + begin, end - begin, capacity);
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads)
      if (keys[i] > last_kept) row_of[keys[i] & 0xffffffffu] = -1;
  }
}

// Which positions have been seen; kept, so that no call allocates.
struct SeenPositions : StreamState {
  std::vector<uint8_t> seen;
};

// Returns whether each expert is at its own position.
bool check_permutation(Stream& stream, std::span<const int32_t> position_of_expert) {
  const size_t E = position_of_expert.size();
  std::vector<uint8_t>& seen = stream.state<SeenPositions>().seen;
  seen.assign(E, 0);
  bool identity = true;
  for (size_t e = 0; e < E; ++e) {
    const int32_t position = position_of_expert[e];
    MW_CHECK(position >= 0 && static_cast<size_t>(position) < E && seen[static_cast<size_t>(position)] == 0,
             "position {} of expert {}", position, e);
    seen[static_cast<size_t>(position)] = 1;
    identity = identity && static_cast<size_t>(position) == e;
  }
  return identity;
}

void drop_beyond_capacity(Stream& stream, const CountingSort& sort, const Choices& choices, int64_t tokens,
                          CapacityRule rule, int64_t* bad_ids, int32_t* row_of) {
  WorkspaceFrame frame(stream.workspace());
  auto* keys = frame.take<SortKey>(static_cast<size_t>(choices.count));
  sort_items(stream, sort, PositionOf{choices}, PlaceRankKey{choices, row_of, keys, bad_ids}, nullptr, nullptr);
  const int64_t domain = std::min(rule.domain_tokens, tokens), domains = ceil_div(tokens, domain), E = choices.experts;
  launch(stream, drop_kernel, std::min(kMaxGrid, domains * E), kThreads, 0, keys, sort.first_k, E, choices.count,
         domain * choices.top_k, domains, rule.capacity, row_of);
}

// out[r] = x[rows[r]] in words, one wave per row.
template <class Word>
__global__ void gather_kernel(const Word* __restrict__ x, const int32_t* rows, int64_t count, int64_t width,
                              Word* __restrict__ out) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kWavesPerBlock + threadIdx.x / kWave;
  if (r >= count) return;
  const int64_t row = rows[r];
  const Word* from = x + row * width;
  Word* to = out + r * width;
  const int64_t lane = threadIdx.x % kWave;
  if (row < 0) {
    for (int64_t i = lane; i < width; i += kWave) to[i] = Word{};
  } else {
#pragma unroll 4
    for (int64_t i = lane; i < width; i += kWave) to[i] = from[i];
  }
}

template <class Word>
void gather_words(Stream& stream, const TensorView& x, const int32_t* rows, int64_t count, const TensorView& out) {
  const int64_t width = x.cols() * size_of(x.dtype) / static_cast<int64_t>(sizeof(Word));
  launch(stream, gather_kernel<Word>, ceil_div(count, kWavesPerBlock), kThreads, 0, static_cast<const Word*>(x.data),
         rows, count, width, static_cast<Word*>(out.data));
}

bool allows_16_bytes(const void* memory, int64_t row_bytes) {
  return reinterpret_cast<std::uintptr_t>(memory) % 16 == 0 && row_bytes % 16 == 0;
}

template <class T>
struct Combine {
  const T* y;
  const int32_t* row_of;
  const float* weights;
  const T* base;
  T* out;
  int64_t tokens, width, slice, slices;
  int top_k;
};

// Packs that a lane sums in turn. Wide tokens are split over several waves, so that tokens with many rows do not finish
// last.
constexpr int kStepsOfSlice = 4;

// One wave per slice of a token; each lane sums kCount neighbouring elements at a time. base may be out: each element
// is read before it is written, by the same lane. kRowsAtOnce: rows of a token that are loaded before the first is
// added, so that loads overlap.
template <class T, int kCount, int kRowsAtOnce>
__global__ void combine_kernel(Combine<T> task) {
  const int64_t wave = static_cast<int64_t>(blockIdx.x) * kWavesPerBlock + threadIdx.x / kWave;
  const int64_t t = wave / task.slices, begin = wave % task.slices * task.slice;
  if (t >= task.tokens) return;
  const int64_t end = begin + task.slice < task.width ? begin + task.slice : task.width;
  const int K = task.top_k;
  const int32_t* row_of = task.row_of + t * K;
  const float* weights = task.weights == nullptr ? nullptr : task.weights + t * K;
  for (int64_t d = begin + threadIdx.x % kWave * kCount; d < end; d += kWave * kCount) {
    const int64_t at = t * task.width + d;
    Pack<float, kCount> sums{};
    if (task.base != nullptr) {
      const Pack<T, kCount> base = load<kCount>(task.base + at);
      for (int i = 0; i < kCount; ++i) sums.at[i] = to_float(base.at[i]);
    }
    for (int first = 0; first < K; first += kRowsAtOnce) {
      bool is_there[kRowsAtOnce];
      float weight[kRowsAtOnce];
      Pack<T, kCount> y[kRowsAtOnce];
#pragma unroll
      for (int j = 0; j < kRowsAtOnce; ++j) {
        const int64_t row = first + j < K ? row_of[first + j] : -1;
        is_there[j] = row >= 0;
        if (is_there[j]) y[j] = load<kCount>(task.y + row * task.width + d);
      }
#pragma unroll
      for (int j = 0; j < kRowsAtOnce; ++j) weight[j] = is_there[j] && weights != nullptr ? weights[first + j] : 1.0f;
#pragma unroll
      for (int j = 0; j < kRowsAtOnce; ++j) {
        if (!is_there[j]) continue;
        for (int i = 0; i < kCount; ++i) sums.at[i] += weight[j] * to_float(y[j].at[i]);
      }
    }
    store(task.out + at, round_pack<T>(sums));
  }
}

// Calls body with the rows that a lane loads at once for top_k choices, as the value of a type.
template <class Body>
void with_rows_at_once(int64_t top_k, const Body& body) {
  if (top_k <= 2) body(std::integral_constant<int, 2>());
  else if (top_k <= 4) body(std::integral_constant<int, 4>());
  else body(std::integral_constant<int, 8>());
}

int64_t bytes_taken(int64_t bytes) { return ceil_div(bytes, 64) * 64; }

}  // namespace

void build_token_layout(Stream& stream, TensorView ids_TK, TensorView weights_TK, TensorView ranking_TK,
                        std::span<const int32_t> position_of_expert, CapacityRule rule, TokenLayout& layout) {
  MW_CHECK(layout.experts <= INT32_MAX / 2, "layout of {} experts", layout.experts);  // kernels count in 32 bits
  const int64_t E = layout.experts, count = layout.tokens * layout.top_k;
  int32_t *row_of = layout.row_of_TK.as<int32_t>(), *positions = nullptr;

  WorkspaceFrame frame(stream.workspace());
  if (!check_permutation(stream, position_of_expert)) {
    positions = frame.take<int32_t>(static_cast<size_t>(E));
    stream.queue().write(positions, position_of_expert.data(), position_of_expert.size_bytes());
  }
  const CountingSort sort = take_counting_sort(frame, count, E);
  const Choices choices{ids_TK.as<int32_t>(),        weights_TK.as<float>(),  positions,
                        static_cast<int32_t>(count), static_cast<int32_t>(E), static_cast<int32_t>(layout.top_k)};
  const PlaceRow place_row{choices, row_of, layout.token_ids_R.as<int32_t>(), layout.expert_ids_R.as<int32_t>(),
                           layout.weights_R.as<float>()};
  auto* rows_per_expert = layout.rows_per_expert_E.as<int64_t>();

  layout.rows = count;
  layout.dropped = 0;
  if (rule.capacity <= 0 || count == 0)
    return sort_items(stream, sort, PositionOf{choices}, place_row, positions, rows_per_expert);

  auto* bad_ids = frame.take<int64_t>(1);
  check(fill_async(bad_ids, 0, sizeof(int64_t), native(stream)), "filling memory");
  Choices ranked = choices;
  if (ranking_TK.data != nullptr) ranked.weights = ranking_TK.as<float>();
  drop_beyond_capacity(stream, sort, ranked, layout.tokens, rule, bad_ids, row_of);
  sort_items(stream, sort, KeptPositionOf{choices, row_of}, place_row, positions, rows_per_expert);
  int64_t bad = 0;
  stream.queue().read(&layout.rows, sort.total, sizeof(int64_t));
  stream.queue().read(&bad, bad_ids, sizeof(int64_t));
  stream.wait();
  MW_CHECK(bad == 0, "an expert id is none of {} experts", E);
  layout.dropped = count - layout.rows;
}

int64_t token_layout_workspace_bytes(int64_t tokens, int64_t top_k, int64_t experts) {
  const int64_t count = tokens * top_k;
  return bytes_taken(experts * 4) + 64 + counting_sort_bytes(count, experts) + bytes_taken(count * 8);
}

void gather_rows(Stream& stream, TensorView x_TD, const int32_t* rows, int64_t count, TensorView out_RD) {
  const int64_t row_bytes = x_TD.cols() * size_of(x_TD.dtype);
  if (row_bytes == 0) return;
  if (allows_16_bytes(x_TD.data, row_bytes) && allows_16_bytes(out_RD.data, row_bytes))
    return gather_words<int4>(stream, x_TD, rows, count, out_RD);
  with_float_type(x_TD.dtype, [&](auto type) { gather_words<decltype(type)>(stream, x_TD, rows, count, out_RD); });
}

void combine_rows(Stream& stream, TensorView y_RD, TensorView row_of_TK, TensorView weights_TK, TensorView base_TD,
                  TensorView out_TD) {
  const int64_t T = out_TD.dim(0), D = out_TD.dim(1), K = row_of_TK.dim(1);
  const float* weights = weights_TK.data == nullptr ? nullptr : weights_TK.as<float>();
  const int64_t row_bytes = D * size_of(out_TD.dtype);
  // The address of no base is 0, which is aligned.
  const bool wide = allows_16_bytes(y_RD.data, row_bytes) && allows_16_bytes(base_TD.data, row_bytes) &&
                    allows_16_bytes(out_TD.data, row_bytes);
  with_float_type(out_TD.dtype, [&](auto type) {
    using Element = decltype(type);
    const int64_t step = kWave * (wide ? kWidePack<Element> : 1), steps = ceil_div(D, step);
    const int64_t slices = std::max<int64_t>(1, ceil_div(steps, kStepsOfSlice));
    const Combine<Element> task{y_RD.as<Element>(),
                                row_of_TK.as<int32_t>(),
                                weights,
                                base_TD.data == nullptr ? nullptr : base_TD.as<Element>(),
                                out_TD.as<Element>(),
                                T,
                                D,
                                ceil_div(steps, slices) * step,
                                slices,
                                static_cast<int>(K)};
    with_rows_at_once(K, [&](auto rows) {
      constexpr int kRows = decltype(rows)::value;
      launch(stream, wide ? combine_kernel<Element, kWidePack<Element>, kRows> : combine_kernel<Element, 1, kRows>,
             ceil_div(T * slices, kWavesPerBlock), kThreads, 0, task);
    });
  });
}

}  // namespace mw::gpu
