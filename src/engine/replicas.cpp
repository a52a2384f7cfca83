#include "engine/replicas.h"

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

}  // namespace mw
