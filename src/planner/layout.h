// What a search may choose for a run: how its ranks share the work, as the keys of a run file say it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_spec.h"
#include "layout/mesh.h"
#include "layout/recompute.h"

namespace mw {

struct Layout {
  int pp = 1;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int chunks = 1;  // stages per rank
  int tp = 1, ep = 1;
  RankPlacement placement = RankPlacement::ep_first;
  MoeTpMode tp_mode = MoeTpMode::ssmb;  // a search takes it from the run
  int zero = 0;
  int64_t micro_batches = 1;
  Recompute recompute = Recompute::none;
  std::string transport = {};  // of all MoE layers; "": as moe.transport says
  bool operator==(const Layout&) const = default;

  int stages() const { return pp * chunks; }
  PipelineShape pipeline() const { return {schedule, pp, chunks, micro_batches}; }
};

Layout layout_of(const RunSpec& run);
// mesh.stage_layers stays where it lists as many stages, or is "measured" and each rank has one.
RunSpec with_layout(RunSpec run, const Layout& layout);
// For searches, whose result these keys are. Errors: usage, with `hint`, for a key=value that sets one.
void refuse_chosen_keys(const std::vector<std::string>& overrides, const std::string& hint);

// The layout's mesh over so many ranks. Errors: as make_mesh.
Mesh mesh_of(const Layout& layout, int ranks);

// "pp=4 schedule=1f1b tp=1 ep=8 zero=1 micro_batches=16 recompute=moe"; tp_mode only if it is ted,
// transport only if the layout names one.
std::string describe(const Layout& layout);
// Such words, separated by spaces or commas, over `base` for what is left out. Errors: usage, naming the word; config.
Layout parse_layout(const std::string& text, const Layout& base);

}  // namespace mw
