#include "comm/comm_cases.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "core/rng.h"

namespace mw::test {
namespace {

// A value of one member at one place; floats of them add up to other bits in another order.
float value_of(int member, size_t at) {
  const uint64_t bits = bits_at(make_rng_key(7, "comm_cases"), (static_cast<uint64_t>(member) << 32) + at);
  return static_cast<float>(static_cast<int64_t>(bits % 2000001) - 1000000) * 1e-3f;
}

template <class T>
std::vector<T> values_of(int member, size_t count) {
  std::vector<T> values;
  for (size_t i = 0; i < count; ++i) values.push_back(static_cast<T>(value_of(member, i)));
  return values;
}

template <class T>
std::vector<T> sum_in_order(const Comm& comm, size_t count) {
  std::vector<T> sum = values_of<T>(0, count);
  for (int m = 1; m < comm.size(); ++m) {
    const std::vector<T> more = values_of<T>(m, count);
    for (size_t i = 0; i < count; ++i) sum[i] += more[i];
  }
  return sum;
}

template <class T>
std::vector<T> largest(const Comm& comm, size_t count) {
  std::vector<T> most = values_of<T>(0, count);
  for (int m = 1; m < comm.size(); ++m) {
    const std::vector<T> more = values_of<T>(m, count);
    for (size_t i = 0; i < count; ++i) most[i] = std::max(most[i], more[i]);
  }
  return most;
}

template <class T>
void expect_sums(Comm& comm) {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1000}}) {
    std::vector<T> values = values_of<T>(comm.rank(), count);
    comm.all_reduce_sum(std::span(values));
    EXPECT_EQ(values, sum_in_order<T>(comm, count)) << count;
  }
}

void sum_floats(Comm& comm, Stream&) { expect_sums<float>(comm); }
void sum_doubles(Comm& comm, Stream&) { expect_sums<double>(comm); }
void sum_integers(Comm& comm, Stream&) { expect_sums<int64_t>(comm); }

void take_maxima(Comm& comm, Stream&) {
  for (const size_t count : {size_t{0}, size_t{5}}) {
    std::vector<double> doubles = values_of<double>(comm.rank(), count);
    std::vector<int64_t> integers = values_of<int64_t>(comm.rank(), count);
    comm.all_reduce_max(std::span(doubles));
    comm.all_reduce_max(std::span(integers));
    EXPECT_EQ(doubles, largest<double>(comm, count));
    EXPECT_EQ(integers, largest<int64_t>(comm, count));
  }
}

void sum_at_every_root(Comm& comm, Stream&) {
  for (int root = 0; root < comm.size(); ++root) {
    std::vector<float> values = values_of<float>(comm.rank(), 9), nothing;
    comm.reduce_sum(values, root);
    comm.reduce_sum(nothing, root);
    EXPECT_EQ(values, comm.rank() == root ? sum_in_order<float>(comm, 9) : values_of<float>(comm.rank(), 9)) << root;
  }
}

void broadcast_from_every_root(Comm& comm, Stream&) {
  for (int root = 0; root < comm.size(); ++root) {
    std::vector<float> values = values_of<float>(comm.rank(), 5);
    comm.broadcast(std::as_writable_bytes(std::span(values)), root);
    comm.broadcast({}, root);
    EXPECT_EQ(values, values_of<float>(root, 5)) << root;
    EXPECT_EQ(broadcast_text(comm, comm.rank() == root ? "a text" : "", root), "a text");
  }
}

void wait_for_all(Comm& comm, Stream&) {
  for (int i = 0; i < 3; ++i) comm.barrier();
}

// Rows that member `from` sends to member `to`: some pairs have none.
int64_t rows_between(int from, int to) { return (3 * from + 5 * to) % 4; }

