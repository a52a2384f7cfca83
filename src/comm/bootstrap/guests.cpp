#include "comm/bootstrap/guests.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

#include "base/error.h"
#include "base/host.h"

namespace mw {
namespace {

constexpr uint64_t kListener = 0;
constexpr int kMostAccepts = 512;      // before others get their turn
constexpr double kListenAgain = 0.02;  // seconds
constexpr const char* kLate = "it did not prove in time that it belongs to the job";
constexpr const char* kClosed = "it closed the connection";

// Why a guest that sent whole messages is not let in.
struct Reason {
  const char* why;
  std::string details;
};
Reason reason_of(const HostHandshake& handshake) {
  if (handshake.state() == GuestState::foreign) return {"it does not speak Moewright's protocol", ""};
  const Hello& hello = handshake.hello();
  const std::string who = fmt::format(" (it says that it is rank {} on {})", hello.rank, hello.name);
  switch (handshake.refusal()) {
    case Refusal::wrong_secret: return {"it does not know the join secret", who};
    case Refusal::secret_missing: return {"it was started without a join secret", who};
    case Refusal::secret_unexpected: return {"it has a join secret, and rank 0 has none", who};
    case Refusal::other_addresses:
      return {"it connected through a relay or an address translation",
              fmt::format("{}, from {} to {}", who, describe(hello.guest), describe(hello.host))};
    case Refusal::none: break;
  }
  return {"", ""};
}

}  // namespace

Guests::Guests(Descriptor listener, const HandshakeHost& host, const GuestLimits& limits)
    : listener_(std::move(listener)), epoll_(epoll_create1(EPOLL_CLOEXEC)), host_(host), limits_(limits) {
  if (!epoll_.valid()) fail_system("epoll_create1");
  listen(true, now_seconds());
}

Guests::~Guests() { print(log_.sum_up(now_seconds(), true)); }

double Guests::pause() const {
  if (!listening_) return kListenAgain;
  return guests_.empty() ? limits_.seconds
                         : std::max(0.0, guests_.begin()->second.since + limits_.seconds - now_seconds());
}

// Where no room can be made the listener would stay readable: it is left alone for a while.
void Guests::listen(bool on, double now) {
  if (on == listening_) return;
  epoll_event event{EPOLLIN, {.u64 = kListener}};
  if (epoll_ctl(epoll_.get(), on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listener_.get(), &event) != 0)
    fail_system("epoll_ctl");
  listening_ = on;
  stopped_ = now;
}

std::vector<AdmittedGuest> Guests::admit() {
  std::vector<AdmittedGuest> admitted;
  const double now = now_seconds();
  drop_late(now);
  if (now - stopped_ >= kListenAgain) listen(true, now);
  std::array<epoll_event, 256> events;
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  bool newcomers = false;
  for (int i = 0; i < count; ++i) {
    const uint64_t number = events[static_cast<size_t>(i)].data.u64;
    if (number == kListener) newcomers = true;
    else serve(number, admitted, now);
  }
  if (newcomers) accept_all(admitted, now);
  print(log_.sum_up(now));
  return admitted;
}

void Guests::accept_all(std::vector<AdmittedGuest>& admitted, double now) {
  for (int i = 0; i < kMostAccepts; ++i) {
    if (!make_room(now)) return listen(false, now);
    Endpoint at;  // also of a connection that is broken already
    Descriptor connection = accept_from(listener_, &at);
    if (!connection.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN) listen(false, now);  // no descriptor is free, for example
      return;
    }
    const HostHandshake handshake(host_, at, local_end(connection));
    const uint64_t number = next_number_++;
    epoll_event event{EPOLLIN, {.u64 = number}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.get(), &event) != 0) continue;
    guests_.emplace(number, Guest{std::move(connection), handshake, at, now});
    serve(number, admitted, now);  // most have said hello already
  }
}

bool Guests::make_room(double now) {
  if (guests_.size() < limits_.guests) return true;
  const auto victim = find_victim();
  if (now - victim->second.since < limits_.patience) return false;
  drop(victim, kLate, "", now);
  return true;
}

Guests::Table::iterator Guests::find_victim() {
  const auto silent = std::find_if(guests_.begin(), guests_.end(), [](const auto& entry) {
    return entry.second.handshake.state() == GuestState::silent;
  });
  return silent == guests_.end() ? guests_.begin() : silent;
}

void Guests::serve(uint64_t number, std::vector<AdmittedGuest>& admitted, double now) {
  const auto it = guests_.find(number);
  if (it == guests_.end()) return;
  Guest& guest = it->second;
  std::array<std::byte, sizeof(HelloBytes)> buffer;
  while (guest.handshake.missing() > 0) {
    const ssize_t got =
        recv(guest.connection.get(), buffer.data(), std::min(buffer.size(), guest.handshake.missing()), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return drop(it, kClosed, "", now);
    const auto answer = guest.handshake.take(std::span(buffer).first(static_cast<size_t>(got)));
    // An answer fits into the buffer of a fresh connection; who breaks off is no loss.
    if (!answer.empty() &&
        send(guest.connection.get(), answer.data(), answer.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(answer.size()))
      return drop(it, kClosed, "", now);
  }
  if (guest.handshake.state() != GuestState::admitted) {
    const auto [why, details] = reason_of(guest.handshake);
    return drop(it, why, details, now);
  }
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, guest.connection.get(), nullptr);
  admitted.push_back({std::move(guest.connection), guest.handshake.hello()});
  guests_.erase(it);
}

void Guests::drop_late(double now) {
  while (!guests_.empty() && now - guests_.begin()->second.since > limits_.seconds)
    drop(guests_.begin(), kLate, "", now);
}

void Guests::drop(Table::iterator guest, const std::string& why, const std::string& details, double now) {
  print(log_.note(describe_host(guest->second.at.host), why, details, now));
  guests_.erase(guest);
}

void Guests::print(const std::optional<std::string>& line) const {
  if (line) std::fputs(fmt::format("moewright: warning: rank {} {}\n", host_.rank, *line).c_str(), stderr);
}

}  // namespace mw
