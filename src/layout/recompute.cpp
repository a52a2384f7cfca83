#include "layout/recompute.h"

#include <algorithm>
#include <array>

#include "layout/schedule/schedule.h"
#include "layout/transport.h"

namespace mw {
namespace {

enum ModeBit : uint8_t { kSelective = 1, kMoe = 2, kFull = 4 };

struct Recomputed {
  std::string_view name;
  uint8_t modes;
};

// Every tensor of a layer that some mode recomputes, beside what its transport keeps. "ffn.h" is of dense layers.
constexpr std::array<Recomputed, 18> kRecomputed = {{
    {"h", kSelective | kMoe | kFull},
    {"shared.h", kSelective | kMoe | kFull},
    {"ffn.h", kSelective | kFull},
    {"logits", kFull},
    {"attn_rstd", kFull},
    {"q", kFull},
    {"k", kFull},
    {"v", kFull},
    {"o", kFull},
    {"lse", kFull},
    {"q_rstd", kFull},
    {"k_rstd", kFull},
    {"c_q", kFull},
    {"c_kv", kFull},
    {"kv_rstd", kFull},
    {"k_rope", kFull},
    {"x_mid", kFull},
    {"ffn_rstd", kFull},
}};

uint8_t bit_of(Recompute mode) {
  switch (mode) {
    case Recompute::keep_norms:
    case Recompute::none: return 0;
    case Recompute::selective: return kSelective;
    case Recompute::moe: return kMoe;
    case Recompute::full: return kFull;
  }
  return 0;
}

std::string shared_row(const std::string& name) { return "recomputed." + name; }

// NAME of a row "act.LAYER.NAME", empty for any other.
std::string name_in_layer(const std::string& row) {
  const size_t layer = row.find('.');
  const size_t name = row.find('.', layer + 1);
  return row.starts_with("act.") && name != std::string::npos ? row.substr(name + 1) : "";
}

}  // namespace

bool is_recomputed(Recompute mode, std::string_view name) {
  if (is_kept_by_transport(name)) return (bit_of(mode) & (kMoe | kFull)) != 0;
  return std::any_of(kRecomputed.begin(), kRecomputed.end(),
                     [&](const Recomputed& r) { return r.name == name && (r.modes & bit_of(mode)) != 0; });
}

WeightPart weight_part(const RunSpec& run) {
  if (!splits_backward(run.mesh.schedule)) return {};
  return {!is_recomputed(run.recompute, "q"), !is_recomputed(run.recompute, "ffn.h"),
          !is_recomputed(run.recompute, "h")};
}

LayerRows::LayerRows(Recompute mode, int64_t layer, int64_t slot) : mode_(mode), own_(saved_prefix(layer, slot)) {}

std::string LayerRows::operator()(const std::string& name) const {
  return is_recomputed(mode_, name) ? shared_row(name) : own_ + name;
}

std::vector<ByteRow> share_recomputed(Recompute mode, std::vector<ByteRow> rows) {
  std::vector<ByteRow> kept, shared;
  for (ByteRow& row : rows) {
    const std::string name = name_in_layer(row.name);
    if (!is_recomputed(mode, name)) {
      kept.push_back(std::move(row));
      continue;
    }
    row.name = shared_row(name);
    row.kind = ByteKind::workspace;
    const auto same = std::find_if(shared.begin(), shared.end(), [&](const ByteRow& r) { return r.name == row.name; });
    if (same == shared.end()) shared.push_back(std::move(row));
    else widen(*same, row);
  }
  kept.insert(kept.end(), std::make_move_iterator(shared.begin()), std::make_move_iterator(shared.end()));
  return kept;
}

}  // namespace mw
