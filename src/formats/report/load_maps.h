// The part of a report about the load of experts, as heat maps.
#pragma once

#include <string>

#include "formats/report/report_page.h"

namespace mw {

// Of every layer its fullest expert over the steps, and of every expert its rows. "" where the metrics have no loads.
std::string draw_loads(const Page& page);

// What the moves of experts to other ranks did: the load of each rank in each layer before the first move and in the
// last quarter of the steps, and what all moves took and saved. "" where no experts moved.
std::string draw_moves(const Page& page);

}  // namespace mw
