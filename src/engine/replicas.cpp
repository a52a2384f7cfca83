#include "engine/replicas.h"

#include <span>

#include "base/error.h"
#include "base/host.h"

namespace mw {

void return_replica_gradients(Engine& engine, int64_t layer) {
  const TraceScope scope(engine.stream.trace(), Work::reduce, "return_replica_gradients");
  for (const Parameter& p : engine.params.replicas())
    if (p.row.layer == layer)
      add_replica_gradients(engine.stream, *engine.comms.ep, engine.plan.placements->layers[static_cast<size_t>(layer)],
                            engine.params.find(p.row.name).grad, p.grad, engine.params.replica_gradient(),
                            engine.plan.run.fault);
}

CopiedBytes refresh_replicas(Engine& engine) {
  const TraceScope scope(engine.stream.trace(), Work::reduce, "refresh_replicas");
  CopiedBytes all;
  for (const Parameter& p : engine.params.replicas()) {
    const CopiedBytes bytes = copy_to_replicas(engine.stream, *engine.comms.ep,
                                               engine.plan.placements->layers[static_cast<size_t>(p.row.layer)],
                                               engine.params.find(p.row.name).weights, p.weights);
    all.sent += bytes.sent;
    all.received += bytes.received;
  }
  return all;
}

double measure_refresh(Engine& engine) {
  double seconds = 0;
  if (!engine.params.replicas().empty()) {
    const int64_t layer = engine.params.replicas().front().row.layer;
    ExpertPlacement ring = engine.plan.placements->layers[static_cast<size_t>(layer)];
    MW_CHECK(!ring.has_replicas(), "replicas are in use");
    for (int rank = 0; rank < ring.ep; ++rank) {
      const int next = (rank + 1) % ring.ep;
      ring.homes[static_cast<size_t>(ring.experts_of(rank).front())].push_back(
          {next, static_cast<int>(ring.experts_of(next).size())});
    }
    for (int round = 0; round < 2; ++round) {  // the first one connects
      engine.stream.wait();
      const double begin = now_seconds();
      for (const Parameter& p : engine.params.replicas())
        if (p.row.layer == layer)
          copy_to_replicas(engine.stream, *engine.comms.ep, ring, engine.params.find(p.row.name).weights, p.weights);
      engine.stream.wait();
      seconds = now_seconds() - begin;
    }
  }
  engine.world.all_reduce_max(std::span(&seconds, 1));
  return seconds;
}

}  // namespace mw
