#include "ops/embedding.h"

#include <algorithm>

#include "ops/cpu/loops.h"

namespace mw::cpu {
namespace {

void check_ids(const TensorView& ids_T, int64_t vocab) {
  const int32_t* ids = ids_T.as<int32_t>();
  for (int64_t t = 0; t < ids_T.numel(); ++t)
    MW_CHECK(ids[t] >= 0 && ids[t] < vocab, "token {} has id {}, expected one in [0, {})", t, ids[t], vocab);
}

}  // namespace

void embed(Stream& stream, TensorView table_vD, VocabPart part, TensorView ids_T, TensorView y_TD) {
  check_ids(ids_T, part.vocab);
  const int64_t T = ids_T.numel(), D = table_vD.dim(1), rows = table_vD.dim(0);
  const float* table = table_vD.as<float>();
  const int32_t* ids = ids_T.as<int32_t>();
  with_float_type(y_TD.dtype, [&](auto type) {
    using E = decltype(type);
    E* y = y_TD.as<E>();
    for_blocks(stream, T, rows_per_block(D), [=](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t at = ids[t] - part.begin;
        E* out = y + t * D;
        if (at < 0 || at >= rows) {
          std::fill(out, out + D, E{});
          continue;
        }
        const float* row = table + at * D;
#pragma omp simd
        for (int64_t i = 0; i < D; ++i) out[i] = from_float<E>(row[i]);
      }
    });
  });
}

void embed_backward(Stream& stream, TensorView d_y_TD, VocabPart part, TensorView ids_T, TensorView d_table_vD) {
  check_ids(ids_T, part.vocab);
  const int64_t T = ids_T.numel(), D = d_table_vD.dim(1), rows = d_table_vD.dim(0);
  const int32_t* ids = ids_T.as<int32_t>();
  float* d_table = d_table_vD.as<float>();
  with_float_type(d_y_TD.dtype, [&](auto type) {
    using E = decltype(type);
    const E* d_y = d_y_TD.as<E>();
    // Threads own columns, so that every element of the table is summed in token order without locks.
    constexpr int64_t kColumns = 64;
    for_blocks(stream, D, kColumns, [=](int64_t begin, int64_t end) {
      for (int64_t t = 0; t < T; ++t) {
        const int64_t at = ids[t] - part.begin;
        if (at < 0 || at >= rows) continue;
        const E* d = d_y + t * D;
        float* row = d_table + at * D;
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) row[i] += to_float(d[i]);
      }
    });
  });
}

void clear_rows(Stream& stream, VocabPart part, TensorView ids_T, TensorView table_vD) {
  check_ids(ids_T, part.vocab);
  const int64_t D = table_vD.dim(1), rows = table_vD.dim(0);
  const int32_t* ids = ids_T.as<int32_t>();
  float* table = table_vD.as<float>();
  constexpr int64_t kColumns = 512;  // threads own columns: two may not write one row
  for_blocks(stream, D, kColumns, [=](int64_t begin, int64_t end) {
    for (int64_t t = 0; t < ids_T.numel(); ++t)
      if (const int64_t at = ids[t] - part.begin; at >= 0 && at < rows)
        std::fill(table + at * D + begin, table + at * D + end, 0.0f);
  });
}

int64_t embedding_workspace_bytes(int64_t, int64_t) { return 0; }

}  // namespace mw::cpu
