#include "moe/transports/count_exchange.h"

#include <functional>

namespace mw {
namespace {

using Words = std::vector<std::vector<int64_t>>;  // by member

// Sends out[m] to each member m; returns what came, words_from(m) from each.
Words exchange_words(Comm& ep, const Words& out, const std::function<int64_t(int)>& words_from) {
  RowExchange x;
  x.row_bytes = sizeof(int64_t);
  std::vector<int64_t> send;
  int64_t received = 0;
  for (int m = 0; m < ep.size(); ++m) {
    const std::vector<int64_t>& words = out[static_cast<size_t>(m)];
    x.send_offsets.push_back(std::ssize(send));
    x.send_counts.push_back(std::ssize(words));
    send.insert(send.end(), words.begin(), words.end());
    x.receive_offsets.push_back(received);
    x.receive_counts.push_back(words_from(m));
    received += x.receive_counts.back();
  }
  std::vector<int64_t> receive(static_cast<size_t>(received));
  x.send = send.data();
  x.receive = receive.data();
  ep.all_to_all(x)->wait();
  Words in;
  for (size_t m = 0; m < out.size(); ++m) {
    const auto first = receive.begin() + x.receive_offsets[m];
    in.emplace_back(first, first + x.receive_counts[m]);
  }
  return in;
}

}  // namespace

std::vector<ExchangePlan> exchange_counts(Comm& ep, const Islands& islands, const std::vector<int64_t>& rank_offsets,
                                          const std::vector<SourceCounts>& own) {
  const int member = ep.rank();
  const CountRoute route(islands, member, rank_offsets, std::ssize(own));
  Words out(static_cast<size_t>(ep.size())), far(out.size());
  if (islands.count() > 1) {
    for (int m = 0; m < ep.size(); ++m) out[static_cast<size_t>(m)] = route.far_message(own, m);
    far = exchange_words(ep, out, [&](int m) { return route.far_words_from(m); });
  }
  for (int m = 0; m < ep.size(); ++m) out[static_cast<size_t>(m)] = route.near_message(own, far, m);
  const Words near = exchange_words(ep, out, [&](int m) { return route.near_words_from(m); });
  const std::vector<std::vector<KnownSource>> known = route.known(far, near);
  std::vector<ExchangePlan> plans;
  for (size_t c = 0; c < own.size(); ++c) plans.push_back(plan_exchange(islands, member, own[c], known[c]));
  return plans;
}

}  // namespace mw
