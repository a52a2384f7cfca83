#include "config/param_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace mw {
namespace {

struct LrScale {
  std::string pattern;
  double factor = 1;
};

std::vector<LrScale> parse_scales(const std::vector<std::string>& items) {
  constexpr double kMost = 1e6;
  std::vector<LrScale> scales;
  for (const std::string& item : items) {
    const size_t space = std::min(item.find(' '), item.size());
    const char* number = item.c_str() + space;
    char* end = nullptr;
    const double factor = std::strtod(number, &end);
    if (space == 0 || end == number || *end != 0 || !(factor >= 0 && factor <= kMost))
      fail(Exit::config,
           fmt::format("train.lr_scales: expected \"PATTERN FACTOR\" with a factor from 0 to {:g}, got \"{}\"", kMost,
                       printable(item)),
           "write, for example, train.lr_scales = [\"embed 0.1\", \"*.moe.router 0.5\"]");
    scales.push_back({item.substr(0, space), factor});
  }
  return scales;
}

// Greedy with one place to return to, so that time is at most the product of the lengths.
bool matches(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0, star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool is_for_muon(const ParamRow& row, const MuonSpec& muon) {
  if (row.role == ParamRole::router) return muon.router;
  return row.role == ParamRole::matrix && row.layer >= 0;
}

std::vector<LrScale>::const_iterator scale_of(const std::vector<LrScale>& scales, const ParamRow& row) {
  return std::find_if(scales.begin(), scales.end(),
                      [&](const LrScale& scale) { return matches(scale.pattern, row.name); });
}

}  // namespace

std::vector<ParamRow> run_params(const ModelSpec& model, const TrainSpec& train) {
  const std::vector<LrScale> scales = parse_scales(train.lr_scales);
  std::vector<ParamRow> rows = param_table(model);
  for (ParamRow& row : rows) {
    if (const auto scale = scale_of(scales, row); scale != scales.end()) row.lr_scale = scale->factor;
    row.muon = train.optimizer == Optimizer::muon && is_for_muon(row, train.muon);
    if (row.muon && train.muon.lr > 0) row.lr_scale *= train.muon.lr / train.lr;
  }
  return rows;
}

void check_param_groups(const std::vector<ParamRow>& rows, const TrainSpec& train) {
  if (train.optimizer != Optimizer::muon && !(train.muon == MuonSpec{}))
    fail(Exit::config, fmt::format("keys train.muon_* are set, but train.optimizer = \"{}\"", word_of(train.optimizer)),
         "set train.optimizer = \"muon\", or leave the keys of Muon as they are");
  if (train.optimizer == Optimizer::muon && train.muon.lr > 0 && train.lr == 0)
    fail(Exit::config,
         fmt::format("train.muon_lr = {:g} follows the schedule of train.lr, expected above 0, got 0", train.muon.lr),
         "set train.lr; with train.lr_scales = [\"embed 0\", \"head 0\", \"*norm 0\"] it counts for Muon alone");
  const std::vector<LrScale> scales = parse_scales(train.lr_scales);
  std::vector<bool> is_used(scales.size());
  for (const ParamRow& row : rows)
    if (const auto scale = scale_of(scales, row); row.trained && scale != scales.end())
      is_used[static_cast<size_t>(scale - scales.begin())] = true;
  const auto unused = std::find(is_used.begin(), is_used.end(), false);
  if (unused == is_used.end()) return;
  fail(Exit::config,
       fmt::format("train.lr_scales: \"{}\" matches no trained parameter that no pattern before it matches",
                   printable(scales[static_cast<size_t>(unused - is_used.begin())].pattern)),
       "use names such as embed, head, layers.0.attn.wq, layers.0.moe.router and layers.0.moe.w_up, with * for any "
       "characters");
}

}  // namespace mw
