#include "core/stream.h"

#include <cstdint>
#include <vector>

#include "formats/helpers.h"

namespace mw::test {
namespace {

struct alignas(64) Block {
  std::byte bytes[64];
};

TEST(Workspace, FramesNest) {
  std::vector<Block> memory(16);
  Workspace workspace;
  workspace.attach(memory.data(), 16 * 64);
  void* first = nullptr;
  {
    WorkspaceFrame outer(workspace);
    float* a = outer.take<float>(3);  // rounded up to 64 bytes
    first = a;
    EXPECT_EQ(a, static_cast<void*>(memory.data()));
    void* inner_memory = nullptr;
    {
      WorkspaceFrame inner(workspace);
      inner_memory = inner.take_bytes(65);
      EXPECT_EQ(static_cast<Block*>(inner_memory), &memory[1]);
      EXPECT_EQ(static_cast<void*>(inner.take<char>(1)), &memory[3]);
    }
    EXPECT_EQ(outer.take_bytes(1), inner_memory);  // the inner frame gave its memory back
    EXPECT_EQ(reinterpret_cast<uintptr_t>(outer.take_bytes(0)) % 64, 0u);
  }
  WorkspaceFrame again(workspace);
  EXPECT_EQ(again.take_bytes(16 * 64), first);  // all of it is free again
  EXPECT_EQ(workspace.peak(), 16u * 64);
  EXPECT_EQ(workspace.capacity(), 16u * 64);
}

TEST(Workspace, PeakIsTheDeepest) {
  std::vector<Block> memory(8);
  Workspace workspace;
  workspace.attach(memory.data(), 8 * 64);
  { WorkspaceFrame(workspace).take_bytes(5 * 64); }
  { WorkspaceFrame(workspace).take_bytes(2 * 64); }
  EXPECT_EQ(workspace.peak(), 5u * 64);
}

TEST(Workspace, OverflowIsAnError) {
  std::vector<Block> memory(4);
  Workspace workspace;
  error_of([&] { WorkspaceFrame(workspace).take_bytes(1); }, Exit::internal);  // nothing attached
  workspace.attach(memory.data(), 4 * 64);
  {
    WorkspaceFrame frame(workspace);
    frame.take_bytes(3 * 64);
    EXPECT_TRUE(
        contains(error_of([&] { frame.take_bytes(65); }, Exit::internal), "128 bytes does not fit: 192 of 256"));
    EXPECT_NE(frame.take_bytes(64), nullptr);                                // what fits still does
    error_of([&] { workspace.attach(memory.data(), 64); }, Exit::internal);  // not while in use
  }
  EXPECT_EQ(workspace.peak(), 4u * 64);
  workspace.attach(memory.data(), 64);
  EXPECT_EQ(workspace.peak(), 0u);
}

struct CounterState : StreamState {
  int value = 0;
};
struct OtherState : StreamState {
  int value = 7;
};

TEST(Stream, KeepsOneStatePerType) {
  Stream stream(3), second(1);
  EXPECT_EQ(stream.threads(), 3);
  stream.state<CounterState>().value = 5;
  EXPECT_EQ(stream.state<OtherState>().value, 7);
  EXPECT_EQ(stream.state<CounterState>().value, 5);
  EXPECT_EQ(second.state<CounterState>().value, 0);
}

}  // namespace
}  // namespace mw::test
