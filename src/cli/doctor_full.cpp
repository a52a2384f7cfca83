#include <cstdio>

#include "base/text.h"
#include "cli/run_commands.h"
#include "train/doctor/doctor.h"

namespace mw {
namespace {

constexpr size_t kMostRows = 64;

std::string speed(double bytes_per_s) { return format_bytes(static_cast<int64_t>(bytes_per_s)) + "/s"; }

void print_health(const World& world, const JobHealth& health, const std::string& folder) {
  std::printf("%s on %s, messages by %s\n", counted(std::ssize(health.ranks), "rank").c_str(),
              counted(world.nodes(), "node").c_str(), world.library().c_str());
  std::printf("%-6s %-20s %14s %16s %16s  %s\n", "rank", "host", "computes", "to the next", "writes", "device");
  for (size_t r = 0; r < std::min(health.ranks.size(), kMostRows); ++r) {
    const RankHealth& rank = health.ranks[r];
    const std::string link = r < health.links.size() ? speed(health.links[r].bytes_per_s) : "-";
    std::printf("%-6zu %-20s %6.1f GFLOP/s %16s %16s  %s\n", r, printable(rank.host).c_str(), rank.flops_per_s * 1e-9,
                link.c_str(), folder.empty() ? "-" : speed(rank.write_bytes_per_s).c_str(), rank.device.c_str());
  }
  if (health.ranks.size() > kMostRows) std::printf("... and %zu more\n", health.ranks.size() - kMostRows);
  std::printf("sum of %s over all ranks: %.1f ms\n", format_bytes(kAllReduceBytes).c_str(),
              health.all_reduce_seconds * 1e3);
}

Exit run_doctor(World& world, const DoctorOptions& options) {
  const JobHealth health = examine(world, options);
  const std::vector<std::string> problems = find_problems(health, options.folder);
  if (world.comm().rank() == 0) {
    print_health(world, health, options.folder);
    for (const std::string& problem : problems) std::printf("problem: %s\n", problem.c_str());
    std::printf("%s\n", problems.empty() ? "no problem found" : counted(std::ssize(problems), "problem").c_str());
    std::fflush(stdout);
  }
  world.comm().barrier();  // the report is out before the first rank ends
  return problems.empty() ? Exit::ok : Exit::check_failed;
}

}  // namespace

Command add_doctor_command(CommandLine& line, const Invocation& invocation) {
  Subcommand sub = line.add_command(
      "doctor", "benchmark CPU cores, messages between ranks and disks before a job; exit 1 on outliers or errors");
  auto options = std::make_shared<DoctorOptions>();
  sub.add_option("--dir", options->folder, "existing folder that the run will write to, such as checkpoint.dir");
  sub.add_option("--threads", options->threads, "threads per rank; 0: the node's cores divided by its ranks")
      .range(0, 4096)
      .show_default();
  return {sub, [options, invocation] {
            options->program = version_text();
            return run_in_world(invocation, [&](World& world) {
              // A link that is dead makes everybody wait.
              return run_watched(world, 60, [&] { return run_doctor(world, *options); });
            });
          }};
}

}  // namespace mw
