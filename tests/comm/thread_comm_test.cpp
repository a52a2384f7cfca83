// The world of threads: it does what every Comm must do, and names what a real one would hang at.
#include "support/thread_comm.h"

#include <chrono>
#include <cmath>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/comm_cases.h"
#include "comm/world.h"
#include "formats/helpers.h"

namespace mw::test {
namespace {

TEST(CommCases, HoldAlone) {
  Stream stream(1);
  run_comm_cases(*make_self_comm(), stream);
}

TEST(CommCases, HoldAmongThreads) {
  for (const int ranks : {1, 2, 3, 4, 5, 8, 16}) run_ranks(ranks, run_comm_cases);
}

// The groups of both axes of a 2 x 3 mesh. Each rank is a member of several groups at once.
TEST(CommCases, HoldInGroupsOfTwoAxes) {
  run_ranks(6, [](Comm& world, Stream& stream) {
    const auto rows = world.split(world.rank() / 3, world.rank()),
               columns = world.split(world.rank() % 3, -world.rank());
    run_comm_cases(*rows, stream);
    run_comm_cases(*columns, stream);
    run_comm_cases(world, stream);
  });
}

TEST(CommCases, HoldInGroupsOfAMesh) {
  MeshSpec spec;
  spec.tp = spec.pp = spec.ep = 2;
  run_ranks(16, [&](Comm& world, Stream& stream) {
    const MeshComms comms = make_mesh_comms(world, make_mesh(spec, 16));
    for (Comm* comm :
         {comms.dp.get(), comms.tp.get(), comms.ep.get(), comms.edp.get(), comms.pp.get(), comms.stage.get()})
      run_comm_cases(*comm, stream);
  });
}

// The message of the error that the ranks must end with.
std::string error_of_ranks(int ranks, const RankBody& body, Exit code = Exit::comm) {
  return error_of([&] { run_ranks(ranks, body); }, code);
}

TEST(ThreadComm, RunsEveryRankOnAThreadAndStreamOfItsOwn) {
  std::vector<std::thread::id> threads(4);
  std::vector<Stream*> streams(4);
  run_ranks(4, [&](Comm& world, Stream& stream) {
    threads[static_cast<size_t>(world.rank())] = std::this_thread::get_id();
    streams[static_cast<size_t>(world.rank())] = &stream;
    EXPECT_EQ(stream.threads(), 1);
    WorkspaceFrame(stream.workspace()).take<float>(1000)[999] = 1;
    world.barrier();
  });
  for (size_t a = 0; a < 4; ++a)
    for (size_t b = 0; b < a; ++b) EXPECT_TRUE(threads[a] != threads[b] && streams[a] != streams[b]);
}

TEST(ThreadComm, NamesCallsOfTwoKinds) {
  const std::string text = error_of_ranks(3, [](Comm& world, Stream&) {
    std::vector<float> values(3);
    world.barrier();
    if (world.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (world.rank() == 2) world.broadcast(std::as_writable_bytes(std::span(values)), 1);
    else world.all_reduce_sum(std::span(values));
  });
  EXPECT_TRUE(contains(text, "rank 2: broadcast of 12 bytes from member 1 meets all_reduce_sum of 3 floats of rank "))
      << text;
  EXPECT_TRUE(contains(text, "(call 2 of ranks 0 1 2)")) << text;
}

TEST(ThreadComm, NamesCallsOfTwoSizesRootsAndTypes) {
  const auto mismatch = [](void (*call)(Comm&, size_t)) {
    return error_of_ranks(2, [call](Comm& world, Stream&) { call(world, static_cast<size_t>(world.rank())); });
  };
  const std::string sizes = mismatch([](Comm& world, size_t rank) {
    std::vector<float> values(3 + rank);
    world.all_reduce_sum(std::span(values));
  });
  EXPECT_TRUE(contains(sizes, "all_reduce_sum of 3 floats") && contains(sizes, "all_reduce_sum of 4 floats")) << sizes;
  const std::string roots = mismatch([](Comm& world, size_t rank) { world.broadcast({}, static_cast<int>(rank)); });
  EXPECT_TRUE(contains(roots, "from member 0") && contains(roots, "from member 1")) << roots;
  const std::string types = mismatch([](Comm& world, size_t rank) {
    std::vector<double> doubles(2);
    std::vector<int64_t> integers(2);
    if (rank == 0) world.all_reduce_max(std::span(doubles));
    else world.all_reduce_max(std::span(integers));
  });
  EXPECT_TRUE(contains(types, "2 doubles") && contains(types, "2 int64s")) << types;
}

TEST(ThreadComm, NamesAnExchangeWhoseSidesDisagree) {
  const std::string text = error_of_ranks(3, [](Comm& world, Stream&) {
    std::vector<int32_t> send(3), receive(9);
    RowExchange x{send.data(), {1, 1, 1}, {0, 1, 2}, receive.data(), {1, 1, 1}, {0, 3, 6}, 4};
    if (world.rank() == 1) x.receive_counts[2] = 2;
    world.all_to_all(x)->wait();
  });
  EXPECT_TRUE(contains(text, "all_to_all (call 1 of ranks 0 1 2): rank 2 sends 4 bytes to rank 1, which expects 8"))
      << text;
}

TEST(ThreadComm, NamesMessagesOfTwoSizes) {
  const std::string text = error_of_ranks(2, [](Comm& world, Stream&) {
    std::vector<std::byte> bytes(4 + static_cast<size_t>(world.rank()));
    if (world.rank() == 0) world.send(bytes, 1)->wait();
    else world.receive(bytes, 0)->wait();
  });
  EXPECT_TRUE(contains(text, "message 1 from member 0 to member 1 of ranks 0 1 has")) << text;
}

TEST(ThreadComm, NamesWhoEndedAndWhoWaits) {
  const std::string text = error_of_ranks(4, [](Comm& world, Stream&) {
    const auto pair = world.split(world.rank() / 2, 0);
    if (world.rank() == 3) return;
    pair->barrier();
    if (world.rank() < 2) world.barrier();
  });
  EXPECT_TRUE(contains(text, "rank 2 waits in barrier (call 1 of ranks 2 3) for ranks 3")) << text;
  EXPECT_TRUE(contains(text, "rank 0 waits in barrier (call 2 of ranks 0 1 2 3) for ranks 2 3")) << text;
  EXPECT_TRUE(contains(text, "ended: ranks 3")) << text;
}

// Each waits for a call that the other makes later.
TEST(ThreadComm, NamesRanksThatWaitForEachOther) {
  const std::string text = error_of_ranks(2, [](Comm& world, Stream&) {
    const auto a = world.split(0, 0), b = world.split(0, 0);
    (world.rank() == 0 ? a : b)->barrier();
    (world.rank() == 0 ? b : a)->barrier();
  });
  EXPECT_TRUE(contains(text, "no rank can go on; rank 0 waits in barrier")) << text;
  const std::string sends = error_of_ranks(2, [](Comm& world, Stream&) {
    std::vector<std::byte> out(1), in(1);
    world.send(out, 1 - world.rank())->wait();
    world.receive(in, 1 - world.rank())->wait();
  });
  EXPECT_TRUE(contains(sends, "rank 1 waits in send of message 1 to rank 0 for ranks 0")) << sends;
}

TEST(ThreadComm, WakesAllWhenARankThrows) {
  for (const bool late : {false, true}) {
    std::vector<std::string> heard(4);
    const std::string text = error_of_ranks(
        4,
        [&](Comm& world, Stream&) {
          if (world.rank() == 1) {
            if (late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
            fail(Exit::data, "a file is broken", "mend it");
          }
          try {
            world.barrier();
          } catch (const Error& error) {
            heard[static_cast<size_t>(world.rank())] = error.what();
            throw;
          }
        },
        Exit::data);
    EXPECT_EQ(text, "rank 1: a file is broken");
    for (const size_t rank : {0u, 2u, 3u})
      EXPECT_EQ(heard[rank], fmt::format("rank {}: barrier (call 1 of ranks 0 1 2 3): {}", rank, text)) << late;
  }
  EXPECT_THROW(run_ranks(3,
                         [](Comm& world, Stream&) {
                           if (world.rank() == 2) throw std::out_of_range("not of ours");
                           world.barrier();
                         }),
               std::out_of_range);
}

// An exchange and a message that were not waited for do not hold up an error.
TEST(ThreadComm, UnwindsThroughWhatIsUnderWay) {
  const auto body = [](Comm& world, Stream&) {
    std::vector<int32_t> send(2), receive(2);
    if (world.rank() == 1) {
      world.receive(std::as_writable_bytes(std::span(receive)), 0)->wait();
      world.receive(std::as_writable_bytes(std::span(receive)), 0)->wait();
    }
    const auto rows = world.all_to_all({send.data(), {1, 1}, {0, 1}, receive.data(), {1, 1}, {0, 1}, 4});
    const auto sent = world.send(std::as_bytes(std::span(send)), 1);
    fail(Exit::internal, "it fails");
  };
  EXPECT_EQ(error_of_ranks(2, body, Exit::internal), "rank 0: it fails");
}

TEST(ThreadComm, TellsPeersOfAFailure) {
  error_of_ranks(2, [](Comm& world, Stream&) {
    if (world.rank() == 0) fail(Exit::comm, "gone");
    for (;;) {
      std::this_thread::yield();
      world.check_peers();
    }
  });
}

TEST(ThreadComm, NamesWhatIsLeft) {
  std::vector<int32_t> send(2), receive(2);
  EXPECT_TRUE(contains(
      error_of_ranks(2,
                     [&](Comm& world, Stream&) {
                       if (world.rank() == 0)
                         world.all_to_all({send.data(), {1, 1}, {0, 1}, receive.data(), {1, 0}, {0, 0}, 4})->wait();
                     }),
      "all_to_all (call 1 of ranks 0 1) was never called by ranks 1"));
  EXPECT_TRUE(contains(error_of_ranks(2,
                                      [&](Comm& world, Stream&) {
                                        std::vector<std::byte> bytes(1);
                                        try {
                                          const auto sent = world.rank() == 0 ? world.send(bytes, 1) : nullptr;
                                          throw std::runtime_error("unwinds");
                                        } catch (const std::runtime_error&) {
                                        }
                                      }),
                       "message 1 from rank 0 to rank 1 was never received"));
}

// Rank 1 posts its exchange when rank 0 has long had its rows out, and only then may rank 0 read.
TEST(ThreadComm, ExchangesGoOnBesideOtherWork) {
  run_ranks(2, [](Comm& world, Stream&) {
    const auto signal = world.split(0, 0);
    float send = static_cast<float>(world.rank() + 5), receive = 0;
    std::vector<int64_t> out(2), in(2), places(2);
    // Rank 0 only sends, rank 1 only receives.
    if (world.rank() == 0) out[1] = 1;
    else in[0] = 1;
    if (world.rank() == 1) signal->barrier();  // after rank 0 has waited
    const auto pending = world.all_to_all({&send, out, places, &receive, in, places, 4});
    EXPECT_EQ(std::isnan(receive), world.rank() == 1);  // what arrives is not there before it is waited for
    pending->wait();
    if (world.rank() == 0) signal->barrier();
    EXPECT_EQ(receive, world.rank() == 1 ? 5.0f : 0.0f);
  });
}

TEST(ThreadComm, NamesWhoTouchesWhatIsSent) {
  const std::string text = error_of_ranks(2, [](Comm& world, Stream&) {
    std::vector<float> send = {1, 2}, receive(2);
    const auto pending = world.all_to_all({send.data(), {1, 1}, {0, 1}, receive.data(), {1, 1}, {0, 1}, 4});
    if (world.rank() == 1) send[0] = 3;
    pending->wait();
    world.barrier();
  });
  EXPECT_EQ(text, "rank 1: what all_to_all sends was touched before it was waited for");
}

TEST(ThreadComm, RefusesBuffersThatOverlap) {
  const std::string text = error_of_ranks(
      2,
      [](Comm& world, Stream&) {
        std::vector<float> rows(4);
        world.all_to_all({rows.data(), {1, 1}, {0, 1}, rows.data(), {1, 1}, {1, 2}, 4})->wait();
      },
      Exit::internal);
  EXPECT_TRUE(contains(text, "all_to_all receives where it sends")) << text;
  // A member's rows for itself may overlap, as in a group of one.
  run_ranks(2, [](Comm& world, Stream&) {
    const auto own = static_cast<size_t>(world.rank());
    std::vector<float> rows = {0, 1, 2, 3};
    std::vector<int64_t> counts(2), from(2, 0), to(2, 1);
    counts[own] = 3;
    world.all_to_all({rows.data(), counts, from, rows.data(), counts, to, 4})->wait();
    EXPECT_EQ(rows, (std::vector<float>{0, 0, 1, 2}));
  });
}

TEST(ThreadComm, NotesWhereARankWaits) {
  run_ranks(2, [](Comm& world, Stream&) {
    const auto pair = world.split(0, 0);
    EXPECT_EQ(pair->progress(), world.progress());
    EXPECT_EQ(world.progress()->read().collectives, 1);
    pair->barrier();
    EXPECT_EQ(world.progress()->read().collectives, 2);
    EXPECT_EQ(world.progress()->read().awaited, 0);
  });
}

}  // namespace
}  // namespace mw::test
