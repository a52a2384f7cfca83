#include "comm/stage_links.h"

#include "comm/gpu_comm.h"

namespace mw {
namespace {

// The members `a` and `b` of the line, in this order; every other member alone.
std::unique_ptr<Comm> make_pair(Comm& line, int a, int b) {
  const int own = line.rank();
  return line.split(own == a || own == b ? 0 : 1 + own, own == a ? 0 : 1);
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
  const auto connect = [&](int a, int b) {
    std::unique_ptr<Comm> pair = make_pair(*comms.pp, a, b);
    if (pair->size() == 1) return std::unique_ptr<Comm>();
    return gpu ? make_gpu_comm(std::move(pair), open_gpu_link(device, *comms.gpu_link)) : std::move(pair);
  };
  for (int s = 0; s + 1 < shape.stages(); ++s) {
    if (!sends_activation(shape, s)) continue;
    const int a = rank_of_stage(shape, s), b = rank_of_stage(shape, s + 1);
    StageLink& link = out.after[static_cast<size_t>(s)];
    link.activations = connect(a, b);
    link.gradients = connect(a, b);
  }
  if (tied_embeddings) out.ends = connect(rank_of_stage(shape, 0), rank_of_stage(shape, shape.stages() - 1));
  if (out.ends == nullptr) out.ends = make_self_comm();
  return out;
}

}  // namespace mw
