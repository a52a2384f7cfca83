// The least time that one MoE layer can take: each of its kernels runs at the rate of dense products or of memory,
// whichever binds it, and moves the bytes that it cannot avoid. Sizes in the letters of docs/architecture.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

namespace mw::bench {

struct MoeShape {
  int64_t width = 0, expert_width = 0, experts = 0, top_k = 0, tokens = 0;  // D, F, E, K, T
};

// What a device reaches at best, measured: dense bf16 products of random values, and a copy. The defaults are of one
// H200.
struct Ceiling {
  double flops_per_s = 787e12, bytes_per_s = 4.25e12;
};

// Seconds.
struct LayerFloor {
  double forward = 0, backward = 0;
  double both() const { return forward + backward; }
};

// Model FLOPs of a forward pass with SwiGLU experts, 6 T K D F; backward has twice as many. The router is not counted.
inline double forward_flops(const MoeShape& s) {
  return 6.0 * static_cast<double>(s.tokens * s.top_k) * static_cast<double>(s.width * s.expert_width);
}

// The floor of eight kernels over bf16 tensors. Products whose output rows are routed rows work in tiles of `row_tile`
// rows and waste half a tile per expert; 0: no waste. x and d_out are read from memory once per kernel, however many
// experts gather a row: the cache holds it.
inline LayerFloor layer_floor(const MoeShape& s, const Ceiling& ceiling, int64_t row_tile) {
  const auto t = static_cast<double>(s.tokens), d = static_cast<double>(s.width),
             f = static_cast<double>(s.expert_width), e = static_cast<double>(s.experts);
  const double rows = t * static_cast<double>(s.top_k), tiled_rows = rows + e * static_cast<double>(row_tile) / 2;
  const double matrix_flops = 2 * d * f;  // of one row in one of the three matrices
  const double x_TD = 2 * t * d, y_RD = 2 * rows * d, a_RF = 2 * rows * f, h_RcF = 2 * a_RF, w_down_EDF = 2 * e * d * f,
               w_up_EcFD = 2 * w_down_EDF;
  const auto kernel = [&](double flops, std::initializer_list<double> bytes) {
    double sum = 0;
    for (const double b : bytes) sum += b;
    return std::max(flops / ceiling.flops_per_s, sum / ceiling.bytes_per_s);
  };
  LayerFloor floor;
  floor.forward = kernel(2 * tiled_rows * matrix_flops, {x_TD, w_up_EcFD, h_RcF, a_RF}) +  // up, activation
                  kernel(tiled_rows * matrix_flops, {a_RF, w_down_EDF, y_RD}) +            // down
                  kernel(0, {y_RD, x_TD, x_TD});                                           // combine with the residual
  floor.backward =
      kernel(tiled_rows * matrix_flops, {x_TD, w_down_EDF, h_RcF, h_RcF, a_RF}) +  // d_a, then d_h and a again
      kernel(rows * matrix_flops, {a_RF, x_TD, w_down_EDF}) +                      // d_w_down
      kernel(2 * tiled_rows * matrix_flops, {h_RcF, w_up_EcFD, y_RD}) +            // d_x of routed rows
      kernel(2 * rows * matrix_flops, {x_TD, h_RcF, w_up_EcFD}) +                  // d_w_up
      kernel(0, {y_RD, x_TD});                                                     // d_x of tokens
  return floor;
}

}  // namespace mw::bench
