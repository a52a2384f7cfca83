#include <cstdio>
#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "cli/run_commands.h"
#include "comm/bootstrap/tcp_join.h"
#include "formats/report/report.h"

namespace mw {
namespace {

constexpr int kLoadSamples = 120;  // columns of a heat map

// Of the folder of a run, or its metrics file.
std::filesystem::path find_metrics(const std::string& path) {
  if (!path_exists(path))
    fail(Exit::data, fmt::format("{} does not exist", path), "name the folder of a run, or its metrics file");
  std::filesystem::path metrics = path;
  if (std::error_code ignored; std::filesystem::is_directory(metrics, ignored)) metrics /= "metrics.jsonl";
  if (!path_exists(metrics.native()))
    fail(Exit::data, fmt::format("{} does not exist", metrics.native()),
         "pass the metrics file itself if it has another name; a run with checkpoint.dir=RUN_DIR writes it, unless "
         "log.jsonl names another");
  return metrics;
}

Exit run_report(const std::vector<std::string>& paths, std::string output) {
  if (paths.size() > 1 && output.empty())
    fail(Exit::usage, "a report of several runs needs a name", "pass -o FILE.html");
  if (paths.size() > kMostRunsOfReport)
    fail(Exit::usage, fmt::format("a report compares at most {} runs, got {}", kMostRunsOfReport, paths.size()),
         "name fewer runs");
  std::vector<NamedHistory> runs;
  for (const std::string& path : paths)
    runs.push_back({path, read_metrics(find_metrics(path).native(), paths.size() == 1 ? kLoadSamples : 1)});
  if (output.empty()) output = (find_metrics(paths[0]).parent_path() / "report.html").native();
  refuse_other_file(output, "<!DOCTYPE html>", "report", "pass another -o FILE.html");
  write_output_text(
      output, runs.size() == 1 ? draw_report(runs[0].history, find_metrics(paths[0]).native()) : draw_comparison(runs));
  std::printf("wrote %s\n", output.c_str());
  return Exit::ok;
}

}  // namespace

Command add_report_command(CommandLine& line) {
  Subcommand sub =
      line.add_command("report", "write an HTML report of a run: curves, memory, time, expert load; or of several");
  auto paths = std::make_shared<std::vector<std::string>>();
  auto output = std::make_shared<std::string>();
  sub.add_option("RUN_DIR", *paths, "folder with metrics.jsonl, or a metrics file; several are compared in one page")
      .required();
  sub.add_option("-o,--output", *output, "file to write; default, of one run: report.html beside the metrics");
  return {sub, [paths, output] {
            return launched_rank() == 0 ? run_report(*paths, *output)
                                        : Exit::ok;  // under a launcher one rank writes it
          }};
}

}  // namespace mw
