#include "layout/exchange_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace mw {
namespace {

int64_t sum(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

[[noreturn]] void refuse(int source, int member, const std::string& what) {
  fail(Exit::comm,
       fmt::format("member {} of the expert-parallel group got counts from member {} that do not agree: {}", member,
                   source, what),
       "the ranks may run different builds or run files; if they do not, this is a bug: report it with the run file");
}

void check(const KnownSource& source, int from, int member) {
  const auto negative = [](const std::vector<int64_t>& values) {
    return std::any_of(values.begin(), values.end(), [](int64_t n) { return n < 0; });
  };
  if (source.sent < 0 || source.own_units < 0 || negative(source.units) || negative(source.rows))
    refuse(from, member, "a negative number of rows");
  if (source.own_units > sum(source.rows))
    refuse(from, member, fmt::format("{} units for {} rows of experts", source.own_units, sum(source.rows)));
  if (source.own_units == 0 && sum(source.rows) > 0)
    refuse(from, member, fmt::format("no unit for {} rows of experts", sum(source.rows)));
  if (source.units.empty()) return;
  const int64_t most = *std::max_element(source.units.begin(), source.units.end()), all = sum(source.units);
  if (source.sent < most || source.sent > all)
    refuse(
        from, member,
        fmt::format("{} units sent, of which {} reach one rank and {} all ranks of the node", source.sent, most, all));
}

// Messages that lie one behind the other in their buffer.
class Messages {
 public:
  explicit Messages(int64_t first = 0) : next_(first) {}
  void add(int peer, int64_t rows) {
    if (rows > 0) list.push_back({peer, next_, rows});
    next_ += rows;
  }
  int64_t end() const { return next_; }
  std::vector<RowMessage> list;

 private:
  int64_t next_;
};

void plan_sends(const Islands& islands, int member, const SourceCounts& own, ExchangePlan& plan) {
  int64_t first = 0;
  for (int peer = 0; peer < islands.size(); ++peer) {
    const int64_t rows = own.sent[static_cast<size_t>(peer)];
    if (rows > 0) (islands.is_near(member, peer) ? plan.home : plan.far).send.push_back({peer, first, rows});
    first += rows;
  }
  plan.home.send_rows = plan.far.send_rows = first;
}

void plan_gateway(const Islands& islands, int member, std::span<const KnownSource> sources, ExchangePlan& plan) {
  const std::vector<int> served = islands.sources_of(member);
  const auto& island = islands.members[static_cast<size_t>(islands.island_of[static_cast<size_t>(member)])];
  Messages pilots, spread;
  for (const int source : served) pilots.add(source, sources[static_cast<size_t>(source)].sent);
  for (size_t place = 0; place < island.size(); ++place) {
    int64_t rows = 0;
    for (const int source : served) rows += sources[static_cast<size_t>(source)].units[place];
    spread.add(island[place], rows);
  }
  plan.far.receive = std::move(pilots.list);
  plan.far.receive_rows = pilots.end();
  plan.spread.send = std::move(spread.list);
  plan.spread.send_rows = spread.end();
}

void plan_arrival(const Islands& islands, int member, std::span<const KnownSource> sources, ExchangePlan& plan) {
  const auto& island = islands.members[static_cast<size_t>(islands.island_of[static_cast<size_t>(member)])];
  plan.by_source.resize(sources.size());
  const auto arrive = [&](int source, int64_t first) {
    const int64_t rows = sources[static_cast<size_t>(source)].own_units;
    plan.by_source[static_cast<size_t>(source)] = {first, rows};
    return rows;
  };
  Messages home;
  for (const int peer : island) home.add(peer, arrive(peer, home.end()));
  Messages spread(home.end());
  for (const int gateway : island) {
    int64_t rows = 0;
    for (const int source : islands.sources_of(gateway)) rows += arrive(source, spread.end() + rows);
    spread.add(gateway, rows);
  }
  plan.home.receive = std::move(home.list);
  plan.spread.receive = std::move(spread.list);
  plan.units = plan.home.receive_rows = plan.spread.receive_rows = spread.end();
}

}  // namespace

ExchangePlan plan_exchange(const Islands& islands, int member, const SourceCounts& own,
                           std::span<const KnownSource> sources) {
  MW_CHECK(std::ssize(sources) == islands.size(), "{} sources of {} members", sources.size(), islands.size());
  ExchangePlan plan;
  plan.slot_rows.assign(sources.front().rows.size(), 0);
  for (size_t s = 0; s < sources.size(); ++s) {
    check(sources[s], static_cast<int>(s), member);
    for (size_t slot = 0; slot < plan.slot_rows.size(); ++slot) plan.slot_rows[slot] += sources[s].rows[slot];
  }
  plan_sends(islands, member, own, plan);
  plan_gateway(islands, member, sources, plan);
  plan_arrival(islands, member, sources, plan);
  return plan;
}

CountRoute::CountRoute(const Islands& islands, int member, std::vector<int64_t> rank_offsets, int64_t chunks)
    : islands_(islands), member_(member), rank_offsets_(std::move(rank_offsets)), chunks_(chunks) {}

int64_t CountRoute::slots(int member) const {
  return rank_offsets_[static_cast<size_t>(member) + 1] - rank_offsets_[static_cast<size_t>(member)];
}

const std::vector<int>& CountRoute::island_of(int member) const {
  return islands_.members[static_cast<size_t>(islands_.island_of[static_cast<size_t>(member)])];
}

std::vector<int> CountRoute::told_by(int member) const {
  std::vector<int> sources = islands_.sources_of(member);
  sources.insert(std::upper_bound(sources.begin(), sources.end(), member), member);
  return sources;
}

int64_t CountRoute::far_words(int from, int to) const {
  if (islands_.is_near(from, to) || islands_.gateway(from, islands_.island_of[static_cast<size_t>(to)]) != to) return 0;
  int64_t words = 1;
  for (const int m : island_of(to)) words += 1 + slots(m);
  return chunks_ * words;
}

int64_t CountRoute::near_words(int from, int to) const {
  if (!islands_.is_near(from, to)) return 0;
  return chunks_ * std::ssize(told_by(from)) * (1 + slots(to));
}

std::vector<int64_t> CountRoute::far_message(std::span<const SourceCounts> own, int to) const {
  std::vector<int64_t> words;
  if (far_words_to(to) == 0) return words;
  for (const SourceCounts& counts : own) {
    words.push_back(counts.sent[static_cast<size_t>(to)]);
    for (const int m : island_of(to)) {
      words.push_back(counts.units[static_cast<size_t>(m)]);
      const auto rows = counts.rows.begin() + rank_offsets_[static_cast<size_t>(m)];
      words.insert(words.end(), rows, rows + slots(m));
    }
  }
  return words;
}

std::vector<int64_t> CountRoute::near_message(std::span<const SourceCounts> own,
                                              const std::vector<std::vector<int64_t>>& far, int to) const {
  std::vector<int64_t> words;
  if (near_words_to(to) == 0) return words;
  int64_t before = 1, island_words = 1;  // words of a chunk of a far message before those of `to`, and all of them
  for (const int m : island_of(to)) {
    if (m < to) before += 1 + slots(m);
    island_words += 1 + slots(m);
  }
  for (int64_t c = 0; c < chunks_; ++c) {
    for (const int source : told_by(member_)) {
      if (source == member_) {
        const SourceCounts& counts = own[static_cast<size_t>(c)];
        words.push_back(counts.sent[static_cast<size_t>(to)]);
        const auto rows = counts.rows.begin() + rank_offsets_[static_cast<size_t>(to)];
        words.insert(words.end(), rows, rows + slots(to));
      } else {
        const auto of_to = far[static_cast<size_t>(source)].begin() + c * island_words + before;
        words.insert(words.end(), of_to, of_to + 1 + slots(to));
      }
    }
  }
  return words;
}

std::vector<std::vector<KnownSource>> CountRoute::known(const std::vector<std::vector<int64_t>>& far,
                                                        const std::vector<std::vector<int64_t>>& near) const {
  std::vector<std::vector<KnownSource>> chunks(static_cast<size_t>(chunks_));
  for (std::vector<KnownSource>& sources : chunks) sources.resize(static_cast<size_t>(islands_.size()));
  const int64_t width = 1 + slots(member_);
  for (const int peer : island_of(member_)) {
    const std::vector<int> told = told_by(peer);
    auto word = near[static_cast<size_t>(peer)].begin();
    for (std::vector<KnownSource>& sources : chunks)
      for (const int source : told) {
        KnownSource& known = sources[static_cast<size_t>(source)];
        known.own_units = *word;
        known.rows.assign(word + 1, word + width);
        if (source == peer) known.sent = known.own_units;
        word += width;
      }
  }
  for (const int source : islands_.sources_of(member_)) {
    auto word = far[static_cast<size_t>(source)].begin();
    for (std::vector<KnownSource>& sources : chunks) {
      KnownSource& known = sources[static_cast<size_t>(source)];
      known.sent = *word++;
      for (const int m : island_of(member_)) {
        known.units.push_back(*word);
        word += 1 + slots(m);
      }
    }
  }
  return chunks;
}

}  // namespace mw
