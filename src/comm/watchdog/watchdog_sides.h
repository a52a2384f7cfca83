// The two sides of the watchdog: rank 0, which listens and judges, and every other rank, which reports its progress.
#pragma once

#include <atomic>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/bootstrap/guests.h"
#include "comm/watchdog/watchdog.h"
#include "comm/watchdog/watchdog_judge.h"
#include "comm/watchdog/watchdog_socket.h"

namespace mw {

struct WatchSettings {
  int rank = 0, ranks = 1;
  double limit = 0;  // watchdog.seconds
  const Progress* progress = nullptr;
  EndJob end;
  JoinKey key{};  // World::key()
  // Seconds between two beats.
  double interval() const;
};

// A clock of the time that this process was awake: a gap longer than `longest` between two readings was spent
// suspended.
class AwakeClock {
 public:
  explicit AwakeClock(double longest);
  double read();

 private:
  double longest_, last_, awake_ = 0;
};

// Creates this rank's own beats.
class OwnBeats {
 public:
  explicit OwnBeats(const WatchSettings& settings);
  Beat make(double now);

 private:
  const WatchSettings& settings_;
  std::string host_;
  int64_t moves_ = -1;
  double moved_ = 0;
};

class RankZero {
 public:
  // Raises no alarm before arm().
  RankZero(WatchSettings settings, Descriptor listener);
  void arm() { armed_ = true; }
  // Runs until `stop` becomes readable, or an alarm.
  void run(int stop);

 private:
  struct Connection {
    BeatSocket socket;
    int rank = 0;
  };
  void welcome(AdmittedGuest guest, double now);
  void serve(int fd, double now);
  // Returns false when the message is not of that rank.
  bool take(Connection& connection, const BeatBytes& message, double now);
  void drop(int fd, double now);
  std::vector<WatchedRank> table(double now) const;
  // The beat of rank 0: its own progress, and which rank it misses.
  Beat make_word(BeatKind kind, double now);
  void tell_all(BeatKind kind, double now);

  WatchSettings settings_;
  Descriptor epoll_;
  Guests guests_;
  AwakeClock clock_;
  OwnBeats own_;
  std::atomic<bool> armed_{false};
  std::unordered_map<int, Connection> connections_;  // by descriptor
  std::vector<WatchedRank> ranks_;
  std::vector<double> heard_;     // time of the last beat, per rank
  int quiet_ = -1;                // as Beat::quiet_rank
  std::vector<int> descriptors_;  // per rank; -1: none
  bool lost_one_ = false;         // already reported in the log
};

class OtherRank {
 public:
  OtherRank(WatchSettings settings, const WatchAddress& address);
  // Finds the address at which rank 0 answers. Returns false if none does.
  bool join();
  void run(int stop);

 private:
  bool try_host(uint32_t host);
  // Returns an admitted connection, or an invalid one. Takes at most kConnectSeconds.
  BeatSocket connect(uint32_t host, int stop) const;
  void connect_again(int stop, double now);
  void take_answers(double now);
  void tell(BeatKind kind, double now);
  void judge(double now);

  WatchSettings settings_;
  WatchAddress address_;
  AwakeClock clock_;
  OwnBeats own_;
  BeatSocket socket_;
  uint32_t host_ = 0;  // the address that answered
  WatchedRank zero_;   // its age is counted in heard_
  double heard_ = 0;
  bool ended_ = false;  // rank 0 ended the job
};

}  // namespace mw
