// What every Comm must do, whatever carries it: one table of cases, each run by all members of a group of any size.
#pragma once

#include <vector>

#include "comm/comm.h"

namespace mw::test {

struct CommCase {
  const char* name;
  void (*run)(Comm& comm, Stream& stream);  // collective over the group; fails by GoogleTest
};

const std::vector<CommCase>& comm_cases();

// All of them, in order, each under its name.
void run_comm_cases(Comm& comm, Stream& stream);

}  // namespace mw::test
