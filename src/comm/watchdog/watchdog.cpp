#include "comm/watchdog/watchdog.h"

#include <arpa/inet.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>

#include "base/host.h"
#include "comm/watchdog/watchdog_sides.h"

namespace mw {
namespace {

// A thread that signals pass by, from start to the end of its owner.
class StoppableThread {
 public:
  template <class Run>
  explicit StoppableThread(Run run) : stop_(eventfd(0, EFD_CLOEXEC)) {
    if (!stop_.valid()) fail(Exit::comm, "eventfd failed", "raise the limit of open files (ulimit -n)");
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([run, stop = stop_.get()] { run(stop); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~StoppableThread() {
    eventfd_write(stop_.get(), 1);
    thread_.join();
  }

 private:
  Descriptor stop_;
  std::thread thread_;
};

// One of both sides, and its thread, which ends first.
template <class Side>
class Running : public Watchdog {
 public:
  explicit Running(std::unique_ptr<Side> side)
      : side_(std::move(side)), thread_([this](int stop) { side_->run(stop); }) {}
  Side& side() { return *side_; }

 private:
  std::unique_ptr<Side> side_;
  StoppableThread thread_;
};

void warn_off(const std::string& why) {
  std::fputs(fmt::format("moewright: warning: the watchdog is off: {}\n", why).c_str(), stderr);
}

// Null, with a warning, where rank 0 cannot listen. `address` is then empty.
std::unique_ptr<Running<RankZero>> start_listening(uint32_t host, const WatchSettings& settings,
                                                   WatchAddress& address) {
  try {
    Descriptor listener = listen_for_ranks(host, settings.ranks, address);
    return std::make_unique<Running<RankZero>>(std::make_unique<RankZero>(settings, std::move(listener)));
  } catch (const Error& error) {
    address = {};
    warn_off(error.what());
    return nullptr;
  }
}

}  // namespace

double WatchSettings::interval() const { return std::clamp(limit / 6, 0.05, 5.0); }

AwakeClock::AwakeClock(double longest) : longest_(longest), last_(now_seconds()) {}

double AwakeClock::read() {
  const double now = now_seconds();
  awake_ += std::min(now - last_, longest_);
  last_ = now;
  return awake_;
}

OwnBeats::OwnBeats(const WatchSettings& settings) : settings_(settings), host_(host_name()) {}

Beat OwnBeats::make(double now) {
  const ProgressNote note = settings_.progress->read();
  if (note.moves != moves_) moved_ = now;
  moves_ = note.moves;
  return make_beat(settings_.rank, note, now - moved_, host_);
}

std::unique_ptr<Watchdog> start_watchdog(World& world, double seconds, EndJob end) {
  Comm& comm = world.comm();
  if (seconds <= 0 || comm.size() == 1) return nullptr;
  const WatchSettings settings{comm.rank(), comm.size(), seconds, comm.progress(), std::move(end), world.key()};
  MW_CHECK(settings.progress != nullptr, "a world of {} ranks that notes no progress", comm.size());
  WatchAddress address;
  std::unique_ptr<Running<RankZero>> zero;
  const uint32_t host = world.nodes() == 1 ? htonl(INADDR_LOOPBACK) : world.host();
  if (settings.rank == 0) zero = start_listening(host, settings, address);
  comm.broadcast(std::as_writable_bytes(std::span(&address, 1)), 0);
  if (address.count == 0) return nullptr;
  int64_t outside = 0;  // the highest rank that cannot reach rank 0
  std::unique_ptr<Watchdog> watchdog;
  if (settings.rank > 0) {
    auto side = std::make_unique<OtherRank>(settings, address);
    if (side->join()) watchdog = std::make_unique<Running<OtherRank>>(std::move(side));
    else outside = settings.rank;
  }
  comm.all_reduce_max(std::span(&outside, 1));
  if (outside > 0) {
    if (zero != nullptr)
      warn_off(
          fmt::format("rank {} cannot reach rank 0 over TCP at {}; open these ports between nodes, or set "
                      "watchdog.seconds=0 to say that it is meant so",
                      outside, describe(address)));
    return nullptr;
  }
  if (zero == nullptr) return watchdog;
  zero->side().arm();
  return zero;
}

void begin_step(Comm& world, const RunSpec& run, int64_t step) {
  if (Progress* progress = world.progress(); progress != nullptr) progress->begin_step(step);
  const bool hangs = run.fault == Fault::hang && step == 3 && world.rank() == world.size() - 1;
  while (hangs) std::this_thread::sleep_for(std::chrono::hours(1));  // NOLINT(bugprone-infinite-loop)
}

void note_work(Comm& world, const char* work) {
  if (Progress* progress = world.progress(); progress != nullptr) progress->enter(work);
}

}  // namespace mw