// Rows of two values with a gap of one row between those of any two members.
struct UnevenRows {
  explicit UnevenRows(const Comm& comm, float least = 0) : least_(least) {
    const int own = comm.rank();
    x.row_bytes = 2 * sizeof(float);
    int64_t out = 1, in = 1;
    for (int m = 0; m < comm.size(); ++m) {
      x.send_offsets.push_back(out), x.send_counts.push_back(rows_between(own, m));
      x.receive_offsets.push_back(in), x.receive_counts.push_back(rows_between(m, own));
      out += rows_between(own, m) + 1, in += rows_between(m, own) + 1;
    }
    send.resize(static_cast<size_t>(2 * out)), receive.resize(static_cast<size_t>(2 * in), kGap);
    expected = receive;
    for (int m = 0; m < comm.size(); ++m)
      fill(send, x.send_offsets, own, m, m), fill(expected, x.receive_offsets, m, own, m);
    x.send = send.data(), x.receive = receive.data();
  }
  static constexpr float kGap = -77.0f;
  RowExchange x;
  std::vector<float> send, receive, expected;

 private:
  void fill(std::vector<float>& rows, const std::vector<int64_t>& offsets, int from, int to, int slot) const {
    for (int64_t i = 0; i < 2 * rows_between(from, to); ++i)
      rows[static_cast<size_t>(2 * offsets[static_cast<size_t>(slot)] + i)] =
          least_ + static_cast<float>(1000 * from + 10 * to) + static_cast<float>(i);
  }
  float least_;
};

void exchange_uneven_rows(Comm& comm, Stream&) {
  UnevenRows rows(comm);
  const auto pending = comm.all_to_all(rows.x);
  pending->wait();
  pending->wait();  // twice is legal
  EXPECT_EQ(rows.receive, rows.expected);
}

// Several under way, which end in another order; and one that nobody waits for.
void exchange_several_at_once(Comm& comm, Stream& stream) {
  UnevenRows first(comm), second(comm), third(comm);
  {
    const auto a = comm.all_to_all(first.x), b = comm.all_to_all(stream, second.x), c = comm.all_to_all(third.x);
    b->wait();
    EXPECT_EQ(second.receive, second.expected);
    a->wait();
    EXPECT_EQ(first.receive, first.expected);
  }
  EXPECT_EQ(third.receive, third.expected);
}

void exchange_no_rows(Comm& comm, Stream& stream) {
  const std::vector<int64_t> none(static_cast<size_t>(comm.size()));
  const RowExchange nothing{nullptr, none, none, nullptr, none, none, 8};
  comm.all_to_all(nothing)->wait();
  comm.all_to_all(stream, nothing)->wait();
  comm.all_to_all(nothing);
}

// Rows of the same sizes, which only their order tells apart; others that only the last member sends, to the first one;
// and none.
void exchange_together(Comm& comm, Stream& stream) {
  UnevenRows first(comm), second(comm, 1e5f);
  const std::vector<int64_t> none(static_cast<size_t>(comm.size()));
  const RowExchange nothing{nullptr, none, none, nullptr, none, none, 8};
  const bool sends = comm.rank() == comm.size() - 1, receives = comm.rank() == 0;
  const int64_t sent = 5;
  int64_t received = -1;
  RowExchange one{&sent, none, none, &received, none, none, 8};
  if (sends) one.send_counts.front() = 1;
  if (receives) one.receive_counts.back() = 1;
  const std::vector<RowExchange> all = {nothing, first.x, one, nothing, second.x};
  const auto pending = comm.all_to_all(stream, all);
  pending->wait();
  pending->wait();  // twice is legal
  EXPECT_EQ(first.receive, first.expected);
  EXPECT_EQ(second.receive, second.expected);
  EXPECT_EQ(received, receives ? 5 : -1);
  comm.all_to_all(stream, std::vector<RowExchange>{nothing, nothing})->wait();
  comm.all_to_all(stream, std::vector<RowExchange>{})->wait();
  received = -1;
  comm.all_to_all(stream, all);  // nobody waits for it
  EXPECT_EQ(received, receives ? 5 : -1);
}

