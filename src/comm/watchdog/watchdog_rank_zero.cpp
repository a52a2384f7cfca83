#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "comm/watchdog/watchdog_sides.h"

namespace mw {

RankZero::RankZero(WatchSettings settings, Descriptor listener)
    : settings_(std::move(settings)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      guests_(std::move(listener), {Purpose::watch, 0, settings_.key, true}),
      clock_(2 * settings_.interval()),
      own_(settings_),
      ranks_(static_cast<size_t>(settings_.ranks)),
      heard_(ranks_.size()),
      descriptors_(ranks_.size(), -1) {
  if (!epoll_.valid()) fail(Exit::comm, "epoll_create1 failed", "raise the limit of open files (ulimit -n)");
  for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r].last.rank = static_cast<int>(r);
}

void RankZero::run(int stop) {
  for (const int fd : {stop, guests_.get()}) {
    epoll_event event{EPOLLIN, {.fd = fd}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  }
  double next_look = 0;
  while (true) {
    std::array<epoll_event, 64> events;
    const double pause = std::clamp(next_look - clock_.read(), 0.0, guests_.pause());
    const int count =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), static_cast<int>(pause * 1e3) + 1);
    const double now = clock_.read();
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == stop) return tell_all(BeatKind::leave, now);
      if (fd != guests_.get()) serve(fd, now);
    }
    for (AdmittedGuest& guest : guests_.admit()) welcome(std::move(guest), now);
    if (now < next_look) continue;
    next_look = now + settings_.interval() / 2;
    ranks_[0].last = own_.make(now);
    heard_[0] = now;
    if (!armed_) continue;
    const std::vector<WatchedRank> known = table(now);
    const WatchedRank* quiet = find_quiet(known, 2 * settings_.interval());
    quiet_ = quiet == nullptr ? -1 : quiet->last.rank;
    if (const auto alarm = judge_progress(known, settings_.limit)) {
      tell_all(BeatKind::end, now);
      const Error error(Exit::stalled, "watchdog: " + alarm->text,
                        "look at the node and the process of that rank; checkpoint.resume=auto goes on from the newest "
                        "checkpoint. If the job was at work, raise watchdog.seconds (--watchdog)");
      return settings_.end(&error);
    }
  }
}

void RankZero::welcome(AdmittedGuest guest, double now) {
  if (guest.hello.size != settings_.ranks) return;
  const int rank = guest.hello.rank, fd = guest.connection.get();
  const auto r = static_cast<size_t>(rank);
  epoll_event event{EPOLLIN, {.fd = fd}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return;
  // One that connects again may come before its old connection is known to be broken.
  if (descriptors_[r] >= 0) connections_.erase(descriptors_[r]);
  descriptors_[r] = fd;
  connections_[fd] = {BeatSocket(std::move(guest.connection)), rank};
  ranks_[r].link = RankLink::up;
  heard_[r] = now;
}

void RankZero::serve(int fd, double now) {
  const auto it = connections_.find(fd);
  if (it == connections_.end()) return;
  std::vector<BeatBytes> messages;
  const bool open = it->second.socket.receive(messages);
  for (const BeatBytes& message : messages)
    if (!take(it->second, message, now)) return drop(fd, now);
  if (!open) drop(fd, now);
}

bool RankZero::take(Connection& connection, const BeatBytes& message, double now) {
  const std::optional<Beat> beat = decode(message, settings_.ranks);
  if (!beat || beat->rank != connection.rank) return false;
  const auto r = static_cast<size_t>(beat->rank);
  ranks_[r].last = *beat;
  ranks_[r].link = beat->kind == BeatKind::leave ? RankLink::left : RankLink::up;
  heard_[r] = now;
  return connection.socket.send(encode(make_word(BeatKind::beat, now)));
}

void RankZero::drop(int fd, double now) {
  const int rank = connections_.at(fd).rank;
  connections_.erase(fd);
  const auto r = static_cast<size_t>(rank);
  descriptors_[r] = -1;
  if (ranks_[r].link == RankLink::left) return;
  ranks_[r].link = RankLink::lost;
  const double age = now - std::exchange(heard_[r], now);
  if (std::exchange(lost_one_, true)) return;  // the launcher ends the others then
  std::fputs(fmt::format("moewright: {}\n", describe_lost_rank(ranks_[r].last, age)).c_str(), stderr);
}

std::vector<WatchedRank> RankZero::table(double now) const {
  std::vector<WatchedRank> ranks = ranks_;
  for (size_t r = 0; r < ranks.size(); ++r) ranks[r].age = now - heard_[r];
  return ranks;
}

Beat RankZero::make_word(BeatKind kind, double now) {
  Beat beat = own_.make(now);
  beat.kind = kind;
  beat.quiet_rank = quiet_;
  if (quiet_ >= 0) beat.quiet_seconds = now - heard_[static_cast<size_t>(quiet_)];
  return beat;
}

void RankZero::tell_all(BeatKind kind, double now) {
  const BeatBytes word = encode(make_word(kind, now));
  for (auto& [fd, connection] : connections_) connection.socket.send(word);
}

}  // namespace mw
