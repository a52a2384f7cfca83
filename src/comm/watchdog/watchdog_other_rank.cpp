#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include "comm/watchdog/watchdog_sides.h"

namespace mw {
namespace {

constexpr double kJoinSeconds = 15;    // for all addresses of rank 0 together
constexpr double kConnectSeconds = 2;  // for one of them
constexpr double kRetrySeconds = 1;    // between two attempts to connect again
constexpr double kGraceSeconds = 3;    // for another rank to tell the reason and end the job

void sleep_seconds(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// Lets another rank tell the reason: a launcher that then ends this one by SIGTERM finds it willing.
void let_others_speak(double seconds) {
  std::signal(SIGTERM, SIG_DFL);
  sleep_seconds(seconds);
}

}  // namespace

OtherRank::OtherRank(WatchSettings settings, const WatchAddress& address)
    : settings_(std::move(settings)), address_(address), clock_(2 * settings_.interval()), own_(settings_) {}

bool OtherRank::join() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(kJoinSeconds);
  do {
    for (uint32_t i = 0; i < std::min<size_t>(address_.count, address_.hosts.size()); ++i)
      if (try_host(address_.hosts[i])) return true;
    sleep_seconds(0.1);
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

// Another machine may have the same address: only one that knows the key is rank 0.
bool OtherRank::try_host(uint32_t host) {
  socket_ = connect(host, -1);
  host_ = host;
  heard_ = clock_.read();
  return socket_.valid() && socket_.send(encode(own_.make(heard_)));
}

BeatSocket OtherRank::connect(uint32_t host, int stop) const {
  Descriptor connection = connect_to(host, address_.port, kConnectSeconds, stop);
  if (!connection.valid()) return BeatSocket();
  Hello hello;
  hello.purpose = Purpose::watch;
  hello.has_secret = true;
  hello.rank = settings_.rank;
  hello.size = settings_.ranks;
  const bool admitted = enter(connection, hello, settings_.key, after(kConnectSeconds), stop).entry == Entry::admitted;
  return admitted ? BeatSocket(std::move(connection)) : BeatSocket();
}

void OtherRank::run(int stop) {
  double next_beat = 0;
  while (true) {
    wait_readable(stop, socket_.get(), std::max(0.0, next_beat - clock_.read()));
    const double now = clock_.read();
    if (is_readable(stop)) break;
    if (socket_.valid()) take_answers(now);
    if (ended_) {
      let_others_speak(kGraceSeconds);
      return settings_.end(nullptr);
    }
    if (zero_.link == RankLink::left) socket_ = BeatSocket();
    else if (now >= next_beat) {
      if (!socket_.valid()) connect_again(stop, now);
      tell(BeatKind::beat, now);
      judge(now);
    }
    if (now >= next_beat)
      next_beat = now + (socket_.valid() ? settings_.interval() : std::min(settings_.interval(), kRetrySeconds));
  }
  tell(BeatKind::leave, clock_.read());
}

void OtherRank::connect_again(int stop, double now) {
  socket_ = connect(host_, stop);
  if (zero_.link == RankLink::up) {
    zero_.link = RankLink::lost;
    heard_ = now;
  }
}

void OtherRank::take_answers(double now) {
  std::vector<BeatBytes> messages;
  if (!socket_.receive(messages)) socket_ = BeatSocket();
  for (const BeatBytes& message : messages) {
    const std::optional<Beat> beat = decode(message, settings_.ranks);
    if (!beat || beat->rank != 0) {
      socket_ = BeatSocket();
      return;
    }
    zero_.last = *beat;
    zero_.link = beat->kind == BeatKind::leave ? RankLink::left : RankLink::up;
    ended_ = ended_ || beat->kind == BeatKind::end;
    heard_ = now;
  }
}

void OtherRank::tell(BeatKind kind, double now) {
  if (!socket_.valid() || zero_.link == RankLink::left) return;
  Beat beat = own_.make(now);
  beat.kind = kind;
  if (!socket_.send(encode(beat))) socket_ = BeatSocket();
}

void OtherRank::judge(double now) {
  zero_.age = now - heard_;
  const auto alarm = judge_rank_zero(zero_, own_.make(now), settings_.limit);
  if (!alarm) return;
  // All know it, one is enough.
  if (settings_.rank > 1) let_others_speak(seconds_until_turn(settings_.rank - 1, settings_.ranks - 1));
  const Error error(Exit::stalled, "watchdog: " + alarm->text,
                    "look at the node and the process of rank 0; checkpoint.resume=auto goes on from the newest "
                    "checkpoint");
  settings_.end(&error);
}

}  // namespace mw
