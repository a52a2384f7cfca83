#include "bench/roofline.h"

#include <gtest/gtest.h>

namespace mw::bench {
namespace {

// One expert that takes every token: sums small enough for a sheet of paper.
TEST(Roofline, CountsFlopsWhereMemoryIsFree) {
  const MoeShape shape{8, 4, 1, 1, 16};
  const double matrix = 2.0 * 8 * 4;  // FLOPs of a row in one matrix
  EXPECT_DOUBLE_EQ(forward_flops(shape), 16 * 3 * matrix);
  const Ceiling ceiling{1.0, 1e30};
  EXPECT_DOUBLE_EQ(layer_floor(shape, ceiling, 0).forward, 16 * 3 * matrix);
  EXPECT_DOUBLE_EQ(layer_floor(shape, ceiling, 0).backward, 16 * 6 * matrix);
  // Half a tile of 128 rows more, but for weight gradients: they are tiled over other axes.
  EXPECT_DOUBLE_EQ(layer_floor(shape, ceiling, 128).forward, 80 * 3 * matrix);
  EXPECT_DOUBLE_EQ(layer_floor(shape, ceiling, 128).backward, (80 + 16) * 3 * matrix);
}

TEST(Roofline, CountsBytesWhereProductsAreFree) {
  const Ceiling ceiling{1e30, 1.0};
  const double x = 2 * 16 * 8, y = x, a = 2 * 16 * 4, h = 2 * a, down = 2 * 8 * 4, up = 2 * down;
  const LayerFloor floor = layer_floor({8, 4, 1, 1, 16}, ceiling, 128);
  EXPECT_DOUBLE_EQ(floor.forward, (x + up + h + a) + (a + down + y) + (y + 2 * x));
  EXPECT_DOUBLE_EQ(floor.backward, (x + down + 2 * h + a) + (a + x + down) + (h + up + y) + (x + h + up) + (y + x));
}

// The experts of Qwen3-30B-A3B on a GPU of 788 TFLOP/s and 4.3 TB/s.
TEST(Roofline, OfAFineGrainedLayer) {
  const MoeShape shape{2048, 768, 128, 8, 16384};
  const Ceiling ceiling{788e12, 4.3e12};
  const LayerFloor floor = layer_floor(shape, ceiling, 0), padded = layer_floor(shape, ceiling, 128);
  EXPECT_NEAR(floor.forward, 1.73e-3, 0.005e-3);
  EXPECT_NEAR(floor.backward, 3.28e-3, 0.005e-3);
  EXPECT_NEAR(3 * forward_flops(shape) / padded.both(), 713e12, 0.6e12);
}

}  // namespace
}  // namespace mw::bench
