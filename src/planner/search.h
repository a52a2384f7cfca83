// The search: every layout that a run's batch, model and ranks allow, weighed in closed form; the best simulated.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "planner/estimate.h"

namespace mw {

struct Request {
  ModelSpec model;
  RunSpec run;  // its [mesh] keys, micro-batches and recompute are what the search chooses
  PlatformProfile profile;
  ExpertLoad load;
  int ranks = 1;
};

// What a run file asks for: its model, and the platform, ranks and balance of its [plan] table. Errors: config, usage.
Request make_request(const RunSpec& run);

// Whether a layout fits whose largest rank needs `needed` bytes: with plan.memory_margin of its memory free, only
// without this margin, or not at all.
enum class MemoryFit : uint8_t { with_margin, without_margin, none };
MemoryFit fit_of(const Request& request, int64_t needed);

// Schedules and modes of recompute that `train` does not refuse for this model. Errors: as make_plan, where it refuses
// them all.
struct Trainable {
  std::vector<std::pair<ScheduleKind, Recompute>> pairs;
  std::vector<std::string> refused;  // why not, once per reason
};
Trainable trainable(const Request& request);

// Names for moe.transport: "", which is what the run says, and if that is "auto" and EP > 1 those to weigh besides:
// halo and bypass where EP groups consist of several whole nodes (halo of more than one rank), bypass where they lie on
// one, gather_weights where gradients of experts are in fp32, and gather_tokens where experts can be cut into slices.
std::vector<std::string> transports_to_try(const Request& request, const Layout& layout);
// Whether make_plan accepts a layout's rows with one of them, other than "", which counts them in 32 bits.
bool holds_rows(const Request& request, const Layout& layout, const std::string& transport);

// Every layout that passes divisibility. Empty: none does; fail_without_layouts says why.
std::vector<Layout> layouts_of(const Request& request);

// Whether the model, batch and ranks allow this layout. Errors: as make_plan, with the constraint and what would work.
void check_layout(const Request& request, const Layout& layout);

// The sentence for a request without any layout, and the smallest change of the batch or the ranks that gives one.
// Always throws: config, or the error of the simplest layout (no pipeline, EP or ZeRO, if the ranks allow it).
[[noreturn]] void fail_without_layouts(const Request& request);

struct Weighed {
  Layout layout;
  double seconds = 0;
  int64_t needed = 0;
};

struct SearchResult {
  int64_t layouts = 0;  // that the model, the batch and the ranks allow
  // Of these all that fit, and others that do not (planner/weigh.h); fastest first in closed form.
  std::vector<Weighed> weighed;
  int64_t fitting = 0;  // layouts that fit with the margin
  // The fastest of the fitting ones, simulated, fastest first. Layouts that differ only in a placement that costs
  // nothing count once.
  std::vector<Estimate> best;
  // The five that fit only without the margin and the five that do not fit that are fastest in closed form; simulated,
  // fastest first.
  std::vector<Estimate> too_big;
  double closed_form_s = 0, simulation_s = 0;  // wall time of the two parts of the search
};
constexpr int kSimulated = 600;

// On a thread for each core, up to 16. Deterministic. simulated: how many fitting layouts to simulate. found: told how
// many layouts there are before they are weighed, which takes minutes where there are millions.
SearchResult search(const Request& request, int simulated = kSimulated,
                    const std::function<void(int64_t layouts)>& found = {});

// Whether any layout fits with the margin, in closed form. Errors: as layouts_of.
bool fits_somehow(const Request& request);

}  // namespace mw