// The last member receives all and sends nothing.
void exchange_to_one_member(Comm& comm, Stream&) {
  const auto members = static_cast<size_t>(comm.size()), last = members - 1;
  const bool is_last = comm.rank() == comm.size() - 1;
  std::vector<int64_t> sent = {comm.rank()}, received(members, -1), places(members);
  std::iota(places.begin(), places.end(), 0);
  RowExchange x{sent.data(),
                std::vector<int64_t>(members),
                std::vector<int64_t>(members),
                received.data(),
                std::vector<int64_t>(members, is_last ? 1 : 0),
                places,
                8};
  x.send_counts[last] = 1;
  comm.all_to_all(x)->wait();
  for (size_t m = 0; m < members; ++m) EXPECT_EQ(received[m], is_last ? static_cast<int64_t>(m) : -1);
}

// Around a ring, two each way in the order of their numbers; the second is empty.
void send_around_a_ring(Comm& comm, Stream& stream) {
  if (comm.size() == 1) return;
  const int next = (comm.rank() + 1) % comm.size(), before = (comm.rank() + comm.size() - 1) % comm.size();
  const std::vector<float> out = values_of<float>(comm.rank(), 3), out_again = values_of<float>(comm.rank() + 100, 2);
  std::vector<float> in(3), in_again(2);
  {
    const auto first = comm.send(std::as_bytes(std::span(out)), next), empty = comm.send({}, next);
    const auto last = comm.send(stream, std::as_bytes(std::span(out_again)), next);
    comm.receive(std::as_writable_bytes(std::span(in)), before)->wait();
    comm.receive({}, before)->wait();
    comm.receive(stream, std::as_writable_bytes(std::span(in_again)), before)->wait();
    last->wait();
  }
  EXPECT_EQ(in, values_of<float>(before, 3));
  EXPECT_EQ(in_again, values_of<float>(before + 100, 2));
}

// Messages and collectives have orders of their own.
void send_across_a_barrier(Comm& comm, Stream&) {
  const int peer = comm.rank() ^ 1;
  if (peer >= comm.size()) return comm.barrier();
  const int64_t out = comm.rank();
  int64_t in = -1;
  const auto sent = comm.send(std::as_bytes(std::span(&out, 1)), peer);
  const auto received = comm.receive(std::as_writable_bytes(std::span(&in, 1)), peer);
  comm.barrier();
  received->wait();
  sent->wait();
  EXPECT_EQ(in, peer);
}

void sum_on_a_stream(Comm& comm, Stream& stream) {
  std::vector<float> values = values_of<float>(comm.rank(), 33);
  comm.all_reduce_sum(stream, std::span<float>(values))->wait();
  EXPECT_EQ(values, sum_in_order<float>(comm, 33));
}

// counts: elements of each member's part.
void scatter_and_gather(Comm& comm, Stream& stream, const std::vector<int64_t>& counts) {
  const auto own = static_cast<size_t>(comm.rank());
  const auto total = static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  const auto begin = static_cast<size_t>(std::accumulate(counts.begin(), counts.begin() + comm.rank(), int64_t{0}));
  std::vector<int64_t> bytes = counts;
  for (int64_t& count : bytes) count *= 4;
  std::vector<float> values = values_of<float>(comm.rank(), total);
  comm.reduce_scatter_sum(stream, values, counts)->wait();
  const std::vector<float> sums = sum_in_order<float>(comm, total);
  for (size_t i = begin; i < begin + static_cast<size_t>(counts[own]); ++i) ASSERT_EQ(values[i], sums[i]) << i;
  const auto pending = comm.all_gather(stream, std::as_writable_bytes(std::span(values)), bytes);
  comm.barrier();  // others may be under way meanwhile
  pending->wait();
  EXPECT_EQ(values, sums);
}

