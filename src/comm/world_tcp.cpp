#include "comm/world_tcp.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <set>

#include "comm/bootstrap/tcp_links.h"

namespace mw {
namespace {

using Transfers = std::vector<std::shared_ptr<TcpTransfer>>;

// What all groups of this rank share.
struct TcpShared {
  TcpLinks links;
  Progress progress;
  uint64_t groups = 1;  // names taken so far
};

class TcpPending : public Pending {
 public:
  TcpPending(TcpShared& shared, const char* call, Transfers transfers)
      : shared_(shared), call_(call), number_(shared.progress.begin_collective()), transfers_(std::move(transfers)) {}
  ~TcpPending() override {
    if (std::uncaught_exceptions() > 0) return;
    // Each by itself: what is left would still point to the caller's memory. The next collective says the same.
    for (const auto& transfer : std::exchange(transfers_, {})) {
      try {
        shared_.links.wait(*transfer);
      } catch (const Error&) {
      }
    }
  }
  void wait() override {
    if (transfers_.empty()) return;
    const CollectiveWait noted(shared_.progress, call_, number_);
    for (const Transfers transfers = std::exchange(transfers_, {}); const auto& transfer : transfers)
      shared_.links.wait(*transfer);
  }

 private:
  TcpShared& shared_;
  const char* call_;
  int64_t number_;
  Transfers transfers_;
};

// Elements of scratch memory that a sum may take.
constexpr size_t kPiece = size_t{1} << 20;

// Groups have a channel for collectives and one for messages, whose orders have nothing to do with each other.
class TcpComm : public Comm {
 public:
  using Comm::all_reduce_sum;
  using Comm::all_to_all;
  using Comm::receive;
  using Comm::send;
  // `members` are ranks of the world, in the order of this group.
  TcpComm(TcpShared& shared, uint64_t name, std::vector<int> members)
      : shared_(shared), collectives_(2 * name), messages_(2 * name + 1), members_(std::move(members)) {
    const auto me = std::find(members_.begin(), members_.end(), shared.links.rank());
    rank_ = static_cast<int>(me - members_.begin());
  }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }

  void all_reduce_sum(std::span<float> values) override { all_reduce(values, add<float>); }
  void all_reduce_sum(std::span<double> values) override { all_reduce(values, add<double>); }
  void all_reduce_sum(std::span<int64_t> values) override { all_reduce(values, add<int64_t>); }
  void all_reduce_max(std::span<double> values) override { all_reduce(values, larger<double>); }
  void all_reduce_max(std::span<int64_t> values) override { all_reduce(values, larger<int64_t>); }

  void reduce_sum(std::span<float> values, int root) override {
    const CollectiveWait noted(shared_.progress, "reduce");
    const size_t most = std::max<size_t>(1, kPiece / members_.size());
    for (size_t begin = 0; begin < values.size(); begin += most) {
      const auto piece = values.subspan(begin, std::min(most, values.size() - begin));
      if (rank_ == root) reduce_here(piece, add<float>);
      else wait({send_part(root, std::as_bytes(piece))});
    }
  }

  // Along a binomial tree.
  void broadcast(std::span<std::byte> bytes, int root) override {
    if (size() == 1 || bytes.empty()) return;
    const CollectiveWait noted(shared_.progress, "broadcast");
    const int place = (rank_ - root + size()) % size();
    const auto member = [&](int at) { return (at + root) % size(); };
    int step = 1;
    while (step < size() && (place & step) == 0) step *= 2;
    if (place > 0) wait({receive_part(member(place - step), bytes)});
    Transfers sent;
    for (step /= 2; step > 0; step /= 2)
      if (place + step < size()) sent.push_back(send_part(member(place + step), bytes));
    wait(sent);
  }

  void barrier() override {
    int64_t nothing = 0;
    all_reduce_sum(std::span(&nothing, 1));
  }

  std::unique_ptr<Pending> all_to_all(const RowExchange& x) override {
    const auto* from = static_cast<const std::byte*>(x.send);
    auto* to = static_cast<std::byte*>(x.receive);
    const auto bytes = [&](int64_t rows) { return static_cast<size_t>(rows * x.row_bytes); };
    Transfers transfers;
    for (int i = 0; i < size(); ++i) {
      const auto m = static_cast<size_t>(i);
      if (i == rank_ || x.receive_counts[m] == 0) continue;
      transfers.push_back(receive_part(i, {to + bytes(x.receive_offsets[m]), bytes(x.receive_counts[m])}));
    }
    for (int i = 0; i < size(); ++i) {
      const auto m = static_cast<size_t>(i);
      if (x.send_counts[m] == 0) continue;
      const std::span<const std::byte> rows(from + bytes(x.send_offsets[m]), bytes(x.send_counts[m]));
      if (i == rank_) std::memmove(to + bytes(x.receive_offsets[m]), rows.data(), rows.size());
      else transfers.push_back(send_part(i, rows));
    }
    return std::make_unique<TcpPending>(shared_, "all_to_all", std::move(transfers));
  }

  std::unique_ptr<Pending> send(std::span<const std::byte> bytes, int to) override {
    return std::make_unique<TcpPending>(shared_, "send", Transfers{shared_.links.send(member(to), messages_, bytes)});
  }
  std::unique_ptr<Pending> receive(std::span<std::byte> bytes, int from) override {
    return std::make_unique<TcpPending>(shared_, "receive",
                                        Transfers{shared_.links.receive(member(from), messages_, bytes)});
  }

