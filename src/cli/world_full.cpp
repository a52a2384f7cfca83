#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <thread>

#include "cli/run_commands.h"
#include "comm/watchdog/watchdog.h"

namespace mw {

Exit run_in_world(const Invocation& invocation, const std::function<Exit(World&)>& body) {
  const std::unique_ptr<World> world = start_world(invocation.argc, invocation.argv);
  const auto take_down = [&](const Error& error) {
    const int rank = world->comm().rank();
    if (world->comm().size() == 1) throw error;
    // The same mistake usually hits every rank: let the lowest speak first, whose abort then ends the others by
    // SIGTERM.
    std::signal(SIGTERM, SIG_DFL);
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds_until_turn(rank, world->comm().size())));
    print_error(error, fmt::format("rank {}: ", rank));
    world->abort(error.code());
  };
  try {
    return body(*world);
  } catch (const Error& error) {
    take_down(error);
  } catch (const std::bad_alloc&) {
    take_down(
        Error(Exit::memory, "out of memory", "use more ranks, raise train.micro_batches, or lower train.seq_len"));
  } catch (const std::filesystem::filesystem_error& error) {
    take_down(Error(Exit::data, error.what(), kFilesystemHint));
  } catch (const std::exception& error) {
    take_down(Error(Exit::internal, error.what(),
                    "this is a bug in Moewright; please report it with the command and the run file"));
  }
  return Exit::internal;
}

Exit run_watched(World& world, int64_t seconds, const std::function<Exit()>& body) {
  // Its main thread may be stuck in the message library: nothing of the process can be ended in order.
  const auto end = [rank = world.comm().rank()](const Error* reason) {
    if (reason != nullptr) {
      print_error(*reason, fmt::format("rank {}: ", rank));
      wait_until_output_is_read();
    }
    std::_Exit(static_cast<int>(Exit::stalled));
  };
  const std::unique_ptr<Watchdog> watchdog = start_watchdog(world, static_cast<double>(seconds), end);
  const Exit code = body();
  world.comm().barrier();  // all are watched until the last one is here
  return code;
}

std::shared_ptr<int64_t> add_watchdog_option(Subcommand& sub) {
  auto seconds = std::make_shared<int64_t>(WatchdogSpec().seconds);
  sub.add_option("--watchdog", *seconds,
                 "end the job after this many seconds without a sign of life or progress; 0: never")
      .range(0, 1'000'000'000)
      .show_default();
  return seconds;
}

}  // namespace mw
