// Mixed products on Hopper's warpgroup instructions.
#pragma once

#include "core/stream.h"
#include "ops/matmul.h"

namespace mw::gpu {

// Rows of the weight whose parts lie together; scratch is for n rounded up to it.
constexpr int kPartColumns = 64;

// mixed_matmul by one kernel that sums the products with the three parts of the weight in registers. Returns false and
// does nothing where that is not supported, or where rows are so few that processors would be idle.
bool multiply_parts_by_warpgroups(Stream& stream, TensorView x_MK, const Weight& weight, TensorView y_MN);

}  // namespace mw::gpu
