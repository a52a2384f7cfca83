// The two sides of the watchdog: rank 0, which listens and judges, and every other rank, which tells where it is.
#pragma once

#include <atomic>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/guests.h"
#include "train/watchdog.h"
#include "train/watchdog_judge.h"
#include "train/watchdog_socket.h"

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

// Seconds that this process was awake: a gap longer than `longest` between two readings was spent suspended.
class AwakeClock {
 public:
  explicit AwakeClock(double longest);
  double read();

 private:
  double longest_, last_, awake_ = 0;
};

// What a rank says of itself.
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
  // Judges nobody before arm().
  RankZero(WatchSettings settings, Descriptor listener);
  void arm() { armed_ = true; }
  // Until `stop` becomes readable, or an alarm.
  void run(int stop);

 private:
  struct Connection {
    BeatSocket socket;
    int rank = 0;
  };
  void welcome(AdmittedGuest guest, double now);
  void serve(int fd, double now);
  // False: not a message of that rank.
  bool take(Connection& connection, const BeatBytes& message, double now);
  void drop(int fd, double now);
  std::vector<WatchedRank> table(double now) const;
  // Where rank 0 is, and whom it misses.
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
  std::vector<double> heard_;     // when, per rank
  int quiet_ = -1;                // as Beat::quiet_rank
  std::vector<int> descriptors_;  // per rank; -1: none
  bool lost_one_ = false;         // the log says so
};

class OtherRank {
 public:
  OtherRank(WatchSettings settings, const WatchAddress& address);
  // Finds the address at which rank 0 answers. False: none does.
  bool join();
  void run(int stop);

 private:
  bool try_host(uint32_t host);
  // An admitted connection, or an invalid one. Takes kConnectSeconds at most.
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
  uint32_t host_ = 0;  // the one that answered
  WatchedRank zero_;   // its age is counted in heard_
  double heard_ = 0;
  bool ended_ = false;  // rank 0 said so
};

}  // namespace mw
