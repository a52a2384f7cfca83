#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "base/text.h"
#include "cli/run_commands.h"
#include "comm/cores.h"
#include "engine/engine.h"
#include "engine/libraries.h"
#include "ops/device.h"
#include "probe/peak.h"
#include "probe/probe.h"
#include "train/loop/transport_times.h"

namespace mw {
namespace {

struct ProbeArguments {
  std::string output = "profile.json", device = "auto", budget = "1m";
  int64_t threads = 0;
  double peak_tflops = 0;
  std::string run;  // a run file, whose transports are timed; "": none
  std::vector<std::string> overrides;
};

// As the kernel has it.
std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos) return line.substr(line.find(": ") + 2);
  return "an unnamed CPU";
}

double parse_budget(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  const double seconds = unit == "s" || unit.empty() ? value
                         : unit == "m"               ? 60 * value
                         : unit == "h"               ? 3600 * value
                                                     : -1;
  if (!(seconds >= 1 && seconds <= 86400))
    fail(Exit::usage, fmt::format("--budget {}: expected a time from 1s to 24h", printable(text)),
         "pass a number of seconds, minutes or hours, for example 90s or 5m");
  return seconds;
}

Exit run_probe(World& world, ProbeArguments arguments) {
  Comm& comm = world.comm();
  std::optional<RunSpec> run;
  if (!arguments.run.empty()) {
    run = read_run_file(arguments.run, arguments.overrides);
    check_transports_to_time(*run, comm.size());
    // The machine is measured as the run will use it.
    if (arguments.threads == 0) arguments.threads = run->train.threads;
    if (arguments.device == "auto") arguments.device = word_of(run->train.device);
    run->train.threads = arguments.threads;
    run->train.device = enum_of<DeviceChoice>(arguments.device).value();
  }
  const auto say = [](const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  };
  const int local = std::max(1, world.local_size()), threads = threads_per_rank(arguments.threads, local);
  const Device device = choose_device(enum_of<DeviceChoice>(arguments.device).value(), world.place().rank);
  const bool on_gpu = device.kind != DeviceKind::cpu;
  const MemoryMeter memory(device);
  ProbeOptions options;
  options.output = arguments.output;
  const bool replaces =
      comm.rank() == 0 && refuse_other_file(options.output, "{", "profile", "pass another -o FILE.json");
  options.budget_s = parse_budget(arguments.budget);
  options.memory_bytes = available_share(device, on_gpu ? ranks_on_gpu(comm, device) : local);
  comm.barrier();  // before a rank that shares the GPU takes some
  Stream stream = open_stream(device, threads);
  stream.trace().note_phases(comm.progress());
  start_products(stream, on_gpu ? DType::bf16 : DType::f32, arenas_of(device));
  comm.barrier();
  options.library_bytes = std::max<int64_t>(0, on_gpu ? memory.taken() : resident_bytes());
  if (!on_gpu) options.resident = resident_bytes;
  comm.barrier();
  options.machine = printable(fmt::format(
      "{} on {}, {}", counted(comm.size(), "rank"), counted(world.nodes(), "node"),
      on_gpu ? describe(device)
             : fmt::format("{}, {} each, {}", cpu_name(), counted(threads, "thread"), cpu::matmul_traits().library)));
  if (arguments.peak_tflops > 0) {
    options.peak_flops_per_s = arguments.peak_tflops * 1e12;
    options.peak_source = fmt::format("given: a peak of {:g} TFLOP/s, dense bf16", arguments.peak_tflops);
  } else if (const std::optional<double> peak = on_gpu ? public_peak(describe(device)) : std::nullopt) {
    options.peak_flops_per_s = *peak;
    options.peak_source = fmt::format("public: a peak of {:g} TFLOP/s, dense bf16", *peak * 1e-12);
  }
  if (comm.rank() == 0)
    std::printf("%s, budget %s\n", options.machine.c_str(), format_duration(options.budget_s).c_str());
  probe(world, stream, options, say);
  if (run) {
    run->plan.platform = options.output;
    time_transports(world, *run, say);
  }
  if (comm.rank() == 0)
    std::printf("wrote %s%s: `moewright plan RUN --platform %s` plans for this machine\n", options.output.c_str(),
                replaces ? " in place of an older profile" : "", options.output.c_str());
  return Exit::ok;
}

}  // namespace

Command add_probe_command(CommandLine& line, const Invocation& invocation) {
  Subcommand sub = line.add_command("probe", "benchmark this machine and write a platform profile for `plan`");
  auto arguments = std::make_shared<ProbeArguments>();
  sub.add_option("RUN", arguments->run,
                 "run file: also time its steps with each transport, for moe.transport = \"auto\"");
  sub.add_option("OVERRIDES", arguments->overrides, "key=value overrides of the run file");
  sub.add_option("-o,--output", arguments->output, "profile file to write").show_default();
  sub.add_option("--budget", arguments->budget, "approximate run time, such as 90s or 5m").show_default();
  sub.add_option("--device", arguments->device, "auto, cpu, cuda or hip")
      .one_of(enum_words<DeviceChoice>())
      .show_default();
  sub.add_option("--threads", arguments->threads, "threads per rank; 0: the node's cores divided by its ranks")
      .range(0, 4096)
      .show_default();
  sub.add_option("--peak-tflops", arguments->peak_tflops,
                 "dense bf16 peak of a rank, for MFU; 0: the published peak of a known GPU, else the fastest measured "
                 "matrix product")
      .range(0.0, 1e6);
  // However long the probe takes: every row of calls begins at a barrier and lasts milliseconds or one call, and what
  // prepares it are operators, which a watchdog sees.
  auto seconds = add_watchdog_option(sub);
  sub.set_footer(
      "Under mpirun, with as many ranks per node as a run will have, it also benchmarks the links. If interrupted, "
      "rerun\n"
      "it to resume.");
  return {sub, [=] {
            return run_in_world(invocation, [&](World& world) {
              return run_watched(world, *seconds, [&] { return run_probe(world, *arguments); });
            });
          }};
}

}  // namespace mw
