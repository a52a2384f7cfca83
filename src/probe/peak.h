// What MFU is counted against: the dense bf16 peak of a device by its maker's data sheet.
#pragma once

#include <optional>
#include <string>

namespace mw {

// FLOP/s of the device with this name, as drivers give it; none where it is not in the table.
std::optional<double> public_peak(const std::string& device);

}  // namespace mw
