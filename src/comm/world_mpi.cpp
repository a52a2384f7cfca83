// World over MPI.
#include <mpi.h>
#include <cstdlib>
#include <set>

#include "comm/mpi_comm.h"
#include "comm/world_tcp.h"

namespace mw {
namespace {

std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string version(text, static_cast<size_t>(length));
  const std::string line = version.substr(0, version.find_first_of(",\n"));
  return line.substr(0, 60);
}

// How many processes a launcher says it started, or 0.
int processes_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? 0 : std::atoi(value);
}

[[noreturn]] void fail_apart(const char* name) {
  fail(Exit::comm,
       fmt::format("{}={} processes were launched, but they do not see each other through {}", name, processes_of(name),
                   library_version()),
       "launch with the mpirun of that MPI library, or with srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)");
}

// Open MPI's own message is long, and it exits with its own code.
void refuse_srun_without_pmi() {
  if (!launched_by_mpi() && processes_of("SLURM_STEP_NUM_TASKS") > 1) fail_apart("SLURM_STEP_NUM_TASKS");
}

class MpiWorld : public World {
 public:
  MpiWorld(int* argc, char*** argv) {
    refuse_srun_without_pmi();
    int provided = MPI_THREAD_SINGLE;
    check_mpi(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    comm_ = make_mpi_comm(MPI_COMM_WORLD, false, progress_, open_);
    refuse_foreign_launcher();
    MPI_Comm node = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, comm_->rank(), MPI_INFO_NULL, &node),
              "MPI_Comm_split_type");
    MPI_Comm_rank(node, &place_.rank);
    MPI_Comm_size(node, &place_.ranks);
    int leader = comm_->rank();  // the first rank of a node names it
    check_mpi(MPI_Bcast(&leader, 1, MPI_INT, 0, node), "MPI_Bcast");
    MPI_Comm_free(&node);
    std::vector<int64_t> leaders(static_cast<size_t>(comm_->size()));
    leaders[static_cast<size_t>(comm_->rank())] = leader;
    comm_->all_reduce_sum(std::span(leaders));
    const std::vector<uint64_t> names(leaders.begin(), leaders.end());
    place_.nodes = number_nodes(names);
    nodes_ = static_cast<int>(std::set<uint64_t>(names.begin(), names.end()).size());
    if (comm_->rank() == 0) fill_random(key_);
    comm_->broadcast(std::as_writable_bytes(std::span(key_)), 0);
  }
  ~MpiWorld() override {
    comm_.reset();
    MPI_Finalize();
  }
  Comm& comm() override { return *comm_; }
  std::string library() const override { return library_version(); }
  NodePlace place() const override { return place_; }
  int nodes() const override { return nodes_; }
  JoinKey key() const override { return key_; }
  [[noreturn]] void abort(Exit code) override {
    wait_until_output_is_read();
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
    std::_Exit(static_cast<int>(code));
  }

 private:
  // Another MPI's mpirun, or torchrun within one task of Slurm, starts processes that do not find each other: each
  // would train alone.
  void refuse_foreign_launcher() {
    if (comm_->size() > 1) return;
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE"}) {
      if (processes_of(name) <= 1) continue;
      comm_.reset();
      MPI_Finalize();
      fail_apart(name);
    }
  }

  Progress progress_;
  OpenExchanges open_;
  std::unique_ptr<Comm> comm_;
  NodePlace place_;
  int nodes_ = 1;
  JoinKey key_{};
};

}  // namespace

std::unique_ptr<World> start_world(int* argc, char*** argv) {
  if (const auto join = read_join_environment()) return start_tcp_world(*join);
  return std::make_unique<MpiWorld>(argc, argv);
}

}  // namespace mw
