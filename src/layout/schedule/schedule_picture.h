// Pictures of a schedule: for a terminal and as SVG.
#pragma once

#include <string>

#include "layout/schedule/schedule_check.h"
#include "layout/schedule/schedule_simulation.h"

namespace mw {

// "F3" is the forward of micro-batch 3, "B3" the whole backward, "I3" and "W3" its two parts; "F3b" in the rank's
// second stage, "F3c" in its third. One row per rank, one column per shortest action (or longer, so that 2000 suffice:
// shorter actions then vanish); "--" goes on with what began before, "." is idle. Ends with a line about the columns.
std::string draw_schedule_text(const Schedule& schedule, const Timeline& timeline);

// One line per rank: stages, peak of live activations, busy time and bubble.
std::string describe_ranks(const Schedule& schedule, const Timeline& timeline, const ScheduleReport& report);

// A complete SVG file with the same labels, a time axis, a legend, and peak and bubble behind each row. Needs no font
// but a sans-serif one.
std::string draw_schedule_svg(const Schedule& schedule, const Timeline& timeline, const ScheduleReport& report);

}  // namespace mw
