#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <thread>

#include "cli/run_commands.h"

namespace mw {

Exit run_in_world(const Invocation& invocation, const std::function<Exit(World&)>& body) {
  const std::unique_ptr<World> world = start_world(invocation.argc, invocation.argv);
  const auto take_down = [&](const Error& error) {
    const int rank = world->comm().rank();
    if (world->comm().size() == 1) throw error;
    // The same mistake usually hits every rank: let the lowest speak first, whose abort then ends the others by
    // SIGTERM.
    std::signal(SIGTERM, SIG_DFL);
    if (rank > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1000 + 10 * std::min(rank, 100)));
    print_error(error, fmt::format("rank {}: ", rank));
    world->abort(error.code());
  };
  try {
    return body(*world);
  } catch (const Error& error) {
    take_down(error);
  } catch (const std::bad_alloc&) {
    take_down(Error(Exit::memory, "out of memory",
                    "use more ranks, a smaller micro-batch (raise train.micro_batches) or a shorter train.seq_len"));
  } catch (const std::filesystem::filesystem_error& error) {
    take_down(Error(Exit::data, error.what(), kFilesystemHint));
  } catch (const std::exception& error) {
    take_down(Error(Exit::internal, error.what(),
                    "this is a bug in Moewright; please report it with the command and the run file"));
  }
  return Exit::internal;
}

}  // namespace mw
