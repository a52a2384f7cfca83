// Uneven exchanges of more ranks than a rank sends to at once: three at a time, whose rows have many sizes, and for
// which odd ranks wait in the opposite order.
//
//   mpirun -np N exchange_run           exit 1 where a row comes wrong
//   mpirun -np N exchange_run wrong     rank 1 sends rank 0 a row too many
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/world.h"

namespace mw {
namespace {

// Rank i sends (i + 2 j + number) % 4 rows to rank j, of up to `width` numbers each.
class Exchange {
 public:
  Exchange(Comm& comm, int number, int64_t width) : comm_(comm), number_(number), width_(width) {
    int64_t sent = 0, received = 0;
    for (int peer = 0; peer < comm.size(); ++peer) {
      x_.send_offsets.push_back(sent);
      x_.send_counts.push_back(rows_between(comm.rank(), peer));
      x_.receive_offsets.push_back(received);
      x_.receive_counts.push_back(rows_between(peer, comm.rank()));
      for (int64_t i = 0; i < rows_between(comm.rank(), peer) * width; ++i)
        send_.push_back(value(comm.rank(), peer, i));
      sent += rows_between(comm.rank(), peer), received += rows_between(peer, comm.rank());
    }
    send_.resize(send_.size() + static_cast<size_t>(width));
    receive_.resize(static_cast<size_t>(received * width));
  }
  void start(int64_t more_to_rank_zero = 0) {
    x_.send = send_.data(), x_.receive = receive_.data();
    x_.row_bytes = width_ * static_cast<int64_t>(sizeof(int64_t));
    x_.send_counts[0] += more_to_rank_zero;
    pending_ = comm_.all_to_all(x_);
  }
  // Returns whether all rows are right.
  bool wait() {
    pending_->wait();
    size_t at = 0;
    for (int peer = 0; peer < comm_.size(); ++peer)
      for (int64_t i = 0; i < rows_between(peer, comm_.rank()) * width_; ++i)
        if (receive_[at++] != value(peer, comm_.rank(), i)) return false;
    return true;
  }

 private:
  int64_t rows_between(int from, int to) const { return (from + 2 * to + number_) % 4; }
  int64_t value(int from, int to, int64_t i) const { return ((from * 1000 + to) * 10 + number_) * 100000 + i; }

  Comm& comm_;
  int number_;
  int64_t width_;
  RowExchange x_;
  std::vector<int64_t> send_, receive_;
  std::unique_ptr<Pending> pending_;
};

bool run(Comm& comm, bool wrong) {
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (int number = 0; number < 3; ++number) {
    exchanges.push_back(std::make_unique<Exchange>(comm, number, number == 1 ? 20000 : 3));
    exchanges.back()->start(wrong && number == 1 && comm.rank() == 1 ? 1 : 0);
  }
  if (comm.rank() % 2 == 1) std::reverse(exchanges.begin(), exchanges.end());
  bool right = true;
  for (const auto& exchange : exchanges) right = exchange->wait() && right;
  std::vector<int64_t> bad = {right ? 0 : 1};
  comm.all_reduce_sum(std::span(bad));
  return bad[0] == 0;
}

}  // namespace
}  // namespace mw

int main(int argc, char** argv) {
  using namespace mw;
  std::unique_ptr<World> world;
  try {
    world = start_world(&argc, &argv);
    const bool right = run(world->comm(), argc > 1 && std::string_view(argv[1]) == "wrong");
    if (world->comm().rank() == 0) std::printf("%d ranks: %s\n", world->comm().size(), right ? "right" : "WRONG");
    return right ? 0 : 1;
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    if (world) world->abort(error.code());
    return static_cast<int>(error.code());
  }
}
