#include "comm/stage_links.h"

#include <algorithm>
#include <span>

#include "comm/gpu_comm.h"

namespace mw {
namespace {

// The output of `stage` travels from one rank of the line to another.
struct Boundary {
  int stage = 0, from = 0, to = 0;
  bool joins(int rank) const { return from == rank || to == rank; }
};

// All boundaries, in rounds whose links are opened together: in a round no rank has two. One stage per rank makes two
// rounds, however many ranks there are.
std::vector<std::vector<Boundary>> rounds_of(const PipelineShape& shape) {
  std::vector<std::vector<Boundary>> rounds;
  for (int s = 0; s + 1 < shape.stages(); ++s) {
    if (!sends_activation(shape, s)) continue;
    const Boundary next = {s, rank_of_stage(shape, s), rank_of_stage(shape, s + 1)};
    const auto has_room = [&](const std::vector<Boundary>& round) {
      return std::none_of(round.begin(), round.end(),
                          [&](const Boundary& b) { return b.joins(next.from) || b.joins(next.to); });
    };
    auto round = std::find_if(rounds.begin(), rounds.end(), has_room);
    if (round == rounds.end()) round = rounds.emplace(rounds.end());
    round->push_back(next);
  }
  return rounds;
}

// The two ranks of each boundary, in this order; every other rank alone.
std::unique_ptr<Comm> make_pairs(Comm& line, std::span<const Boundary> boundaries) {
  const int own = line.rank();
  for (const Boundary& b : boundaries)
    if (b.joins(own)) return line.split(std::min(b.from, b.to), own == b.from ? 0 : 1);
  return line.split(own, 0);
}

}  // namespace

PipelineComms make_pipeline_comms(const MeshComms& comms, const PipelineShape& shape, bool tied_embeddings,
                                  Device device) {
  PipelineComms out;
  out.after.resize(static_cast<size_t>(shape.stages()));
  const bool gpu = !comms.gpu_library.empty();
  if (const int links = most_links(shape); gpu && links > kGpuLinks)
    fail(Exit::unsupported,
         fmt::format("the stages of one rank need {} message queues between GPUs, at most {} are supported", links,
                     kGpuLinks),
         fmt::format("lower mesh.chunks, now {} stages per rank", shape.chunks));
  const auto connect = [&](std::span<const Boundary> boundaries) {
    std::unique_ptr<Comm> pair = make_pairs(*comms.pp, boundaries);
    if (pair->size() == 1) return std::unique_ptr<Comm>();
    return gpu ? make_gpu_comm(std::move(pair), open_gpu_link(device, *comms.gpu_link)) : std::move(pair);
  };
  for (const std::vector<Boundary>& round : rounds_of(shape)) {
    StageLink link;
    link.activations = connect(round);
    link.gradients = connect(round);
    const auto own =
        std::find_if(round.begin(), round.end(), [&](const Boundary& b) { return b.joins(comms.pp->rank()); });
    if (own != round.end()) out.after[static_cast<size_t>(own->stage)] = std::move(link);
  }
  if (tied_embeddings) {
    const Boundary ends = {0, rank_of_stage(shape, 0), rank_of_stage(shape, shape.stages() - 1)};
    out.ends = connect(std::span(&ends, 1));
  }
  if (out.ends == nullptr) out.ends = make_self_comm();
  return out;
}

}  // namespace mw
