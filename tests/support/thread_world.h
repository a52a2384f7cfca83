// What the threads of a world of support/thread_comm.h share: the calls that meet, who waits for whom, and the first
// failure. One lock guards all of it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/progress.h"

namespace mw::test {

struct ThreadGroup;

// One collective call of a group: what its members gave, and what comes of it.
struct Meeting {
  std::string call;    // as the first member called it: "broadcast of 8 bytes from rank 0"
  int caller = -1;     // that member
  int64_t number = 0;  // among the group's calls, from 1
  int members_here = 0;
  std::vector<bool> here;
  std::vector<std::vector<std::byte>> given;                     // by member
  std::vector<std::byte> result;                                 // once all are here
  std::vector<std::shared_ptr<ThreadGroup>> groups;              // of a split, by member
  std::vector<std::vector<int64_t>> sent_bytes, expected_bytes;  // of an exchange, [member][peer]
};

// The n-th message between two members, from either side.
struct Message {
  int64_t number = 0;
  bool sent = false, asked = false;
  size_t bytes = 0;
  std::vector<std::byte> payload;
};

// Messages of one member to another: those that one side has not seen yet.
struct Channel {
  std::deque<std::shared_ptr<Message>> open;
  int64_t sent = 0, asked = 0;
};

struct ThreadGroup {
  explicit ThreadGroup(std::vector<int> world_ranks);
  std::string describe() const;                     // "ranks 0 2 4"
  std::vector<int> members;                         // ranks of the world
  std::vector<int64_t> calls;                       // collectives begun, by member
  std::deque<std::shared_ptr<Meeting>> open;        // that not all members have begun
  std::map<std::pair<int, int>, Channel> channels;  // by sender and receiver
};

class ThreadWorld {
 public:
  using Lock = std::unique_lock<std::mutex>;
  explicit ThreadWorld(int ranks);

  Lock lock() { return Lock(mutex_); }
  int size() const { return static_cast<int>(ranks_.size()); }
  Progress& progress(int rank) { return ranks_[static_cast<size_t>(rank)].progress; }
  std::shared_ptr<ThreadGroup> add_group(std::vector<int> members);  // under the lock

  // All under the lock.
  // Until nobody is missing any more; `missing` says which ranks of the world are. Errors: comm, when the world has
  // failed or does so because no rank can go on.
  void wait(Lock& lock, int rank, const std::string& what, const std::function<std::vector<int>()>& missing);
  // Something came: those members that it lets go on do so.
  void wake(const std::vector<int>& members);
  // Errors: comm, when the world has failed.
  void check(int rank, const std::string& what) const;
  // All who wait, now or later, end with an error; the first one counts.
  void fail(const std::exception_ptr& error, const std::string& why);
  // The rank will call nothing any more.
  void end(int rank);

  // After all ranks have ended. Throws the first failure, or says what was left.
  void finish();

 private:
  struct Rank {
    enum class State : uint8_t { running, waiting, ended } state = State::running;
    std::string what;  // it waits in
    std::function<std::vector<int>()> missing;
    std::condition_variable may_go_on;
    Progress progress;
  };
  void fail_if_stuck();

  std::mutex mutex_;
  std::deque<Rank> ranks_;
  std::vector<std::shared_ptr<ThreadGroup>> groups_;
  std::exception_ptr failure_;
  std::string why_;
};

// "barrier (call 3 of ranks 0 1 2)"
std::string name_of_call(const std::string& call, const Meeting& meeting, const ThreadGroup& group);
// Ranks of the world that have not come to a meeting, among the members that are wanted. Under the lock.
std::vector<int> absent_members(const Meeting& meeting, const ThreadGroup& group,
                                const std::function<bool(size_t)>& is_wanted);
// "0 2 4"
std::string list_of(const std::vector<int>& ranks);

}  // namespace mw::test
