#include "support/thread_pending.h"

#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <utility>

#include "base/error.h"

namespace mw::test {
namespace {

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// What a caller may see of a started exchange or message: `wait` ends it. Whoever forgets to wait waits in the end,
// unless an error unwinds.
class ThreadPending : public Pending {
 public:
  ThreadPending(Place at, const char* call)
      : at_(std::move(at)), call_(call), number_(at_.world.progress(at_.rank()).begin_collective()) {}
  ~ThreadPending() override = default;
  void wait() override {
    if (std::exchange(done_, true)) return;
    const CollectiveWait noted(at_.world.progress(at_.rank()), call_, number_);
    finish();
  }

 protected:
  // In the destructors of those that know how to finish.
  void wait_at_end() {
    if (std::uncaught_exceptions() > 0) return;
    try {
      wait();
    } catch (const Error& error) {
      const auto lock = at_.world.lock();
      at_.world.fail(std::current_exception(), error.what());
    }
  }
  virtual void finish() = 0;
  // Until the other side has done its part, which `came` says.
  void wait_for_rank(int member, const std::string& what, const bool& came) {
    const int peer = at_.group->members[static_cast<size_t>(member)];
    auto lock = at_.world.lock();
    at_.world.wait(lock, at_.rank(), fmt::format("{} rank {}", what, peer),
                   [&came, peer] { return came ? std::vector<int>{} : std::vector<int>{peer}; });
  }
  void check_untouched(std::span<const std::byte> sent, std::span<const std::byte> copy) const {
    if (same_bytes(sent, copy)) return;
    fail(Exit::comm, fmt::format("rank {}: what {} sends was touched before it was waited for", at_.rank(), call_));
  }
  Place at_;

 private:
  const char* call_;
  int64_t number_;
  bool done_ = false;
};

// The rows of an exchange for or from each member, as bytes.
template <class T>
std::vector<std::span<T>> parts_of(T* base, const std::vector<int64_t>& counts, const std::vector<int64_t>& offsets,
                                   int64_t row_bytes) {
  std::vector<std::span<T>> parts;
  for (size_t m = 0; m < counts.size(); ++m) {
    MW_CHECK(counts[m] >= 0 && offsets[m] >= 0, "{} rows at {}", counts[m], offsets[m]);
    parts.push_back(counts[m] == 0
                        ? std::span<T>()
                        : std::span<T>(base + offsets[m] * row_bytes, static_cast<size_t>(counts[m] * row_bytes)));
  }
  return parts;
}

class ThreadExchange : public ThreadPending {
 public:
  ThreadExchange(Place at, std::shared_ptr<Meeting> meeting, ExchangeParts parts)
      : ThreadPending(std::move(at), "all_to_all"),
        meeting_(std::move(meeting)),
        sent_(std::move(parts.sent)),
        received_(std::move(parts.received)) {
    for (size_t m = 0; m < received_.size(); ++m)
      if (!is_own_overlap(m) && !received_[m].empty()) std::memset(received_[m].data(), 0xff, received_[m].size());
  }
  ~ThreadExchange() override { wait_at_end(); }

 private:
  void finish() override {
    {
      auto lock = at_.world.lock();
      at_.world.wait(lock, at_.rank(), name_of_call("all_to_all", *meeting_, *at_.group), [this] {
        return absent_members(*meeting_, *at_.group, [this](size_t m) { return !received_[m].empty(); });
      });
    }
    check_untouched_parts();
    for (size_t m = 0; m < received_.size(); ++m)
      if (!received_[m].empty()) std::memcpy(received_[m].data(), rows(m, own()).data(), received_[m].size());
  }
  void check_untouched_parts() const {
    for (size_t m = 0; m < sent_.size(); ++m)
      if (!is_own_overlap(m)) check_untouched(sent_[m], rows(own(), m));
  }
  size_t own() const { return static_cast<size_t>(at_.member); }
  bool is_own_overlap(size_t m) const { return m == own() && overlap(sent_[m], received_[m]); }
  // What one member gave for another; written once, before it came.
  std::span<const std::byte> rows(size_t from, size_t to) const {
    const std::vector<int64_t>& sizes = meeting_->sent_bytes[from];
    size_t begin = 0;
    for (size_t m = 0; m < to; ++m) begin += static_cast<size_t>(sizes[m]);
    return std::span(meeting_->given[from]).subspan(begin, static_cast<size_t>(sizes[to]));
  }

