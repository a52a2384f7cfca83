// A plan as a picture.
#pragma once

#include <string>

#include "planner/search.h"

namespace mw {

// A complete SVG file: memory by stage, stacked by kind, beside the limit; MFU of the best layout against ranks, from a
// quarter to four times as many; the timeline of one step of `estimate`.
std::string draw_plan_svg(const Request& request, const Estimate& estimate);

}  // namespace mw
