#include "model/token_shards.h"

#include "ops/columns.h"
#include "ops/token_layout.h"

namespace mw {

TokenShards::TokenShards(const Plan& plan, Comm& tp, TensorStore& store, Stream& stream) : tp_(tp) {
  if (is_whole()) return;
  most_ = block_of(plan.batch.tokens(), tp_.size(), 0).count;
  order_ = store.fixed("work.shard_order");
  std::vector<int32_t> order;
  for (int64_t t = 0; t < most_; ++t)
    for (int64_t member = 0; member < tp_.size(); ++member) order.push_back(static_cast<int32_t>(member * most_ + t));
  write_values<int32_t>(stream, order, order_);
}

RowExchange TokenShards::exchange(TensorView shape_TD) const {
  RowExchange x;
  x.row_bytes = shape_TD.cols() * size_of(shape_TD.dtype);
  const auto members = static_cast<size_t>(tp_.size());
  x.send_counts.resize(members);
  x.send_offsets.resize(members);
  x.receive_counts.resize(members);
  x.receive_offsets.resize(members);
  return x;
}

TensorView TokenShards::gather(Stream& stream, TensorView shard_TD, int64_t tokens, TensorView into_TD) const {
  if (is_whole()) return shard_TD;
  const TensorView whole = take_front(into_TD, {tokens, shard_TD.cols()});
  RowExchange x = exchange(shard_TD);
  x.send = shard_TD.data;
  x.receive = whole.data;
  for (int member = 0; member < tp_.size(); ++member) {
    const Block block = block_of(tokens, tp_.size(), member);
    const auto m = static_cast<size_t>(member);
    x.send_counts[m] = shard_TD.dim(0);
    x.receive_counts[m] = block.count;
    x.receive_offsets[m] = block.begin;
  }
  const TraceScope scope(stream.trace(), Work::exchange, "gather_tokens");
  tp_.all_to_all(stream, x)->wait();
  return whole;
}

void TokenShards::sum(Stream& stream, TensorView part_TD, TensorView arrivals_TD, TensorView out_TD) const {
  if (is_whole()) return;
  const int64_t tokens = part_TD.dim(0), members = tp_.size(), own_count = own(tokens).count;
  const TensorView arrivals = take_front(arrivals_TD, {members * most_, part_TD.cols()});
  RowExchange x = exchange(part_TD);
  x.send = part_TD.data;
  x.receive = arrivals.data;
  for (int64_t member = 0; member < members; ++member) {
    const Block block = block_of(tokens, members, member);
    const auto m = static_cast<size_t>(member);
    x.send_counts[m] = block.count;
    x.send_offsets[m] = block.begin;
    x.receive_counts[m] = own_count;
    x.receive_offsets[m] = member * most_;
  }
  const TraceScope scope(stream.trace(), Work::exchange, "sum_tokens");
  tp_.all_to_all(stream, x)->wait();
  combine_rows(stream, arrivals, take_front(order_, {own_count, members}), {}, {},
               take_front(out_TD, {own_count, part_TD.cols()}));
}

void TokenShards::share(Stream& stream, TensorView own, TensorView all) const {
  MW_CHECK(all.bytes() == tp_.size() * own.bytes(), "{} of {} ranks in {}", own.describe(), tp_.size(), all.describe());
  RowExchange x = exchange(own.reshape({1, own.numel()}));
  x.send = own.data;
  x.receive = all.data;
  for (int member = 0; member < tp_.size(); ++member) {
    const auto m = static_cast<size_t>(member);
    x.send_counts[m] = x.receive_counts[m] = 1;
    x.receive_offsets[m] = member;
  }
  const TraceScope scope(stream.trace(), Work::exchange, "share_over_tp");
  tp_.all_to_all(stream, x)->wait();
}

void TokenShards::add_up(Stream& stream, TensorView own, TensorView all) const {
  const int64_t count = own.numel(), members = tp_.size();
  if (is_whole() || count == 0) return;
  const TensorView parts = take_front(all, {members, count});
  share(stream, own, parts);
  sum_columns(stream, {parts}, {own.reshape({1, count})}, count);
}

}  // namespace mw