  std::unique_ptr<Comm> split(int color, int key) override {
    std::vector<int64_t> told(2 * members_.size());
    told[2 * static_cast<size_t>(rank_)] = color;
    told[2 * static_cast<size_t>(rank_) + 1] = key;
    all_reduce_sum(std::span(told));
    // A name that none of the members has for another group.
    auto name = static_cast<int64_t>(shared_.groups);
    all_reduce_max(std::span(&name, 1));
    shared_.groups = static_cast<uint64_t>(name) + 1;
    std::vector<std::pair<int64_t, int>> chosen;  // by key, then in this group's order
    for (int i = 0; i < size(); ++i)
      if (told[2 * static_cast<size_t>(i)] == color) chosen.emplace_back(told[2 * static_cast<size_t>(i) + 1], i);
    std::sort(chosen.begin(), chosen.end());
    std::vector<int> members;
    for (const auto& [order, i] : chosen) members.push_back(member(i));
    return std::make_unique<TcpComm>(shared_, static_cast<uint64_t>(name), std::move(members));
  }
  void check_peers() override { shared_.links.check(); }
  Progress* progress() override { return &shared_.progress; }

 private:
  template <class T>
  static T add(T a, T b) {
    return a + b;
  }
  template <class T>
  static T larger(T a, T b) {
    return std::max(a, b);
  }

  int member(int rank) const { return members_[static_cast<size_t>(rank)]; }
  std::shared_ptr<TcpTransfer> send_part(int to, std::span<const std::byte> bytes) {
    return shared_.links.send(member(to), collectives_, bytes);
  }
  std::shared_ptr<TcpTransfer> receive_part(int from, std::span<std::byte> bytes) {
    return shared_.links.receive(member(from), collectives_, bytes);
  }
  void wait(const Transfers& transfers) {
    for (const auto& transfer : transfers) shared_.links.wait(*transfer);
  }

  // All others' values for `own`, taken together in the order of the members.
  template <class T>
  void reduce_here(std::span<T> own, T (*join)(T, T)) {
    std::vector<T> all(own.size() * members_.size());
    const auto of = [&](int i) { return std::span(all).subspan(static_cast<size_t>(i) * own.size(), own.size()); };
    Transfers received;
    for (int i = 0; i < size(); ++i) {
      if (i == rank_) std::copy(own.begin(), own.end(), of(i).begin());
      else received.push_back(receive_part(i, std::as_writable_bytes(of(i))));
    }
    wait(received);
    std::copy_n(all.begin(), own.size(), own.begin());
    for (int i = 1; i < size(); ++i) std::transform(own.begin(), own.end(), of(i).begin(), own.begin(), join);
  }

  // Each member reduces its part of a piece and sends it to all: every element is computed once, so that all have the
  // same bits.
  template <class T>
  void all_reduce(std::span<T> values, T (*join)(T, T)) {
    if (size() == 1) return;
    const CollectiveWait noted(shared_.progress, "all_reduce");
    for (size_t begin = 0; begin < values.size(); begin += kPiece) {
      const auto piece = values.subspan(begin, std::min(kPiece, values.size() - begin));
      const size_t share = (piece.size() + members_.size() - 1) / members_.size();
      const auto part = [&](int i) {
        const size_t first = std::min(piece.size(), share * static_cast<size_t>(i));
        return piece.subspan(first, std::min(share, piece.size() - first));
      };
      Transfers sent, received;
      for (int i = 0; i < size(); ++i)
        if (i != rank_ && !part(i).empty()) sent.push_back(send_part(i, std::as_bytes(part(i))));
      if (!part(rank_).empty()) reduce_here(part(rank_), join);
      wait(sent);  // before what was sent is overwritten
      sent.clear();
      for (int i = 0; i < size(); ++i) {
        if (i == rank_) continue;
        if (!part(rank_).empty()) sent.push_back(send_part(i, std::as_bytes(part(rank_))));
        if (!part(i).empty()) received.push_back(receive_part(i, std::as_writable_bytes(part(i))));
      }
      wait(sent);
      wait(received);
    }
  }

  TcpShared& shared_;
  uint64_t collectives_, messages_;
  std::vector<int> members_;
  int rank_ = 0;
};

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  for (int r = 0; r < count; ++r) ranks[static_cast<size_t>(r)] = r;
  return ranks;
}

class TcpWorld : public World {
 public:
  TcpWorld(int rank, JoinedRanks joined)
      : shared_{TcpLinks(rank, std::move(joined.connections)), {}, 1},
        comm_(shared_, 0, first_ranks(shared_.links.size())),
        key_(joined.key),
        host_(joined.host) {
    const std::vector<uint64_t>& nodes = joined.nodes;
    const uint64_t own = nodes[static_cast<size_t>(rank)];
    place_.rank = static_cast<int>(std::count(nodes.begin(), nodes.begin() + rank, own));
    place_.ranks = static_cast<int>(std::count(nodes.begin(), nodes.end(), own));
    place_.nodes = number_nodes(nodes);
    nodes_ = static_cast<int>(std::set<uint64_t>(nodes.begin(), nodes.end()).size());
  }
  Comm& comm() override { return comm_; }
  std::string library() const override { return "TCP, joined at MASTER_ADDR"; }
  NodePlace place() const override { return place_; }
  int nodes() const override { return nodes_; }
  JoinKey key() const override { return key_; }
  uint32_t host() const override { return host_; }
  [[noreturn]] void abort(Exit code) override {
    shared_.links.announce_end(code);
    std::_Exit(static_cast<int>(code));
  }

 private:
  TcpShared shared_;
  TcpComm comm_;
  JoinKey key_;
  uint32_t host_;
  NodePlace place_;
  int nodes_ = 1;
};

}  // namespace

std::unique_ptr<World> start_tcp_world(const JoinSpec& spec) {
  return std::make_unique<TcpWorld>(spec.rank, join_ranks(spec));
}

}  // namespace mw
