#include <cstdlib>

#include "comm/world_tcp.h"

namespace mw {
namespace {

class LoneWorld : public World {
 public:
  Comm& comm() override { return *comm_; }
  std::string library() const override { return "none (built without MPI)"; }
  NodePlace place() const override { return {}; }
  int nodes() const override { return 1; }
  JoinKey key() const override { return {}; }
  [[noreturn]] void abort(Exit code) override { std::_Exit(static_cast<int>(code)); }

 private:
  std::unique_ptr<Comm> comm_ = make_self_comm();
};

}  // namespace

std::unique_ptr<World> start_world(int*, char***) {
  if (const auto join = read_join_environment()) return start_tcp_world(*join);
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && std::atoi(value) > 1)
      fail(Exit::unsupported, fmt::format("{}={} ranks were launched, but this build has no MPI", name, value),
           "install MPI and build again, set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT to use TCP, or start one "
           "process");
  }
  return std::make_unique<LoneWorld>();
}

}  // namespace mw
