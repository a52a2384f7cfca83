// What a resumed run takes from the run before: choices that it made itself.
#pragma once

#include <optional>

#include "config/run_spec.h"

namespace mw {

// The run that wrote the checkpoint that `run` resumes from, with what it chose in place of "auto" and "measured". None
// if there is none, if it cannot be read, which is reported when it is loaded, or if its mesh, schedule or
// micro-batches are other ones than the run's.
std::optional<RunSpec> run_before(const RunSpec& run);
// Whether `run` resumes from a checkpoint, or should and cannot.
bool resumes(const RunSpec& run);

}  // namespace mw
