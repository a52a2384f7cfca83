#include "comm/comm.h"

namespace mw {

std::unique_ptr<Pending> Comm::all_reduce_sum(Stream& stream, std::span<float> values) {
  stream.wait();
  all_reduce_sum(values);
  return std::make_unique<DonePending>();
}

std::unique_ptr<Pending> Comm::all_to_all(Stream& stream, const RowExchange& exchange) {
  stream.wait();
  return all_to_all(exchange);
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
  for_each_part(values, counts, [&](std::span<float> part, int member) { reduce_sum(part, member); });
  return std::make_unique<DonePending>();
}

std::unique_ptr<Pending> Comm::all_gather(Stream& stream, std::span<std::byte> bytes, std::span<const int64_t> counts) {
  stream.wait();
  for_each_part(bytes, counts, [&](std::span<std::byte> part, int member) { broadcast(part, member); });
  return std::make_unique<DonePending>();
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
