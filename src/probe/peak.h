// The peak FLOP/s that MFU is relative to: a device's dense bf16 peak according to its data sheet.
#pragma once

#include <optional>
#include <string>

namespace mw {

// Peak FLOP/s of the device with this name, as drivers report it; none where it is not in the table.
std::optional<double> public_peak(const std::string& device);

}  // namespace mw
