// A World of a group that a test has, all of its ranks on one node.
#pragma once

#include "comm/world.h"

namespace mw::test {

class CommWorld : public World {
 public:
  // `comm` must outlive it.
  explicit CommWorld(Comm& comm) : comm_(comm) {}
  Comm& comm() override { return comm_; }
  std::string library() const override { return "test"; }
  NodePlace place() const override { return {comm_.rank(), comm_.size()}; }
  int nodes() const override { return 1; }
  JoinKey key() const override { return {}; }
  // Ends the rank as an error, which ends the others.
  [[noreturn]] void abort(Exit code) override { fail(code, "the job was aborted"); }

 private:
  Comm& comm_;
};

}  // namespace mw::test
