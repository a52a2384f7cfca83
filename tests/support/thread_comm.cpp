#include "support/thread_comm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <map>
#include <numeric>
#include <thread>
#include <utility>

#include "support/op_case.h"
#include "support/thread_pending.h"

namespace mw::test {
namespace {

using Bytes = std::vector<std::byte>;

// Scratch memory of a rank: only what is used is ever touched.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

Bytes copy_of(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

// Fails the world: nothing can meet any more. Under the lock.
[[noreturn]] void fail_world(const Place& at, const std::string& text) {
  const Error error(Exit::comm, fmt::format("rank {}: {}", at.rank(), text), {});
  at.world.fail(std::make_exception_ptr(error), error.what());
  throw error;
}

class ThreadComm : public Comm {
 public:
  using Comm::all_reduce_sum;
  using Comm::all_to_all;
  using Comm::receive;
  using Comm::send;
  explicit ThreadComm(Place at) : at_(std::move(at)) {}
  int rank() const override { return at_.member; }
  int size() const override { return static_cast<int>(at_.group->members.size()); }

  void all_reduce_sum(std::span<float> values) override {
    all_reduce("all_reduce_sum of {} floats", values, add<float>);
  }
  void all_reduce_sum(std::span<double> values) override {
    all_reduce("all_reduce_sum of {} doubles", values, add<double>);
  }
  void all_reduce_sum(std::span<int64_t> values) override {
    all_reduce("all_reduce_sum of {} int64s", values, add<int64_t>);
  }
  void all_reduce_max(std::span<double> values) override {
    all_reduce("all_reduce_max of {} doubles", values, larger<double>);
  }
  void all_reduce_max(std::span<int64_t> values) override {
    all_reduce("all_reduce_max of {} int64s", values, larger<int64_t>);
  }
  void reduce_sum(std::span<float> values, int root) override {
    check_member(root);
    const auto met = meet("reduce", fmt::format("reduce_sum of {} floats to member {}", values.size(), root),
                          copy_of(std::as_bytes(values)), join_by<float>(add<float>));
    if (rank() == root) take(*met, std::as_writable_bytes(values));
  }
  void broadcast(std::span<std::byte> bytes, int root) override {
    check_member(root);
    const auto met = meet("broadcast", fmt::format("broadcast of {} bytes from member {}", bytes.size(), root),
                          rank() == root ? copy_of(bytes) : Bytes(),
                          [root](Meeting& m) { m.result = m.given[static_cast<size_t>(root)]; });
    if (rank() != root) take(*met, bytes);
  }
  void barrier() override {
    meet("barrier", "barrier", {}, [](Meeting&) {});
  }

  std::unique_ptr<Pending> all_to_all(const RowExchange& x) override;
  std::unique_ptr<Pending> send(std::span<const std::byte> bytes, int to) override;
  std::unique_ptr<Pending> receive(std::span<std::byte> bytes, int from) override;
  std::unique_ptr<Comm> split(int color, int key) override;
  void check_peers() override {
    const auto lock = at_.world.lock();
    at_.world.check(at_.rank(), "check_peers");
  }
  Progress* progress() override { return &at_.world.progress(at_.rank()); }

 private:
  using Join = std::function<void(Meeting&)>;
  template <class T>
  static T add(T a, T b) {
    return a + b;
  }
  template <class T>
  static T larger(T a, T b) {
    return std::max(a, b);
  }
  // Takes what all gave together, in their order.
  template <class T>
  static Join join_by(T (*join)(T, T)) {
    return [join](Meeting& m) {
      m.result = m.given[0];
      auto* values = reinterpret_cast<T*>(m.result.data());
      for (size_t i = 1; i < m.given.size(); ++i)
        std::transform(values, values + m.result.size() / sizeof(T), reinterpret_cast<const T*>(m.given[i].data()),
                       values, join);
    };
  }
  template <class T>
  void all_reduce(fmt::format_string<size_t> call, std::span<T> values, T (*join)(T, T)) {
    const auto met =
        meet("all_reduce", fmt::format(call, values.size()), copy_of(std::as_bytes(values)), join_by<T>(join));
    take(*met, std::as_writable_bytes(values));
  }
  static void take(const Meeting& met, std::span<std::byte> into) {
    std::copy_n(met.result.begin(), into.size(), into.begin());
  }

  void check_member(int member) const {
    MW_CHECK(member >= 0 && member < size(), "member {} of {}", member, at_.group->describe());
  }
  void check_peer(int member) const {
    check_member(member);
    MW_CHECK(member != rank(), "a message between rank {} and itself", at_.rank());
  }
  std::shared_ptr<Meeting> arrive(const std::string& call, Bytes given);
  std::shared_ptr<Meeting> meet(const char* kind, const std::string& call, Bytes given, const Join& join);
  void check_sizes(const Meeting& meeting) const;
  std::shared_ptr<Message> open_message(int from, int to, size_t bytes, const Bytes* payload);
  void form_groups(Meeting& meeting);

  Place at_;
};

// This member's next collective. Under the lock.
std::shared_ptr<Meeting> ThreadComm::arrive(const std::string& call, Bytes given) {
  ThreadGroup& group = *at_.group;
  const auto own = static_cast<size_t>(rank());
  const int64_t number = ++group.calls[own];
  at_.world.check(at_.rank(), fmt::format("{} (call {} of {})", call, number, group.describe()));
  if (group.open.empty() || group.open.back()->number < number) {
    Meeting& opened = *group.open.emplace_back(std::make_shared<Meeting>());
    opened.call = call;
    opened.caller = rank();
    opened.number = number;
    opened.here.resize(group.members.size());
    opened.given.resize(group.members.size());
    opened.sent_bytes.resize(group.members.size());
    opened.expected_bytes.resize(group.members.size());
  }
  const std::shared_ptr<Meeting> meeting = group.open[static_cast<size_t>(number - group.open.front()->number)];
  if (meeting->call != call)
    fail_world(at_, fmt::format("{} meets {} of rank {} (call {} of {})", call, meeting->call,
                                group.members[static_cast<size_t>(meeting->caller)], number, group.describe()));
  meeting->given[own] = std::move(given);
  meeting->here[own] = true;
  ++meeting->members_here;
  if (meeting->members_here == size()) group.open.pop_front();  // all have left the ones before
  return meeting;
}

std::shared_ptr<Meeting> ThreadComm::meet(const char* kind, const std::string& call, Bytes given, const Join& join) {
  const CollectiveWait noted(at_.world.progress(at_.rank()), kind);
  auto lock = at_.world.lock();
  auto meeting = arrive(call, std::move(given));
  if (meeting->members_here == size()) {
    join(*meeting);
    at_.world.wake(at_.group->members);
    return meeting;
  }
  at_.world.wait(lock, at_.rank(), name_of_call(call, *meeting, *at_.group), [meeting, group = at_.group] {
    return absent_members(*meeting, *group, [](size_t) { return true; });
  });
  return meeting;
}

// Both sides of every pair that is there expect the same.
void ThreadComm::check_sizes(const Meeting& meeting) const {
  const auto own = static_cast<size_t>(rank());
  const auto check_pair = [&](size_t from, size_t to) {
    const int64_t sent = meeting.sent_bytes[from][to], expected = meeting.expected_bytes[to][from];
    if (sent != expected)
      fail_world(at_, fmt::format("all_to_all (call {} of {}): rank {} sends {} bytes to rank {}, which expects {}",
                                  meeting.number, at_.group->describe(), at_.group->members[from], sent,
                                  at_.group->members[to], expected));
  };
  for (size_t peer = 0; peer < meeting.here.size(); ++peer)
    if (meeting.here[peer]) check_pair(own, peer), check_pair(peer, own);
}

std::unique_ptr<Pending> ThreadComm::all_to_all(const RowExchange& x) {
  const ExchangeParts parts = parts_of(x, at_);
  Bytes given;
  std::vector<int64_t> sent_bytes, expected_bytes;
  for (const auto part : parts.sent)
    given.insert(given.end(), part.begin(), part.end()), sent_bytes.push_back(std::ssize(part));
  for (const auto part : parts.received) expected_bytes.push_back(std::ssize(part));
  std::shared_ptr<Meeting> meeting;
  {
    const auto lock = at_.world.lock();
    meeting = arrive("all_to_all", std::move(given));
    meeting->sent_bytes[static_cast<size_t>(rank())] = std::move(sent_bytes);
    meeting->expected_bytes[static_cast<size_t>(rank())] = std::move(expected_bytes);
    check_sizes(*meeting);
    at_.world.wake(at_.group->members);
  }
  return make_exchange(at_, std::move(meeting), parts);
}

// The next message between the two, from this side.
std::shared_ptr<Message> ThreadComm::open_message(int from, int to, size_t bytes, const Bytes* payload) {
  const bool sends = payload != nullptr;
  const auto lock = at_.world.lock();
  Channel& channel = at_.group->channels[{from, to}];
  const int64_t number = sends ? ++channel.sent : ++channel.asked;
  at_.world.check(at_.rank(), fmt::format("message {} from member {} to member {}", number, from, to));
  const bool is_first = channel.open.empty() || channel.open.back()->number < number;
  if (is_first) *channel.open.emplace_back(std::make_shared<Message>()) = {number, false, false, bytes, {}};
  const auto message = channel.open[static_cast<size_t>(number - channel.open.front()->number)];
  if (message->bytes != bytes)
    fail_world(at_, fmt::format("message {} from member {} to member {} of {} has {} bytes on one side and {} on this",
                                number, from, to, at_.group->describe(), message->bytes, bytes));
  if (sends) message->payload = *payload;
  (sends ? message->sent : message->asked) = true;
  if (message->sent && message->asked) channel.open.pop_front();
  at_.world.wake(at_.group->members);
  return message;
}

std::unique_ptr<Pending> ThreadComm::send(std::span<const std::byte> bytes, int to) {
  check_peer(to);
  const Bytes payload = copy_of(bytes);
  return make_sent(at_, open_message(rank(), to, bytes.size(), &payload), to, bytes);
}

std::unique_ptr<Pending> ThreadComm::receive(std::span<std::byte> bytes, int from) {
  check_peer(from);
  return make_received(at_, open_message(from, rank(), bytes.size(), nullptr), from, bytes);
}

std::unique_ptr<Comm> ThreadComm::split(int color, int key) {
  const std::array<int, 2> told = {color, key};
  const auto met =
      meet("split", "split", copy_of(std::as_bytes(std::span(told))), [this](Meeting& m) { form_groups(m); });
  const std::shared_ptr<ThreadGroup>& group = met->groups[static_cast<size_t>(rank())];
  const auto me = std::find(group->members.begin(), group->members.end(), at_.rank());
  return std::make_unique<ThreadComm>(Place{at_.world, group, static_cast<int>(me - group->members.begin())});
}

// One for every color, its members by key, then in this group's order.
void ThreadComm::form_groups(Meeting& meeting) {
  std::map<int, std::vector<std::pair<int, size_t>>> by_color;
  for (size_t m = 0; m < meeting.given.size(); ++m) {
    std::array<int, 2> told;
    std::memcpy(told.data(), meeting.given[m].data(), sizeof told);
    by_color[told[0]].emplace_back(told[1], m);
  }
  meeting.groups.resize(meeting.given.size());
  for (auto& [color, chosen] : by_color) {
    std::sort(chosen.begin(), chosen.end());
    std::vector<int> members;
    for (const auto& [key, m] : chosen) members.push_back(at_.group->members[m]);
    const auto group = at_.world.add_group(std::move(members));
    for (const auto& [key, m] : chosen) meeting.groups[m] = group;
  }
}

// What one thread does from its start to its end.
void run_rank(ThreadWorld& world, const std::shared_ptr<ThreadGroup>& all, int rank, const RankBody& body) {
  std::exception_ptr error;
  std::string why;
  try {
    TestStream test_stream(1, kWorkspaceBytes);
    ThreadComm comm({world, all, rank});
    body(comm, test_stream.stream);
  } catch (const Error& e) {
    const std::string mark = fmt::format("rank {}: ", rank), text = e.what();
    why = text.rfind(mark, 0) == 0 ? text : mark + text;
    error = std::make_exception_ptr(Error(e.code(), why, e.hint()));
  } catch (const std::exception& e) {
    error = std::current_exception();
    why = fmt::format("rank {}: {}", rank, e.what());
  }
  const auto lock = world.lock();
  if (error != nullptr) world.fail(error, why);
  world.end(rank);
}

}  // namespace

void run_ranks(int ranks, const RankBody& body) {
  ThreadWorld world(ranks);
  std::vector<int> members(static_cast<size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  const std::shared_ptr<ThreadGroup> all = world.add_group(std::move(members));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&, rank] { run_rank(world, all, rank, body); });
  for (std::thread& thread : threads) thread.join();
  world.finish();
}

}  // namespace mw::test
