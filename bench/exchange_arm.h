// Parts of bench_exchange: its options, the choices of tokens, and what it measures in turn.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/median.h"
#include "comm/world.h"
#include "config/run_spec.h"
#include "core/rng.h"
#include "core/trace.h"
#include "planner/exchange_time.h"

namespace mw::bench {

struct Options {
  std::vector<std::string> transports = {"flat", "halo", "bypass"};
  int64_t experts = 256, top_k = 8, width = 512, expert_width = 8, tokens = 256, ranks_per_node = 0, chunks = 1;
  double zipf = 0;
  uint64_t seed = 1;  // of the order of experts by popularity
  int repeats = 20;
  int phases = 4;  // 2: rows out and back, 4: gradients too
  std::string device = "cpu", json, platform;
};

inline RunSpec run_of(const Options& o, const std::string& transport, int ranks) {
  RunSpec run;
  run.native.vocab = 64;
  run.native.width = o.width;
  run.native.layers = 1;
  run.native.heads = 1;
  run.native.head_dim = 2;
  run.native.experts = o.experts;
  run.native.top_k = o.top_k;
  run.native.expert_width = o.expert_width;
  run.train.seq_len = o.tokens;
  run.train.global_batch = ranks;
  run.train.dtype = DType::bf16;
  run.moe.transport = transport;
  run.moe.row_chunks = o.chunks;
  run.moe.row_headroom = 4;
  run.mesh.ep = ranks;
  run.mesh.ranks_per_node = o.ranks_per_node;
  return run;
}

// Different experts for each token: those with the best scores, log p + Gumbel noise. p of the i-th expert in a
// shuffled order falls as 1 / i^zipf; 0: uniform.
inline std::vector<int32_t> draw_choices(const Options& o, int rank) {
  std::vector<int32_t> order(static_cast<size_t>(o.experts));
  std::iota(order.begin(), order.end(), 0);
  const RngKey shuffle = make_rng_key(o.seed, "order"),
               noise = make_rng_key(static_cast<uint64_t>(rank) + 2, "choices");
  for (size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[static_cast<size_t>(uniform_at(shuffle, i) * static_cast<double>(i))]);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < o.tokens; ++t) {
    std::vector<std::pair<double, int32_t>> scores;
    for (int64_t i = 0; i < o.experts; ++i) {
      const double u = uniform_at(noise, static_cast<uint64_t>(t * o.experts + i));
      scores.emplace_back(-o.zipf * std::log(static_cast<double>(i + 1)) - std::log(-std::log(std::max(u, 1e-12))),
                          order[static_cast<size_t>(i)]);
    }
    std::partial_sort(scores.begin(), scores.begin() + o.top_k, scores.end(), std::greater<>());
    for (int64_t k = 0; k < o.top_k; ++k) ids.push_back(scores[static_cast<size_t>(k)].second);
  }
  return ids;
}

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What is measured: rows out and back, gradients out and back, one phase after the other.
class Arm {
 public:
  static constexpr const char* kPhases[] = {"dispatch", "combine", "gradient_dispatch", "gradient_combine"};

  Arm(Comm& comm, std::string name) : comm_(comm), name_(std::move(name)) {}
  virtual ~Arm() = default;
  // Seconds of each phase by the slowest rank, without those of the experts' copies, and bytes that this rank sends in
  // it.
  void run(int phases, bool counts) {
    for (int p = 0; p < phases; ++p) {
      if (p == 0) prepare();
      const Trace::SentBytes before = sent_bytes();
      comm_.barrier();
      const double begin = now(), copies = run_phase(p);
      std::vector<double> seconds = {now() - begin - copies};
      comm_.all_reduce_max(std::span(seconds));
      if (!counts) continue;
      seconds_[p].push_back(seconds[0]);
      const Trace::SentBytes sent = sent_bytes();
      sent_[p] = {sent.all - before.all, sent.far - before.far};
    }
  }
  // The largest difference from what must come out.
  virtual double error() = 0;
  // profile: for predicted times; null: none.
  nlohmann::ordered_json result(int phases, const PlatformProfile* profile) {
    nlohmann::ordered_json row;
    row["transport"] = name_;
    for (int p = 0; p < phases; ++p) {
      std::vector<int64_t> bytes = {sent_[p].all, sent_[p].far};
      comm_.all_reduce_sum(std::span(bytes));
      row[kPhases[p]] = {{"median_ms", 1e3 * median(seconds_[p])}, {"bytes", bytes[0]}, {"far_bytes", bytes[1]}};
      if (profile == nullptr) continue;
      const std::optional<double> seconds = predict(static_cast<ExchangePhase>(p), *profile);
      if (seconds) row[kPhases[p]]["predicted_ms"] = 1e3 * *seconds;
    }
    return row;
  }
  const std::string& name() const { return name_; }

