// Exchanges and messages under way of support/thread_comm.h.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/comm.h"
#include "support/thread_world.h"

namespace mw::test {

// One rank's place in a group.
struct Place {
  ThreadWorld& world;
  std::shared_ptr<ThreadGroup> group;
  int member = 0;
  int rank() const { return group->members[static_cast<size_t>(member)]; }
};

// What an exchange sends to and receives from each member, as bytes.
struct ExchangeParts {
  std::vector<std::span<const std::byte>> sent;
  std::vector<std::span<std::byte>> received;
};

// Errors: internal, for lists of another length than the group, and for buffers that overlap.
ExchangeParts parts_of(const RowExchange& exchange, const Place& at);

// Of a meeting that this member has come to.
std::unique_ptr<Pending> make_exchange(Place at, std::shared_ptr<Meeting> meeting, ExchangeParts parts);

// Of a message that was opened; `peer` is the other member.
std::unique_ptr<Pending> make_sent(Place at, std::shared_ptr<Message> message, int peer,
                                   std::span<const std::byte> bytes);
std::unique_ptr<Pending> make_received(Place at, std::shared_ptr<Message> message, int peer,
                                       std::span<std::byte> bytes);

}  // namespace mw::test
