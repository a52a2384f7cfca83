// Token embedding. Forward: one block per token. Backward: a stable radix sort brings the tokens of each id together in
// their order; then one thread per run of equal ids and pack of columns sums them, so that each element of the table
// has one writer and the order of the CPU.
//
// The sort takes a digit of 8 bits at a time. Each block has a tile of consecutive tokens and as many threads as digits
// have values; each thread walks the whole tile in order and looks after one value.
#include "ops/embedding.h"

#include <cmath>
#include <limits>

#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"

namespace mw::gpu {
namespace {

constexpr int kRowThreads = 128;
constexpr int kSumThreads = 256;
constexpr int kPlaces = 4;  // sorted places per block: most start no run, and a block for each would cost its start
constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;
constexpr int kTile = 512;
constexpr int kScanThreads = 1024;

// An id of another part gives a row of zeros, one out of range (the host cannot see it without waiting) a row of NaN.
template <class E, int N>
__global__ void embed_kernel(const float* table, int64_t rows, VocabPart part, const int32_t* ids, int64_t width,
                             E* y) {
  const int64_t token = blockIdx.x, id = ids[token], at = id - part.begin;
  const int64_t step = static_cast<int64_t>(blockDim.x) * N;
  const bool is_here = at >= 0 && at < rows;
  const float other = id >= 0 && id < part.vocab ? 0.0f : NAN;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < width; i += step) {
    Pack<float, N> row;
    if (is_here) row = load<N>(table + at * width + i);
    Pack<E, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) out.at[k] = from_float<E>(is_here ? row.at[k] : other);
    store(y + token * width + i, out);
  }
}

template <int N>
__global__ void clear_kernel(float* table, int64_t rows, int64_t begin, const int32_t* ids, int64_t width) {
  const int64_t at = ids[blockIdx.x] - begin, step = static_cast<int64_t>(blockDim.x) * N;
  if (at < 0 || at >= rows) return;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < width; i += step)
    store(table + at * width + i, Pack<float, N>{});
}

// Keys are rows of the table, and `rows` for an id that has none: sorted last, skipped by the sum.
struct StartSort {
  const int32_t* ids;
  int64_t begin;  // id of row 0
  int32_t rows;
  int32_t *keys, *tokens;
  __device__ void operator()(int64_t t) const {
    const int64_t at = ids[t] - begin;
    keys[t] = at >= 0 && at < rows ? static_cast<int32_t>(at) : rows;
    tokens[t] = static_cast<int32_t>(t);
  }
};

__device__ int digit_of(int32_t key, int shift) { return (key >> shift) & (kDigits - 1); }

__device__ int tile_size(int64_t begin, int64_t count) {
  return static_cast<int>(count - begin < kTile ? count - begin : kTile);
}

// counts[digit, tile]: how many keys of the tile have the digit.
__global__ void count_kernel(const int32_t* keys, int64_t count, int shift, int32_t* counts) {
  __shared__ int digits[kTile];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTile;
  const int size = tile_size(begin, count), own = static_cast<int>(threadIdx.x);
  for (int i = own; i < size; i += kDigits) digits[i] = digit_of(keys[begin + i], shift);
  __syncthreads();
  int32_t found = 0;
  for (int i = 0; i < size; ++i) found += digits[i] == own ? 1 : 0;
  counts[static_cast<int64_t>(own) * gridDim.x + blockIdx.x] = found;
}

// Makes each count the sum of all before it. One block; each thread has a run of counts.
__global__ void scan_kernel(int32_t* counts, int64_t size) {
  __shared__ int32_t sums[kScanThreads];
  const int own = static_cast<int>(threadIdx.x);
  const int64_t share = (size + kScanThreads - 1) / kScanThreads, begin = own * share;
  const int64_t end = begin + share < size ? begin + share : size;
  int32_t sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += counts[i];
  sums[own] = sum;
  __syncthreads();
  for (int distance = 1; distance < kScanThreads; distance *= 2) {
    const int32_t before = own >= distance ? sums[own - distance] : 0;
    __syncthreads();
    sums[own] += before;
    __syncthreads();
  }
  int32_t running = sums[own] - sum;
  for (int64_t i = begin; i < end; ++i) {
    const int32_t here = counts[i];
    counts[i] = running;
    running += here;
  }
}

