#include "support/thread_world.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace mw::test {

std::string list_of(const std::vector<int>& ranks) { return fmt::format("{}", fmt::join(ranks, " ")); }

ThreadGroup::ThreadGroup(std::vector<int> world_ranks) : members(std::move(world_ranks)), calls(members.size()) {}

std::string name_of_call(const std::string& call, const Meeting& meeting, const ThreadGroup& group) {
  return fmt::format("{} (call {} of {})", call, meeting.number, group.describe());
}

std::vector<int> absent_members(const Meeting& meeting, const ThreadGroup& group,
                                const std::function<bool(size_t)>& is_wanted) {
  std::vector<int> absent;
  for (size_t m = 0; m < group.members.size(); ++m)
    if (is_wanted(m) && !meeting.here[m]) absent.push_back(group.members[m]);
  return absent;
}

std::string ThreadGroup::describe() const { return "ranks " + list_of(members); }

ThreadWorld::ThreadWorld(int ranks) : ranks_(static_cast<size_t>(ranks)) {}

std::shared_ptr<ThreadGroup> ThreadWorld::add_group(std::vector<int> members) {
  return groups_.emplace_back(std::make_shared<ThreadGroup>(std::move(members)));
}

void ThreadWorld::wait(Lock& lock, int rank, const std::string& what,
                       const std::function<std::vector<int>()>& missing) {
  check(rank, what);
  if (missing().empty()) return;
  Rank& own = ranks_[static_cast<size_t>(rank)];
  own.state = Rank::State::waiting;
  own.what = what;
  own.missing = missing;
  fail_if_stuck();
  own.may_go_on.wait(lock, [&] { return failure_ != nullptr || own.state == Rank::State::running; });
  own.missing = nullptr;
  if (own.state == Rank::State::running) return;
  own.state = Rank::State::running;
  check(rank, what);
}

void ThreadWorld::wake(const std::vector<int>& members) {
  for (const int member : members) {
    Rank& rank = ranks_[static_cast<size_t>(member)];
    if (rank.state != Rank::State::waiting || !rank.missing().empty()) continue;
    rank.state = Rank::State::running;
    rank.may_go_on.notify_one();
  }
}

void ThreadWorld::check(int rank, const std::string& what) const {
  if (failure_ != nullptr) mw::fail(Exit::comm, fmt::format("rank {}: {}: {}", rank, what, why_));
}

void ThreadWorld::fail(const std::exception_ptr& error, const std::string& why) {
  if (failure_ == nullptr) failure_ = error, why_ = why;
  for (Rank& rank : ranks_) rank.may_go_on.notify_one();
}

void ThreadWorld::end(int rank) {
  ranks_[static_cast<size_t>(rank)].state = Rank::State::ended;
  fail_if_stuck();
}

// Nobody runs, so nothing can come any more for those who wait.
void ThreadWorld::fail_if_stuck() {
  if (failure_ != nullptr) return;
  std::vector<int> ended;
  std::string waits;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    if (rank.state == Rank::State::running) return;
    if (rank.state == Rank::State::ended) ended.push_back(static_cast<int>(i));
    else waits += fmt::format("; rank {} waits in {} for ranks {}", i, rank.what, list_of(rank.missing()));
  }
  if (waits.empty()) return;
  const std::string why =
      fmt::format("no rank can go on{}{}", waits, ended.empty() ? "" : "; ended: ranks " + list_of(ended));
  fail(std::make_exception_ptr(Error(Exit::comm, why, {})), why);
}

namespace {

void refuse_leftovers(const ThreadGroup& group) {
  if (!group.open.empty()) {
    const Meeting& left = *group.open.front();
    const std::vector<int> absent = absent_members(left, group, [](size_t) { return true; });
    fail(Exit::comm,
         fmt::format("{} was never called by ranks {}", name_of_call(left.call, left, group), list_of(absent)));
  }
  for (const auto& [ends, channel] : group.channels)
    if (!channel.open.empty())
      fail(Exit::comm,
           fmt::format("message {} from rank {} to rank {} was never {}", channel.open.front()->number,
                       group.members[static_cast<size_t>(ends.first)], group.members[static_cast<size_t>(ends.second)],
                       channel.open.front()->sent ? "received" : "sent"));
}

}  // namespace

void ThreadWorld::finish() {
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  for (const auto& group : groups_) refuse_leftovers(*group);
}

}  // namespace mw::test
