#include <cstdio>
#include <filesystem>

#include "base/file.h"
#include "cli/run_commands.h"
#include "formats/report/report.h"

namespace mw {
namespace {

constexpr int kLoadSamples = 120;  // columns of a heat map

Exit run_report(const std::string& path, std::string output) {
  if (!path_exists(path))
    fail(Exit::data, fmt::format("{} does not exist", path), "name the folder of a run, or its metrics file");
  std::filesystem::path metrics = path;
  if (std::error_code ignored; std::filesystem::is_directory(metrics, ignored)) metrics /= "metrics.jsonl";
  if (!path_exists(metrics.native()))
    fail(Exit::data, fmt::format("{} does not exist", metrics.native()),
         "pass the metrics file itself if it has another name; a run writes it with log.jsonl=RUN_DIR/metrics.jsonl");
  if (output.empty()) output = (metrics.parent_path() / "report.html").native();
  write_output_text(output, draw_report(read_metrics(metrics.native(), kLoadSamples), metrics.native()));
  std::printf("wrote %s\n", output.c_str());
  return Exit::ok;
}

}  // namespace

Command add_report_command(CommandLine& line) {
  Subcommand sub = line.add_command("report", "write an HTML report of a run: curves, memory, time, expert load");
  auto path = std::make_shared<std::string>(), output = std::make_shared<std::string>();
  sub.add_option("RUN_DIR", *path, "folder with metrics.jsonl, or a metrics file").required();
  sub.add_option("-o,--output", *output, "file to write; default: report.html beside the metrics");
  return {sub, [path, output] { return run_report(*path, *output); }};
}

}  // namespace mw