void scatter_and_gather_uneven_parts(Comm& comm, Stream& stream) {
  std::vector<int64_t> counts;
  for (int m = 0; m < comm.size(); ++m) counts.push_back(m % 3);
  scatter_and_gather(comm, stream, counts);
}

void scatter_and_gather_what_one_member_owns(Comm& comm, Stream& stream) {
  std::vector<int64_t> counts(static_cast<size_t>(comm.size()));
  counts.back() = 7;
  scatter_and_gather(comm, stream, counts);
}

// Large parts are summed in several rounds. The last member's part ends one round earlier.
void scatter_and_gather_large_parts(Comm& comm, Stream& stream) {
  if (comm.size() != 3) return;
  std::vector<int64_t> counts(static_cast<size_t>(comm.size()), 600001);
  counts.back() = 500000;
  scatter_and_gather(comm, stream, counts);
}

// Rows and columns of a grid, as of two axes of a mesh; keys turn the order of the columns around.
void split_into_a_grid(Comm& comm, Stream& stream) {
  const int width = comm.size() % 2 == 0 ? 2 : 1, row = comm.rank() / width, column = comm.rank() % width;
  const auto across = comm.split(row, column), down = comm.split(column, -row);
  EXPECT_EQ(across->size(), width);
  EXPECT_EQ(across->rank(), column);
  EXPECT_EQ(down->size(), comm.size() / width);
  EXPECT_EQ(down->rank(), down->size() - 1 - row);
  std::vector<int64_t> ranks = {comm.rank()};
  across->all_reduce_sum(std::span(ranks));
  EXPECT_EQ(ranks[0], width == 2 ? 4 * row + 1 : comm.rank());
  int64_t first = comm.rank();
  down->broadcast(std::as_writable_bytes(std::span(&first, 1)), 0);
  EXPECT_EQ(first, comm.size() - width + column);
  if (down->size() > 1 && down->size() < comm.size()) split_into_a_grid(*down, stream);
}

void split_with_equal_keys(Comm& comm, Stream&) {
  const auto same = comm.split(5, 0);
  EXPECT_EQ(same->rank(), comm.rank());
  EXPECT_EQ(same->size(), comm.size());
  const auto alone = comm.split(comm.rank(), 9);
  EXPECT_EQ(alone->size(), 1);
  alone->barrier();
}

void check_peers_in_peace(Comm& comm, Stream&) {
  comm.check_peers();
  comm.barrier();
}

}  // namespace

const std::vector<CommCase>& comm_cases() {
  static const std::vector<CommCase> cases = {
      {"sum_floats", sum_floats},
      {"sum_doubles", sum_doubles},
      {"sum_integers", sum_integers},
      {"take_maxima", take_maxima},
      {"sum_at_every_root", sum_at_every_root},
      {"broadcast_from_every_root", broadcast_from_every_root},
      {"wait_for_all", wait_for_all},
      {"exchange_uneven_rows", exchange_uneven_rows},
      {"exchange_several_at_once", exchange_several_at_once},
      {"exchange_no_rows", exchange_no_rows},
      {"exchange_together", exchange_together},
      {"exchange_to_one_member", exchange_to_one_member},
      {"send_around_a_ring", send_around_a_ring},
      {"send_across_a_barrier", send_across_a_barrier},
      {"sum_on_a_stream", sum_on_a_stream},
      {"scatter_and_gather_uneven_parts", scatter_and_gather_uneven_parts},
      {"scatter_and_gather_what_one_member_owns", scatter_and_gather_what_one_member_owns},
      {"scatter_and_gather_large_parts", scatter_and_gather_large_parts},
      {"split_into_a_grid", split_into_a_grid},
      {"split_with_equal_keys", split_with_equal_keys},
      {"check_peers_in_peace", check_peers_in_peace},
  };
  return cases;
}

void run_comm_cases(Comm& comm, Stream& stream) {
  for (const CommCase& c : comm_cases()) {
    SCOPED_TRACE(c.name);
    c.run(comm, stream);
  }
}

}  // namespace mw::test
