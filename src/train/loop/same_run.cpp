#include "train/loop/same_run.h"

#include <span>

#include "base/error.h"

namespace mw {
namespace {

bool may_differ(const std::string& key) {
  for (const char* section : {"log.", "watchdog.", "debug.", "plan."})
    if (key.starts_with(section)) return true;
  return key == "train.threads" || key == "checkpoint.resume";
}

// "" where nothing does.
std::string describe_differences(const RunSpec& first, const RunSpec& own) {
  std::string text;
  for (const KeyChange& change : changed_keys(first, own))
    if (!may_differ(change.key))
      text += fmt::format("{}{} = {} ({} on rank 0)", text.empty() ? "" : ", ", change.key, change.to, change.from);
  return text;
}

}  // namespace

void check_same_run(Comm& world, const RunSpec& run, const std::string& version, bool dry_run) {
  if (world.size() == 1) return;
  const std::string kind = fmt::format("{}, {}", version, dry_run ? "train --dry-run" : "train"),
                    first_kind = broadcast_text(world, kind, 0), first = broadcast_text(world, to_toml(run), 0);
  std::string own;
  if (kind != first_kind) own = fmt::format("runs {} ({} on rank 0)", kind, first_kind);
  else if (const std::string keys = describe_differences(parse_run_text(first, "the run of rank 0", {}), run);
           !keys.empty())
    own = "has " + keys;
  int64_t other = own.empty() ? 0 : world.rank();
  world.all_reduce_max(std::span(&other, 1));
  if (other == 0) return;
  const std::string text = broadcast_text(world, own, static_cast<int>(other));
  fail(Exit::config, fmt::format("ranks were started for different runs: rank {} {}", other, text),
       "start all ranks with the same program, run file and key=value arguments");
}

}  // namespace mw
