#include "comm/world_tcp.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <set>

#include "comm/bootstrap/tcp_links.h"
#include "comm/sum_levels.h"

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
// Bytes of all members together, up to which one of them sums: messages cost more than what is in them.
constexpr size_t kShortSum = size_t{1} << 18;

// Groups have a channel for collectives and one for messages, whose orders have nothing to do with each other.
class TcpComm : public Comm {
 public:
  using Comm::all_reduce_sum;
  using Comm::all_to_all;
  using Comm::receive;
  using Comm::send;
  // `members` are ranks of the world, in the order of this group.
  TcpComm(TcpShared& shared, uint64_t name, std::vector<int> members)
      : shared_(shared),
        collectives_(2 * name),
        messages_(2 * name + 1),
        members_(std::move(members)),
        levels_(sum_levels(size())) {
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
      if (rank_ == root) join_here({1, size()}, piece, add<float>);
      else wait({send_part(root, std::as_bytes(piece))});
    }
  }

  void broadcast(std::span<std::byte> bytes, int root) override {
    if (size() == 1 || bytes.empty()) return;
    const CollectiveWait noted(shared_.progress, "broadcast");
    pass_down(bytes, root);
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

  // `all` holds the values of several members, in their order.
  template <class T>
  static void join_all(std::span<const T> all, std::span<T> into, T (*join)(T, T)) {
    std::copy_n(all.begin(), into.size(), into.begin());
    for (size_t at = into.size(); at < all.size(); at += into.size())
      std::transform(into.begin(), into.end(), all.begin() + static_cast<std::ptrdiff_t>(at), into.begin(), join);
  }

  // Along a binomial tree.
  void pass_down(std::span<std::byte> bytes, int root) {
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

  // Up the same tree: the values of this member and those behind it go on together. Member 0 joins all in their order.
  template <class T>
  void join_at_first(std::span<T> values, T (*join)(T, T)) {
    int step = 1;
    while (step < size() && (rank_ & step) == 0) step *= 2;
    const int here = std::min(step, size() - rank_);
    const size_t each = values.size();
    std::vector<T> all(each * static_cast<size_t>(here));
    std::copy(values.begin(), values.end(), all.begin());
    Transfers received;
    for (int behind = 1; behind < here; behind *= 2) {
      const auto first = static_cast<size_t>(behind), count = static_cast<size_t>(std::min(behind, here - behind));
      received.push_back(
          receive_part(rank_ + behind, std::as_writable_bytes(std::span(all).subspan(first * each, count * each))));
    }
    wait(received);
    if (rank_ > 0) wait({send_part(rank_ - step, std::as_bytes(std::span(all)))});
    else join_all<T>(all, values, join);
    pass_down(std::as_writable_bytes(values), 0);
  }

  int place_in(const SumLevel& level) const { return rank_ / level.stride % level.members; }
  int member_of(const SumLevel& level, int place) const { return rank_ + (place - place_in(level)) * level.stride; }
  template <class T>
  static std::span<T> part_of(const SumLevel& level, std::span<T> whole, int place) {
    const size_t count = static_cast<size_t>(level.members), share = (whole.size() + count - 1) / count;
    const size_t first = std::min(whole.size(), share * static_cast<size_t>(place));
    return whole.subspan(first, std::min(share, whole.size() - first));
  }

  // Receives the values of the others in the level for `own`, and joins all in the order of the members.
  template <class T>
  void join_here(const SumLevel& level, std::span<T> own, T (*join)(T, T)) {
    std::vector<T> all(own.size() * static_cast<size_t>(level.members));
    Transfers received;
    for (int i = 0; i < level.members; ++i) {
      const auto values = std::span(all).subspan(static_cast<size_t>(i) * own.size(), own.size());
      if (i == place_in(level)) std::copy(own.begin(), own.end(), values.begin());
      else received.push_back(receive_part(member_of(level, i), std::as_writable_bytes(values)));
    }
    wait(received);
    join_all<T>(all, own, join);
  }

  // This member's part of `whole` becomes that of all members of the level together.
  template <class T>
  void join_parts(const SumLevel& level, std::span<T> whole, T (*join)(T, T)) {
    Transfers sent;
    for (int i = 0; i < level.members; ++i)
      if (const auto part = part_of(level, whole, i); i != place_in(level) && !part.empty())
        sent.push_back(send_part(member_of(level, i), std::as_bytes(part)));
    if (const auto own = part_of(level, whole, place_in(level)); !own.empty()) join_here(level, own, join);
    wait(sent);  // before what was sent is overwritten
  }

  // Every member of the level gives the others its part of `whole`.
  template <class T>
  void share_parts(const SumLevel& level, std::span<T> whole) {
    const auto own = part_of(level, whole, place_in(level));
    Transfers sent, received;
    for (int i = 0; i < level.members; ++i) {
      if (i == place_in(level)) continue;
      const auto part = part_of(level, whole, i);
      if (!own.empty()) sent.push_back(send_part(member_of(level, i), std::as_bytes(own)));
      if (!part.empty()) received.push_back(receive_part(member_of(level, i), std::as_writable_bytes(part)));
    }
    wait(sent);
    wait(received);
  }

  // Every element is computed once, so that all members have the same bits.
  template <class T>
  void all_reduce(std::span<T> values, T (*join)(T, T)) {
    if (size() == 1 || values.empty()) return;
    const CollectiveWait noted(shared_.progress, "all_reduce");
    if (values.size_bytes() * members_.size() <= kShortSum) return join_at_first(values, join);
    for (size_t begin = 0; begin < values.size(); begin += kPiece) {
      std::vector<std::span<T>> held = {values.subspan(begin, std::min(kPiece, values.size() - begin))};
      for (const SumLevel& level : levels_) {
        join_parts(level, held.back(), join);
        held.push_back(part_of(level, held.back(), place_in(level)));
      }
      for (size_t i = levels_.size(); i-- > 0;) share_parts(levels_[i], held[i]);
    }
  }

  TcpShared& shared_;
  uint64_t collectives_, messages_;
  std::vector<int> members_;
  std::vector<SumLevel> levels_;
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
