#include "train/doctor/doctor.h"

#include <unistd.h>

#include <algorithm>
#include <functional>

#include "base/file.h"
#include "base/host.h"
#include "comm/cores.h"
#include "core/tensor_store.h"
#include "engine/engine.h"
#include "engine/libraries.h"
#include "formats/io/output_file.h"
#include "ops/device.h"
#include "ops/matmul.h"

namespace mw {
namespace {

constexpr int64_t kMessageBytes = 8 << 20, kFileBytes = 16 << 20;
constexpr int kMessages = 4;
constexpr int64_t kWidth = 768;  // of the matrices
constexpr double kComputeSeconds = 0.5;

// One number of each rank, on all.
std::vector<double> gather(Comm& comm, double own) {
  std::vector<double> all(static_cast<size_t>(comm.size()));
  all[static_cast<size_t>(comm.rank())] = own;
  comm.all_reduce_sum(std::span(all));
  return all;
}

double measure_compute(int threads) {
  Stream stream(threads);
  start_products(stream, DType::f32, reserve_host);
  TensorStore memory({{"w", DType::f32, {kWidth, kWidth}, 0},
                      {"x", DType::f32, {kWidth, kWidth}, 0},
                      {"y", DType::f32, {kWidth, kWidth}, 0}});
  const Weight weight{kWidth, kWidth, memory.fixed("w"), {}, {}};
  const TensorView x = memory.fixed("x"), y = memory.fixed("y");
  matmul(stream, x, weight, y);
  const double begin = now_seconds();
  int64_t products = 0;
  double seconds = 0;
  for (; seconds < kComputeSeconds; seconds = now_seconds() - begin, ++products) matmul(stream, x, weight, y);
  return 2.0 * static_cast<double>(kWidth * kWidth * kWidth) * static_cast<double>(products) / seconds;
}

// Messages of both ranks of a pair to each other; 0 on all others. Pairs of one call share no rank.
double measure_link(Comm& comm, int from, int to) {
  const int rank = comm.rank();
  comm.barrier();
  if (rank != from && rank != to) return 0;
  const int other = rank == from ? to : from;
  std::vector<std::byte> out(kMessageBytes), in(kMessageBytes);
  double begin = 0;
  for (int i = -1; i < kMessages; ++i) {  // the first one connects
    if (i == 0) begin = now_seconds();
    const auto receive = comm.receive(in, other);
    const auto send = comm.send(out, other);
    send->wait();
    receive->wait();
  }
  return static_cast<double>(kMessageBytes) * kMessages / (now_seconds() - begin);
}

// Each rank and the next, around the ring, in rounds in which no rank is in two pairs.
std::vector<LinkHealth> measure_links(Comm& comm) {
  const int size = comm.size(), pairs = size == 2 ? 1 : size;
  std::vector<double> rates(static_cast<size_t>(size == 1 ? 0 : pairs));
  const auto round_of = [&](int pair) { return pair == pairs - 1 && pairs % 2 == 1 && pairs > 1 ? 2 : pair % 2; };
  for (int round = 0; round < 3 && size > 1; ++round) {
    int own = -1;  // this rank's pair of the round
    for (const int pair : {comm.rank(), (comm.rank() + size - 1) % size})
      if (pair < pairs && round_of(pair) == round) own = pair;
    const double rate = own < 0 ? measure_link(comm, -1, -1) : measure_link(comm, own, (own + 1) % size);
    if (own == comm.rank()) rates[static_cast<size_t>(own)] = rate;
  }
  comm.all_reduce_sum(std::span(rates));
  std::vector<LinkHealth> links;
  for (size_t pair = 0; pair < rates.size(); ++pair)
    links.push_back({static_cast<int>(pair), (static_cast<int>(pair) + 1) % size, rates[pair]});
  return links;
}

void measure_sum(Comm& comm, JobHealth& health) {
  std::vector<float> values(static_cast<size_t>(kAllReduceBytes) / sizeof(float));
  const auto ranks = static_cast<float>(comm.size());
  for (int i = 0; i < 2; ++i) {  // the first one connects
    std::fill(values.begin(), values.end(), static_cast<float>(comm.rank() + 1));
    comm.barrier();
    const double begin = now_seconds();
    comm.all_reduce_sum(std::span(values));
    health.all_reduce_seconds = now_seconds() - begin;
  }
  const float expected = ranks * (ranks + 1) / 2;
  int64_t wrong = std::count_if(values.begin(), values.end(),
                                [&](float v) { return !(v > expected * 0.9999f && v < expected * 1.0001f); });
  comm.all_reduce_sum(std::span(&wrong, 1));
  comm.all_reduce_max(std::span(&health.all_reduce_seconds, 1));
  health.sums_are_right = wrong == 0;
}

// Empty, or why `work` could not be done.
std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

void measure_writing(Comm& comm, const std::string& folder, RankHealth& own) {
  const auto file_of = [&](int rank) { return fmt::format("{}/moewright-doctor-{}", folder, rank); };
  const std::vector<std::byte> bytes(kFileBytes, static_cast<std::byte>(comm.rank() % 251));
  comm.barrier();
  const double begin = now_seconds();
  own.folder_error = error_of([&] {
    OutputFile file(file_of(comm.rank()));
    file.append(bytes);
    file.finish();
  });
  own.write_bytes_per_s = own.folder_error.empty() ? static_cast<double>(kFileBytes) / (now_seconds() - begin) : 0;
  comm.barrier();
  const int next = (comm.rank() + 1) % comm.size();
  own.sees_next =
      error_of([&] {
        const MappedFile file(file_of(next));
        if (file.bytes().size() != bytes.size() || file.bytes().back() != static_cast<std::byte>(next % 251))
          fail(Exit::data, "the file has other contents", "another process writes to this folder");
      }).empty();
  comm.barrier();
  if (own.folder_error.empty()) ::unlink(file_of(comm.rank()).c_str());
}

}  // namespace

JobHealth examine(World& world, const DoctorOptions& options) {
  Comm& comm = world.comm();
  const int local = std::max(1, world.local_size()), threads = threads_per_rank(options.threads, local);
  const Device device = choose_device(DeviceChoice::automatic, world.place().rank);
  RankHealth own;
  own.host = host_name();
  own.program = options.program;
  own.device = device.kind == DeviceKind::cpu ? "a CPU" : describe(device);
  comm.barrier();
  own.flops_per_s = measure_compute(threads);
  if (!options.folder.empty()) measure_writing(comm, options.folder, own);
  JobHealth health;
  measure_sum(comm, health);
  health.links = measure_links(comm);
  const std::vector<double> flops = gather(comm, own.flops_per_s), writes = gather(comm, own.write_bytes_per_s),
                            sees = gather(comm, own.sees_next ? 1 : 0);
  for (int rank = 0; rank < comm.size(); ++rank) {
    const auto r = static_cast<size_t>(rank);
    health.ranks.push_back({broadcast_text(comm, own.host, rank), broadcast_text(comm, own.program, rank),
                            broadcast_text(comm, own.device, rank), flops[r], writes[r],
                            broadcast_text(comm, own.folder_error, rank), sees[r] > 0});
  }
  return health;
}

}  // namespace mw
