#include "train/checkpoint/checkpoint.h"

#include "engine/state_slices.h"
#include "train/checkpoint/checkpoint_reader.h"

namespace mw {

CheckpointIndex load_checkpoint(Engine& engine, const std::string& folder, bool weights_only) {
  const TraceScope scope(engine.stream.trace(), Work::checkpoint, "load_checkpoint");
  CheckpointReader reader(folder);
  const bool moments = !weights_only && reader.needs_moments();
  reader.check_tensors(engine.plan.params, moments, engine.plan.run);
  for (const LocalSlice& local : local_slices(engine.params, moments)) {
    const TraceScope tensor_scope(engine.stream.trace(), Work::checkpoint, "read_tensor");
    reader.read(local.tensor, local.global_shape, local.part, engine.device, local.values, local.near);
  }
  refresh_weights(engine);
  engine.world.barrier();
  return reader.index();
}

}  // namespace mw