  std::shared_ptr<Meeting> meeting_;
  std::vector<std::span<const std::byte>> sent_;
  std::vector<std::span<std::byte>> received_;
};

class SentMessage : public ThreadPending {
 public:
  SentMessage(Place at, std::shared_ptr<Message> message, int peer, std::span<const std::byte> bytes)
      : ThreadPending(std::move(at), "send"), message_(std::move(message)), peer_(peer), bytes_(bytes) {}
  ~SentMessage() override { wait_at_end(); }

 private:
  void finish() override {
    wait_for_rank(peer_, fmt::format("send of message {} to", message_->number), message_->asked);
    check_untouched(bytes_, message_->payload);
  }
  std::shared_ptr<Message> message_;
  int peer_;
  std::span<const std::byte> bytes_;
};

class ReceivedMessage : public ThreadPending {
 public:
  ReceivedMessage(Place at, std::shared_ptr<Message> message, int peer, std::span<std::byte> bytes)
      : ThreadPending(std::move(at), "receive"), message_(std::move(message)), peer_(peer), bytes_(bytes) {
    if (!bytes.empty()) std::memset(bytes.data(), 0xff, bytes.size());
  }
  ~ReceivedMessage() override { wait_at_end(); }

 private:
  void finish() override {
    wait_for_rank(peer_, fmt::format("receive of message {} from", message_->number), message_->sent);
    if (!bytes_.empty()) std::memcpy(bytes_.data(), message_->payload.data(), bytes_.size());
  }
  std::shared_ptr<Message> message_;
  int peer_;
  std::span<std::byte> bytes_;
};

}  // namespace

ExchangeParts parts_of(const RowExchange& x, const Place& at) {
  const size_t members = at.group->members.size();
  for (const auto* list : {&x.send_counts, &x.send_offsets, &x.receive_counts, &x.receive_offsets})
    MW_CHECK(list->size() == members, "rank {}: all_to_all of {} members among {}", at.rank(), list->size(), members);
  const ExchangeParts parts = {
      parts_of(static_cast<const std::byte*>(x.send), x.send_counts, x.send_offsets, x.row_bytes),
      parts_of(static_cast<std::byte*>(x.receive), x.receive_counts, x.receive_offsets, x.row_bytes)};
  for (size_t a = 0; a < members; ++a)
    for (size_t b = 0; b < members; ++b) {
      const bool own = a == b && a == static_cast<size_t>(at.member);
      MW_CHECK(own || !overlap(parts.received[a], parts.sent[b]), "rank {}: all_to_all receives where it sends",
               at.rank());
      MW_CHECK(a == b || !overlap(parts.received[a], parts.received[b]),
               "rank {}: all_to_all receives twice in one place", at.rank());
    }
  return parts;
}

std::unique_ptr<Pending> make_exchange(Place at, std::shared_ptr<Meeting> meeting, ExchangeParts parts) {
  return std::make_unique<ThreadExchange>(std::move(at), std::move(meeting), std::move(parts));
}

std::unique_ptr<Pending> make_sent(Place at, std::shared_ptr<Message> message, int peer,
                                   std::span<const std::byte> bytes) {
  return std::make_unique<SentMessage>(std::move(at), std::move(message), peer, bytes);
}

std::unique_ptr<Pending> make_received(Place at, std::shared_ptr<Message> message, int peer,
                                       std::span<std::byte> bytes) {
  return std::make_unique<ReceivedMessage>(std::move(at), std::move(message), peer, bytes);
}

}  // namespace mw::test