// places[digit, tile]: where the first key of the tile with the digit goes; the others follow in order.
__global__ void scatter_kernel(const int32_t* keys, const int32_t* tokens, int64_t count, int shift,
                               const int32_t* places, int32_t* keys_out, int32_t* tokens_out) {
  __shared__ int32_t tile_keys[kTile], tile_tokens[kTile];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTile;
  const int size = tile_size(begin, count), own = static_cast<int>(threadIdx.x);
  for (int i = own; i < size; i += kDigits) {
    tile_keys[i] = keys[begin + i];
    tile_tokens[i] = tokens[begin + i];
  }
  __syncthreads();
  int64_t place = places[static_cast<int64_t>(own) * gridDim.x + blockIdx.x];
  for (int i = 0; i < size; ++i) {
    if (digit_of(tile_keys[i], shift) != own) continue;
    keys_out[place] = tile_keys[i];
    tokens_out[place] = tile_tokens[i];
    ++place;
  }
}

// The place after the last key equal to keys[first], by steps that double and then halve: most runs are short.
__device__ int64_t end_of_run(const int32_t* keys, int64_t count, int64_t first) {
  const int32_t key = keys[first];
  int64_t inside = first, step = 1;
  while (inside + step < count && keys[inside + step] == key) {
    inside += step;
    step *= 2;
  }
  while (step > 1) {  // inside is in the run, inside + step is not
    step /= 2;
    if (inside + step < count && keys[inside + step] == key) inside += step;
  }
  return inside + 1;
}

// Adds the rows of the tokens to one pack of columns of the table.
template <class E, int N>
__device__ void sum_run(const int32_t* tokens, int64_t count, const E* d_y, int64_t width, float* d_table) {
  Pack<float, N> sum = load<N>(d_table);
#pragma unroll 4
  for (int64_t i = 0; i < count; ++i) {
    const Pack<E, N> d = load<N>(d_y + tokens[i] * width);
#pragma unroll
    for (int k = 0; k < N; ++k) sum.at[k] += to_float(d.at[k]);
  }
  store(d_table, sum);
}

// Each block has kPlaces sorted places and one of `parts` of the columns; it sums the runs that start at its places.
template <class E, int N>
__global__ void sum_kernel(const int32_t* keys, const int32_t* tokens, int64_t count, int32_t rows, const E* d_y,
                           int64_t width, int64_t parts, float* d_table) {
  const int64_t block = blockIdx.x, begin = block / parts * kPlaces;
  const int64_t column = (block % parts * blockDim.x + threadIdx.x) * N;
  if (column >= width) return;
  const int64_t end = begin + kPlaces < count ? begin + kPlaces : count;
  for (int64_t at = begin; at < end; ++at) {
    const int32_t key = keys[at];
    if (key == rows || (at > 0 && keys[at - 1] == key)) continue;
    sum_run<E, N>(tokens + at, end_of_run(keys, count, at) - at, d_y + column, width, d_table + key * width + column);
  }
}

struct SortedTokens {
  const int32_t *keys, *tokens;
};

