// What the environment of a process says about the job that it is to join.
#include <fmt/ranges.h>

#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "base/text.h"
#include "comm/bootstrap/join_secret.h"
#include "comm/bootstrap/join_sides.h"

namespace mw {
namespace {

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

int64_t number_of(const char* name, int64_t lowest, int64_t highest) {
  const std::string text = variable(name);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < lowest || value > highest)
    fail(Exit::comm,
         fmt::format("{}={}: expected a whole number from {} to {}", name, printable(text), lowest, highest),
         kJoinHint);
  return value;
}

}  // namespace

bool launched_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (variable(name) != nullptr) return std::atoi(variable(name));
  if (variable("WORLD_SIZE") != nullptr && variable("RANK") != nullptr) return std::atoi(variable("RANK"));
  return variable("SLURM_PROCID") != nullptr ? std::atoi(variable("SLURM_PROCID")) : 0;
}

std::optional<JoinSpec> read_join_environment() {
  if (launched_by_mpi() || variable("WORLD_SIZE") == nullptr) return std::nullopt;
  JoinSpec spec;
  spec.size = static_cast<int>(number_of("WORLD_SIZE", 1, kMostRanks));
  if (spec.size == 1) return std::nullopt;
  std::vector<std::string> missing;
  for (const char* name : {"RANK", "MASTER_ADDR", "MASTER_PORT"})
    if (variable(name) == nullptr) missing.emplace_back(name);
  if (!missing.empty())
    fail(Exit::comm, fmt::format("WORLD_SIZE={}, but {} is not set", spec.size, fmt::join(missing, ", ")),
         "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for every process; or unset WORLD_SIZE, or use mpirun or "
         "srun");
  spec.rank = static_cast<int>(number_of("RANK", 0, spec.size - 1));
  spec.port = static_cast<uint16_t>(number_of("MASTER_PORT", 1, 65535));
  spec.host = variable("MASTER_ADDR");
  if (variable("LOCAL_RANK") != nullptr) spec.local_rank = static_cast<int>(number_of("LOCAL_RANK", 0, kMostRanks));
  if (variable("MOEWRIGHT_JOIN_SECONDS") != nullptr)
    spec.seconds = static_cast<double>(number_of("MOEWRIGHT_JOIN_SECONDS", 1, 1 << 20));
  spec.secret = read_join_secret();
  return spec;
}

}  // namespace mw
