// One unit for all numbers of a column, by the largest of them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace mw {

struct Unit {
  double size;
  const char* name;
  std::string of(double value, int decimals = 2) const { return fmt::format("{:.{}f}", value / size, decimals); }
};

inline Unit byte_unit(int64_t largest) {
  if (largest >= int64_t{1} << 30) return {0x1p30, "GiB"};
  return largest >= int64_t{1} << 20 ? Unit{0x1p20, "MiB"} : Unit{0x1p10, "KiB"};
}

inline Unit flops_unit(double largest) { return largest >= 1e12 ? Unit{1e12, "TFLOP/s"} : Unit{1e9, "GFLOP/s"}; }

inline Unit time_unit(double largest) { return largest >= 10 ? Unit{1, "s"} : Unit{1e-3, "ms"}; }

}  // namespace mw
