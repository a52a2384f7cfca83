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

// The world of a rank of `threads`.
std::unique_ptr<World> join(Comm& threads) {
  JoinSpec spec;
  spec.rank = threads.rank();
  spec.size = threads.size();
  spec.host = "127.0.0.1";
  spec.port = choose_port(threads);
  spec.seconds = 60;
  spec.secret = key_from_secret("a secret of the test");
  return start_tcp_world(spec);
}

TEST(CommCases, HoldOverTcp) {
  for (const int ranks : {2, 3, 6})
    run_ranks(ranks, [](Comm& threads, Stream& stream) {
      const auto world = join(threads);
      run_comm_cases(world->comm(), stream);
      threads.barrier();  // nobody leaves while others are at work
    });
}

// Short sums go along a tree, long ones in levels, whose last parts are empty where there are few elements: whole
// numbers add up to the same in any order, and all ranks have the same bits of others.
TEST(TcpComm, SumsOfManyRanksAreCompleteAndEqual) {
  constexpr float kLarge = 1 << 20;
  for (const int ranks : {6, 18, 34})
    run_ranks(ranks, [&](Comm& threads, Stream&) {
      const auto world = join(threads);
      std::vector<size_t> counts = {1, 3, 100, 8000, 20000};
      if (ranks == 18) counts.push_back(1100000);  // in two pieces
      for (const size_t count : counts) {
        std::vector<int64_t> whole(count), most(count), sum(count);
        std::vector<float> rounded(count);
        for (size_t i = 0; i < count; ++i) {
          whole[i] = static_cast<int64_t>(i) * threads.rank();
          sum[i] = static_cast<int64_t>(i) * ranks * (ranks - 1) / 2;
          most[i] = (static_cast<int64_t>(i) + threads.rank()) % ranks;
          rounded[i] = (threads.rank() % 3 == 0 ? kLarge : 0.1f) * static_cast<float>(i + 1);
        }
        world->comm().all_reduce_sum(std::span(whole));
        world->comm().all_reduce_max(std::span(most));
        world->comm().all_reduce_sum(std::span(rounded));
        ASSERT_EQ(whole, sum) << count;
        ASSERT_EQ(most, std::vector<int64_t>(count, ranks - 1)) << count;
        std::vector<float> of_zero = rounded;
        world->comm().broadcast(std::as_writable_bytes(std::span(of_zero)), 0);
        ASSERT_EQ(rounded, of_zero) << count;
      }
      threads.barrier();
    });
}

// Short and long, whoever it is: those who wait for it end, and those who wait for these.
TEST(TcpComm, ARankThatLeavesInASumEndsAllOthers) {
  for (const size_t count : {size_t{1}, size_t{50000}})
    for (const int gone : {0, 5, 17})
      run_ranks(18, [&](Comm& threads, Stream&) {
        auto world = join(threads);
        std::vector<double> values(count, 1);
        world->comm().all_reduce_sum(std::span(values));
        Exit code = Exit::comm;
        try {
          if (threads.rank() == gone) fail(Exit::comm, "this rank leaves");
          world->comm().all_reduce_sum(std::span(values));
          code = Exit::ok;
        } catch (const Error& error) {
          code = error.code();
        }
        world.reset();
        EXPECT_EQ(code, Exit::comm) << "rank " << threads.rank() << " without " << gone << ", " << count;
        threads.barrier();
      });
}

}  // namespace
}  // namespace mw::test
