#include "moe/replica_exchange.h"

#include <functional>
#include <memory>
#include <vector>

#include "ops/elementwise.h"

namespace mw {
namespace {

// A replica: its rank, and its place among the replica slots there.
struct Replica {
  int ep_rank = 0;
  int64_t slot = 0;
};

void for_each_replica(const ExpertPlacement& placement,
                      const std::function<void(const ExpertHome& home, const Replica& replica)>& body) {
  if (!placement.has_replicas()) return;
  const std::vector<int64_t> offsets = placement.rank_offsets();
  for (const std::vector<ExpertHome>& homes : placement.homes)
    for (size_t i = 1; i < homes.size(); ++i) {
      const auto rank = static_cast<size_t>(homes[i].ep_rank);
      body(homes.front(), {homes[i].ep_rank, homes[i].slot - (offsets[rank + 1] - offsets[rank])});
    }
}

std::vector<TensorView> forms_of(const Weight& weight) {
  if (weight.packed_forward.data == nullptr) return {weight.values};
  if (weight.packed_backward.data == weight.packed_forward.data) return {weight.packed_forward};
  return {weight.packed_forward, weight.packed_backward};
}

}  // namespace

void add_replica_gradients(Stream& stream, Comm& ep, const ExpertPlacement& placement, TensorView homes,
                           TensorView replicas, TensorView received, Fault fault) {
  std::vector<std::unique_ptr<Pending>> sends;
  for_each_replica(placement, [&](const ExpertHome& home, const Replica& replica) {
    if (replica.ep_rank == ep.rank())
      sends.push_back(ep.send(stream, bytes_of(replicas.at(replica.slot)), home.ep_rank));
    if (home.ep_rank != ep.rank()) return;
    const TensorView sum = homes.at(home.slot), part = take_front(received, {sum.numel()});
    ep.receive(stream, bytes_of(part), replica.ep_rank)->wait();
    if (fault != Fault::lost_replica_gradient) add(stream, sum, part, sum);
    if (fault == Fault::double_replica_gradient) add(stream, sum, part, sum);
  });
  for (auto& send : sends) send->wait();
}

CopiedBytes copy_to_replicas(Stream& stream, Comm& ep, const ExpertPlacement& placement, std::span<const Weight> homes,
                             std::span<const Weight> replicas) {
  CopiedBytes bytes;
  std::vector<std::unique_ptr<Pending>> messages;
  for_each_replica(placement, [&](const ExpertHome& home, const Replica& replica) {
    if (home.ep_rank == ep.rank())
      for (const TensorView& form : forms_of(homes[static_cast<size_t>(home.slot)])) {
        messages.push_back(ep.send(stream, bytes_of(form), replica.ep_rank));
        bytes.sent += form.bytes();
      }
    if (replica.ep_rank == ep.rank())
      for (const TensorView& form : forms_of(replicas[static_cast<size_t>(replica.slot)])) {
        messages.push_back(ep.receive(stream, bytes_of(form), home.ep_rank));
        bytes.received += form.bytes();
      }
  });
  for (auto& message : messages) message->wait();
  return bytes;
}

}  // namespace mw
