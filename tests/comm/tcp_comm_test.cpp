// The cases of every Comm over TCP: the threads of a world of threads join one another as processes do.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <span>

#include "comm/bootstrap/socket.h"
#include "comm/bootstrap/tcp_join.h"
#include "comm/comm_cases.h"
#include "comm/world_tcp.h"
#include "support/thread_comm.h"

namespace mw::test {
namespace {

// One that nobody listens at now, the same for all.
uint16_t choose_port(Comm& comm) {
  uint16_t port = 0;
  if (comm.rank() == 0) listen_at(htonl(INADDR_LOOPBACK), port);
  comm.broadcast(std::as_writable_bytes(std::span(&port, 1)), 0);
  return port;
}

TEST(CommCases, HoldOverTcp) {
  for (const int ranks : {2, 3, 6})
    run_ranks(ranks, [](Comm& threads, Stream& stream) {
      JoinSpec spec;
      spec.rank = threads.rank();
      spec.size = threads.size();
      spec.host = "127.0.0.1";
      spec.port = choose_port(threads);
      spec.seconds = 60;
      spec.secret = key_from_secret("a secret of the test");
      const auto world = start_tcp_world(spec);
      run_comm_cases(world->comm(), stream);
      threads.barrier();  // nobody leaves while others are at work
    });
}

}  // namespace
}  // namespace mw::test
