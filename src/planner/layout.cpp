#include "planner/layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace mw {
namespace {

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c != ' ' && c != ',') words.back() += c;
    else if (!words.back().empty()) words.emplace_back();
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

[[noreturn]] void refuse_word(const std::string& word, const std::string& why) {
  fail(Exit::usage, fmt::format("\"{}\" {}", printable(word), why),
       "write a layout as, for example, \"pp=4 schedule=1f1b tp=1 ep=8 zero=1 micro_batches=16 recompute=moe\"");
}

int64_t number_of(const std::string& word, const std::string& value, int64_t low, int64_t high) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < low || number > high)
    refuse_word(word, fmt::format("needs a number from {} to {}", low, high));
  return number;
}

template <class Enum>
Enum choice_of(const std::string& word, const std::string& value) {
  if (const std::optional<Enum> choice = enum_of<Enum>(value)) return *choice;
  const std::vector<std::string> words = enum_words<Enum>();
  refuse_word(word, words.size() == 2 ? fmt::format("must be {} or {}", words[0], words[1])
                                      : fmt::format("must be one of {}", fmt::join(words, ", ")));
}

}  // namespace

Layout layout_of(const RunSpec& run) {
  const PipelineShape shape = pipeline_shape(run.mesh, run.train.micro_batches);
  Layout layout;
  layout.pp = shape.ranks;
  layout.schedule = shape.kind;
  layout.chunks = shape.chunks;
  layout.tp = static_cast<int>(run.mesh.tp);
  layout.ep = static_cast<int>(run.mesh.ep);
  layout.placement = run.mesh.placement;
  layout.tp_mode = run.moe.tp_mode;
  layout.zero = static_cast<int>(run.mesh.zero);
  layout.micro_batches = run.train.micro_batches;
  layout.recompute = run.recompute;
  return layout;
}

RunSpec with_layout(RunSpec run, const Layout& layout) {
  run.mesh.pp = layout.pp;
  run.mesh.schedule = layout.schedule;
  if (layout.schedule == ScheduleKind::interleaved) run.mesh.chunks = layout.chunks;
  run.mesh.tp = layout.tp;
  run.moe.tp_mode = layout.tp_mode;
  run.mesh.ep = layout.ep;
  run.mesh.placement = layout.placement;
  run.mesh.zero = layout.zero;
  run.train.micro_batches = layout.micro_batches;
  const std::string& listed = run.mesh.stage_layers;
  const bool holds = listed == kMeasuredShares ? layout.chunks == 1
                                               : std::count(listed.begin(), listed.end(), ',') + 1 == layout.stages();
  if (!holds) run.mesh.stage_layers.clear();
  run.recompute = layout.recompute;
  if (!layout.transport.empty()) run.moe.transport = layout.transport;
  return run;
}

void refuse_chosen_keys(const std::vector<std::string>& overrides, const std::string& hint) {
  for (const std::string& item : overrides)
    for (const char* key : {"mesh.pp", "mesh.tp", "mesh.ep", "mesh.zero", "mesh.schedule", "mesh.chunks",
                            "mesh.placement", "train.micro_batches", "memory.recompute"})
      if (item.starts_with(fmt::format("{}=", key)))
        fail(Exit::usage, fmt::format("{} is chosen by the planner, but the override {} sets it", key, printable(item)),
             hint);
}

Mesh mesh_of(const Layout& layout, int ranks) {
  MeshSpec spec;
  spec.pp = layout.pp;
  spec.tp = layout.tp;
  spec.ep = layout.ep;
  spec.placement = layout.placement;
  return make_mesh(spec, ranks, layout.tp_mode);
}

std::string describe(const Layout& layout) {
  std::string text = fmt::format("pp={}", layout.pp);
  if (layout.pp > 1) text += fmt::format(" schedule={}", word_of(layout.schedule));
  if (layout.pp > 1 && layout.schedule == ScheduleKind::interleaved) text += fmt::format(" chunks={}", layout.chunks);
  text += fmt::format(" tp={}{} ep={}", layout.tp, layout.tp_mode == MoeTpMode::ted ? " tp_mode=ted" : "", layout.ep);
  if (layout.placement == RankPlacement::dp_first) text += " placement=dp_first";
  text += fmt::format(" zero={} micro_batches={} recompute={}", layout.zero, layout.micro_batches,
                      word_of(layout.recompute));
  return layout.transport.empty() ? text : text + " transport=" + layout.transport;
}

Layout parse_layout(const std::string& text, const Layout& base) {
  Layout layout = base;
  bool names_chunks = false;
  const std::vector<std::string> keys = {"pp",        "schedule", "chunks",        "tp",        "tp_mode",  "ep",
                                         "placement", "zero",     "micro_batches", "recompute", "transport"};
  for (const std::string& word : words_of(text)) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) refuse_word(word, "is not KEY=VALUE");
    const std::string key = word.substr(0, equals), value = word.substr(equals + 1);
    const auto number = [&](int64_t low, int64_t high) { return number_of(word, value, low, high); };
    if (key == "pp") layout.pp = static_cast<int>(number(1, 1 << 20));
    else if (key == "schedule") layout.schedule = schedule_kind_of(value);
    else if (key == "chunks") layout.chunks = static_cast<int>(number(1, 1 << 10)), names_chunks = true;
    else if (key == "tp") layout.tp = static_cast<int>(number(1, 1 << 20));
    else if (key == "ep") layout.ep = static_cast<int>(number(1, 1 << 20));
    else if (key == "zero") layout.zero = static_cast<int>(number(0, 1));
    else if (key == "micro_batches") layout.micro_batches = number(1, 1 << 24);
    else if (key == "recompute") layout.recompute = choice_of<Recompute>(word, value);
    else if (key == "transport") layout.transport = value;
    else if (key == "tp_mode") layout.tp_mode = choice_of<MoeTpMode>(word, value);
    else if (key != "placement") refuse_word(word, fmt::format("is not a part of a layout{}", did_you_mean(key, keys)));
    else layout.placement = choice_of<RankPlacement>(word, value);
  }
  const bool several = layout.schedule == ScheduleKind::interleaved || layout.schedule == ScheduleKind::zb_v;
  if (!names_chunks && (several ? layout.chunks < 2 : layout.chunks > 1)) layout.chunks = several ? 2 : 1;
  check_shape(layout.pipeline());
  return layout;
}

}  // namespace mw
