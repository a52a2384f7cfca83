// The building block of matmul.cpp: the product of one weight and one panel of rows. A panel has one of a few fixed
// heights, so that a matrix library prepares each product once. Implemented by matmul_onednn.cpp or
// matmul_no_onednn.cpp.
#pragma once

#include <cstdint>

#include "base/product_bytes.h"
#include "core/stream.h"
#include "ops/matmul.h"

namespace mw::cpu {

enum class ProductKind : uint8_t {
  forward,   // c[height, n] (=|+=) a[height, k] w[n, k]^T
  d_input,   // c[height, k] (=|+=) a[height, n] w[n, k]
  d_weight,  // c[n, k]          += a[height, n]^T b[height, k]
};

struct PanelProduct {
  ProductKind kind;
  int64_t height, n, k;
  DType in;     // of the panels: f32, or bf16 with MatmulTraits::native_bf16
  DType out;    // of c: f32; with bf16 panels also bf16
  bool packed;  // b is a packed form of the weight, else its f32 values [n, k]; ignored for d_weight
  Store store;
  int64_t a_row;  // row stride of `a` in elements; the other matrices are contiguous

  bool operator==(const PanelProduct&) const = default;
};

// Runs one product. Accumulation requires an f32 c.
void run_panel(Stream& stream, const PanelProduct& product, const void* a, const void* b, void* c);

// Fills both packed forms of a weight, which are large enough, for run_panel.
void pack_for_panels(Stream& stream, const Weight& weight);

}  // namespace mw::cpu
