// Keys of a run file that are set, but change nothing beside its other keys.
#pragma once

#include <string>
#include <vector>

#include "config/run_spec.h"

namespace mw {

// One line per key, which says what it needs. A key counts as set where its value is not the default. Not here: keys
// that only the number of ranks or the mesh idles, since one run file serves several layouts; keys of other commands
// than `train`; and keys that are refused.
std::vector<std::string> describe_idle_keys(const RunSpec& run, const ModelSpec& model);

// The same for `verify`, of the tolerances of another dtype than the run's.
std::vector<std::string> describe_idle_tolerances(const RunSpec& run);

// What the run ends too early for: a line for train.lr behind a longer warm-up, and one for train.global_batch behind a
// longer ramp.
std::vector<std::string> describe_unreached(const TrainSpec& train);

}  // namespace mw
