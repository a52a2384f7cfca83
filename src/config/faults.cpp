#include "config/faults.h"

#include <fmt/ranges.h>

#include "base/error.h"

namespace mw {
namespace {

struct NamedFault {
  const char* name;
  bool Faults::*flag;
};
constexpr NamedFault kFaults[] = {
    {"double_expert_gradient", &Faults::double_expert_gradient},
    {"skip_router_sum", &Faults::skip_router_sum},
    {"drop_row", &Faults::drop_row},
    {"wrong_choice", &Faults::wrong_choice},
    {"fleeting_choice", &Faults::fleeting_choice},
    {"local_aux_counts", &Faults::local_aux_counts},
    {"wrong_denominator", &Faults::wrong_denominator},
    {"nan_gradient", &Faults::nan_gradient},
    {"wrong_clip", &Faults::wrong_clip},
    {"stale_gather", &Faults::stale_gather},
    {"skip_tied_sum", &Faults::skip_tied_sum},
    {"copies_in_norm", &Faults::copies_in_norm},
    {"slight_gradient", &Faults::slight_gradient},
    {"fleeting_gradient", &Faults::fleeting_gradient},
    {"slight_query_norm", &Faults::slight_query_norm},
    {"lose_replica", &Faults::lose_replica},
    {"merge_unweighted", &Faults::merge_unweighted},
    {"swap_gate_gradients", &Faults::swap_gate_gradients},
    {"forget_home", &Faults::forget_home},
    {"stale_weights", &Faults::stale_weights},
    {"wrong_gateway_order", &Faults::wrong_gateway_order},
    {"hang", &Faults::hang},
};

}  // namespace

std::vector<std::string> fault_names() {
  std::vector<std::string> names;
  for (const NamedFault& fault : kFaults) names.emplace_back(fault.name);
  return names;
}

Faults faults_of(const std::string& name) {
  Faults faults;
  if (name.empty()) return faults;
  for (const NamedFault& fault : kFaults) {
    if (name != fault.name) continue;
    faults.*fault.flag = true;
    return faults;
  }
  fail(Exit::config, fmt::format("debug.fault: unknown fault \"{}\"", name),
       fmt::format("set debug.fault to one of {}", fmt::join(fault_names(), ", ")));
}

}  // namespace mw