 protected:
  virtual void prepare() = 0;
  // Returns the seconds that the experts' copies took. All work is done when it returns.
  virtual double run_phase(int phase) = 0;
  virtual Trace::SentBytes sent_bytes() = 0;  // so far
  // Seconds; none: not predicted.
  virtual std::optional<double> predict(ExchangePhase, const PlatformProfile&) { return std::nullopt; }
  Comm& comm_;

 private:
  std::string name_;
  std::vector<double> seconds_[4];
  Trace::SentBytes sent_[4];
};

// HALO as algorithm 1 of the paper Piper prints it: every pair of ranks exchanges a block of the same size, here that
// of the largest one, in three phases, one after the other. Messages only: rows are neither packed nor checked.
class PrintedHalo : public Arm {
 public:
  static constexpr const char* kName = "printed_halo";
  PrintedHalo(World& world, const Options& o) : Arm(world.comm(), kName) {
    const int ranks = comm_.size(), own = comm_.rank();
    std::vector<int> all(static_cast<size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    const Islands islands =
        make_islands(all, o.ranks_per_node > 0 ? NodeMap{o.ranks_per_node, {}} : world.place().nodes);
    for (int i = 1; i < ranks; ++i) {
      const int m = (own + i) % ranks;
      if (islands.is_near(own, m)) near_.push_back(m);
      else if (islands.place_of[static_cast<size_t>(m)] == islands.place_of[static_cast<size_t>(own)])
        far_.push_back(m);
    }
    std::vector<int64_t> rows(all.size(), 0);
    for (const int32_t expert : draw_choices(o, own)) ++rows[static_cast<size_t>(expert * ranks / o.experts)];
    std::vector<int64_t> largest = {*std::max_element(rows.begin(), rows.end())};
    comm_.all_reduce_max(std::span(largest));
    block_ = static_cast<size_t>(largest[0] * o.width) * sizeof(bf16);
    send_.resize(all.size() * block_);
    receive_.resize(all.size() * block_);
  }
  double error() override { return 0; }

 private:
  void prepare() override {}
  double run_phase(int phase) override {
    if (phase % 2 == 0) {
      exchange(near_, 1);
      exchange(far_, near_.size() + 1);
      exchange(near_, far_.size());
    } else {
      exchange(near_, far_.size());
      exchange(far_, near_.size() + 1);
      exchange(near_, 1);
    }
    return 0;
  }
  Trace::SentBytes sent_bytes() override { return sent_; }

  // To and from each of `peers`, all at once.
  void exchange(const std::vector<int>& peers, size_t blocks) {
    const size_t bytes = blocks * block_;
    std::vector<std::unique_ptr<Pending>> messages;
    for (size_t i = 0; i < peers.size(); ++i)
      messages.push_back(comm_.receive(std::span(receive_).subspan(i * bytes, bytes), peers[i]));
    for (size_t i = 0; i < peers.size(); ++i)
      messages.push_back(comm_.send(std::span(send_).subspan(i * bytes, bytes), peers[i]));
    for (const auto& message : messages) message->wait();
    const auto sent = static_cast<int64_t>(peers.size() * bytes);
    sent_.all += sent;
    if (&peers == &far_) sent_.far += sent;
  }

  std::vector<int> near_, far_;
  size_t block_ = 0;
  std::vector<std::byte> send_, receive_;
  Trace::SentBytes sent_;
};

}  // namespace mw::bench
