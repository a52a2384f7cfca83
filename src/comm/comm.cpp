#include "comm/comm.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace mw {
namespace {

// Elements that a sum receives at a time, in all from all members: memory that no table of bytes knows.
constexpr int64_t kSumElements = int64_t{1} << 19;

// Whether members have parts of about equal size. Then each exchanges its part with all others at the same time; else,
// as with the parameters of ZeRO that have one owner, the parts move one after the other.
bool are_balanced(std::span<const int64_t> counts) {
  const int64_t largest = *std::max_element(counts.begin(), counts.end());
  const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  return largest * static_cast<int64_t>(counts.size()) <= 2 * all;
}

std::vector<int64_t> offsets_of(std::span<const int64_t> counts) {
  std::vector<int64_t> offsets(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), int64_t{0});
  return offsets;
}

// Sums a part of `values` on each member, in rank order and in rounds: while one is summed, the next one travels.
class PartSums {
 public:
  PartSums(Comm& comm, std::span<float> values, std::span<const int64_t> counts)
      : comm_(comm), values_(values), counts_(counts), offsets_(offsets_of(counts)) {
    const int64_t largest = *std::max_element(counts.begin(), counts.end());
    round_ = std::clamp<int64_t>(kSumElements / (comm.size() - 1), 1, largest);
    for (std::vector<float>& half : received_) half.resize(static_cast<size_t>(round_ * (comm.size() - 1)));
  }

  void run() {
    const int64_t rounds = (*std::max_element(counts_.begin(), counts_.end()) + round_ - 1) / round_;
    std::unique_ptr<Pending> next = rounds > 0 ? start(0) : nullptr;
    for (int64_t round = 0; round < rounds; ++round) {
      next->wait();
      next = round + 1 < rounds ? start(round + 1) : nullptr;
      add(round);
    }
  }

 private:
  // Elements of a member's part in a round.
  int64_t count(int member, int64_t round) const {
    return std::clamp<int64_t>(counts_[static_cast<size_t>(member)] - round * round_, 0, round_);
  }
  float* own(int64_t round) { return values_.data() + offsets_[static_cast<size_t>(comm_.rank())] + round * round_; }

  std::unique_ptr<Pending> start(int64_t round) {
    RowExchange x;
    x.row_bytes = sizeof(float);
    x.send = values_.data();
    x.receive = received_[static_cast<size_t>(round % 2)].data();
    for (int peer = 0, place = 0; peer < comm_.size(); ++peer) {
      const bool other = peer != comm_.rank();
      x.send_offsets.push_back(offsets_[static_cast<size_t>(peer)] + round * round_);
      x.send_counts.push_back(other ? count(peer, round) : 0);
      x.receive_offsets.push_back(place * round_);
      x.receive_counts.push_back(other ? count(comm_.rank(), round) : 0);
      place += other ? 1 : 0;
    }
    return comm_.all_to_all(x);
  }

  void add(int64_t round) {
    std::vector<const float*> parts;
    for (int member = 0, place = 0; member < comm_.size(); ++member)
      parts.push_back(member == comm_.rank() ? own(round)
                                             : received_[static_cast<size_t>(round % 2)].data() + round_ * place++);
    // Blocks that stay in cache, since this member's part is both a summand and the result.
    std::array<float, 4096> sum;
    const int64_t all = count(comm_.rank(), round);
    for (int64_t begin = 0; begin < all; begin += std::ssize(sum)) {
      const int64_t block = std::min<int64_t>(std::ssize(sum), all - begin);
      std::copy_n(parts[0] + begin, block, sum.begin());
      for (size_t member = 1; member < parts.size(); ++member)
        for (int64_t i = 0; i < block; ++i) sum[static_cast<size_t>(i)] += parts[member][begin + i];
      std::copy_n(sum.begin(), block, own(round) + begin);
    }
  }

  Comm& comm_;
  std::span<float> values_;
  std::span<const int64_t> counts_;
  std::vector<int64_t> offsets_;
  int64_t round_ = 1;  // elements of a part
  std::array<std::vector<float>, 2> received_;
};

// Several communications as one.
class AllPending : public Pending {
 public:
  void add(std::unique_ptr<Pending> started) { all_.push_back(std::move(started)); }
  void wait() override {
    for (const auto& each : all_) each->wait();
  }

 private:
  std::vector<std::unique_ptr<Pending>> all_;
};

}  // namespace

std::unique_ptr<Pending> Comm::all_reduce_sum(Stream& stream, std::span<float> values) {
  stream.wait();
  all_reduce_sum(values);
  return std::make_unique<DonePending>();
}

std::unique_ptr<Pending> Comm::all_to_all(Stream& stream, std::span<const RowExchange> exchanges) {
  stream.wait();
  auto started = std::make_unique<AllPending>();
  for (const RowExchange& exchange : exchanges) started->add(all_to_all(exchange));
  return started;
}

std::unique_ptr<Pending> Comm::send(Stream& stream, std::span<const std::byte> bytes, int to) {
  stream.wait();
  return send(bytes, to);
}

std::unique_ptr<Pending> Comm::receive(Stream& stream, std::span<std::byte> bytes, int from) {
  stream.wait();
  return receive(bytes, from);
}

std::unique_ptr<Pending> Comm::reduce_scatter_sum(Stream& stream, std::span<float> values,
                                                  std::span<const int64_t> counts) {
  stream.wait();
  bool is_empty = true;
  for_each_part(values, counts, [&](std::span<float>, int) { is_empty = false; });
  if (is_empty || size() == 1) return std::make_unique<DonePending>();
  if (are_balanced(counts)) PartSums(*this, values, counts).run();
  else for_each_part(values, counts, [&](std::span<float> part, int member) { reduce_sum(part, member); });
  return std::make_unique<DonePending>();
}

std::unique_ptr<Pending> Comm::all_gather(Stream& stream, std::span<std::byte> bytes, std::span<const int64_t> counts) {
  stream.wait();
  bool is_empty = true;
  for_each_part(bytes, counts, [&](std::span<std::byte>, int) { is_empty = false; });
  if (is_empty || size() == 1) return std::make_unique<DonePending>();
  if (!are_balanced(counts)) {
    for_each_part(bytes, counts, [&](std::span<std::byte> part, int member) { broadcast(part, member); });
    return std::make_unique<DonePending>();
  }
  const auto own = static_cast<size_t>(rank());
  RowExchange x;
  x.row_bytes = int64_t{1} << 20;  // or what divides all parts: MPI counts rows in 32 bits
  for (const int64_t count : counts) x.row_bytes = std::gcd(x.row_bytes, count);
  x.send = x.receive = bytes.data();
  for (const int64_t count : counts) x.receive_counts.push_back(count / x.row_bytes);
  x.receive_offsets = offsets_of(x.receive_counts);
  x.send_counts.assign(counts.size(), x.receive_counts[own]);
  x.send_offsets.assign(counts.size(), x.receive_offsets[own]);
  x.send_counts[own] = x.receive_counts[own] = 0;
  return all_to_all(x);
}

std::string broadcast_text(Comm& comm, const std::string& text, int root) {
  int64_t length = static_cast<int64_t>(text.size());
  comm.broadcast(std::as_writable_bytes(std::span(&length, 1)), root);
  std::string copy = text;
  copy.resize(static_cast<size_t>(length));
  comm.broadcast(std::as_writable_bytes(std::span(copy.data(), copy.size())), root);
  return copy;
}

}  // namespace mw