SortedTokens sort_tokens(Stream& stream, WorkspaceFrame& frame, const int32_t* ids, int64_t count, int64_t begin,
                         int64_t rows) {
  const auto size = static_cast<size_t>(count);
  const int64_t tiles = ceil_div(count, kTile);
  int32_t* keys[2] = {frame.take<int32_t>(size), frame.take<int32_t>(size)};
  int32_t* tokens[2] = {frame.take<int32_t>(size), frame.take<int32_t>(size)};
  auto* counts = frame.take<int32_t>(static_cast<size_t>(tiles * kDigits));
  for_each(stream, count, StartSort{ids, begin, static_cast<int32_t>(rows), keys[0], tokens[0]});
  int now = 0;
  for (int shift = 0; rows >> shift > 0; shift += kDigitBits) {  // `rows` is the largest key
    launch(stream, count_kernel, tiles, kDigits, 0, keys[now], count, shift, counts);
    launch(stream, scan_kernel, 1, kScanThreads, 0, counts, tiles * kDigits);
    launch(stream, scatter_kernel, tiles, kDigits, 0, keys[now], tokens[now], count, shift, counts, keys[1 - now],
           tokens[1 - now]);
    now = 1 - now;
  }
  return {keys[now], tokens[now]};
}

// Ids and tokens are sorted as 32-bit numbers.
void check_limits(const TensorView& table_vD, const TensorView& ids_T) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  MW_CHECK(table_vD.dim(0) <= kMost && ids_T.numel() <= kMost, "ids {} of table {}", ids_T.describe(),
           table_vD.describe());
}

}  // namespace

int64_t embedding_workspace_bytes(int64_t tokens, int64_t /*vocab*/) {
  const auto rounded = [](int64_t count) { return ceil_div(count * static_cast<int64_t>(sizeof(int32_t)), 64) * 64; };
  return 4 * rounded(tokens) + rounded(ceil_div(tokens, kTile) * kDigits);
}

void embed(Stream& stream, TensorView table_vD, VocabPart part, TensorView ids_T, TensorView y_TD) {
  check_limits(table_vD, ids_T);
  const int64_t D = table_vD.dim(1);
  with_float_type(y_TD.dtype, [&](auto type) {
    using E = decltype(type);
    constexpr int kWide = kWidePack<E>;
    const bool wide = D % kWide == 0 && allow_packs<kWide>(table_vD.as<float>(), y_TD.as<E>());
    launch(stream, wide ? embed_kernel<E, kWide> : embed_kernel<E, 1>, ids_T.numel(), kRowThreads, 0,
           table_vD.as<float>(), table_vD.dim(0), part, ids_T.as<int32_t>(), D, y_TD.as<E>());
  });
}

void embed_backward(Stream& stream, TensorView d_y_TD, VocabPart part, TensorView ids_T, TensorView d_table_vD) {
  check_limits(d_table_vD, ids_T);
  const int64_t T = ids_T.numel(), rows = d_table_vD.dim(0), D = d_table_vD.dim(1);
  if (T == 0 || rows == 0 || D == 0) return;
  WorkspaceFrame frame(stream.workspace());
  const SortedTokens sorted = sort_tokens(stream, frame, ids_T.as<int32_t>(), T, part.begin, rows);
  with_float_type(d_y_TD.dtype, [&](auto type) {
    using E = decltype(type);
    constexpr int kWide = kWidePack<E>;
    const bool wide = D % kWide == 0 && allow_packs<kWide>(d_table_vD.as<float>(), d_y_TD.as<E>());
    const int64_t parts = ceil_div(D, kSumThreads * (wide ? kWide : 1));
    launch(stream, wide ? sum_kernel<E, kWide> : sum_kernel<E, 1>, ceil_div(T, kPlaces) * parts, kSumThreads, 0,
           sorted.keys, sorted.tokens, T, rows, d_y_TD.as<E>(), D, parts, d_table_vD.as<float>());
  });
}

void clear_rows(Stream& stream, VocabPart part, TensorView ids_T, TensorView table_vD) {
  check_limits(table_vD, ids_T);
  const int64_t D = table_vD.dim(1);
  constexpr int kWide = kWidePack<float>;
  const bool wide = D % kWide == 0 && allow_packs<kWide>(table_vD.as<float>());
  launch(stream, wide ? clear_kernel<kWide> : clear_kernel<1>, ids_T.numel(), kRowThreads, 0, table_vD.as<float>(),
         table_vD.dim(0), part.begin, ids_T.as<int32_t>(), D);
}

}  // namespace mw::gpu
