#include "train/convert/hf_weights.h"

#include <algorithm>

#include "formats/weights/hf_folder.h"
#include "formats/weights/hf_reader.h"

namespace mw {
namespace {

// Reads the part of one Hugging Face tensor that this rank holds of the parameter.
void read_held(const SafetensorsSet& files, const HfTensor& tensor, Device device, Parameter& p) {
  constexpr int64_t kPiece = 1 << 20;  // elements
  std::vector<float> room;
  const std::vector<int64_t>& shape = p.row.shape;
  for (const HeldSlice& held : held_slices(shape, p.pieces, p.held))
    for_each_shared_run(shape, whole_tensor(shape), held.slice, [&](int64_t global, int64_t local, int64_t count) {
      const int64_t begin = std::max(tensor.begin, global),
                    end = std::min(tensor.begin + tensor.numel(), global + count);
      if (begin >= end) return;
      for (int64_t i = begin; i < end; i += kPiece) {
        room.resize(static_cast<size_t>(std::min(kPiece, end - i)));
        const std::span<float> values = room;
        read_hf_tensor(files, tensor, i - tensor.begin, values);
        p.set_master(device, held.at + local + i - global, values);
      }
    });
}

}  // namespace

std::string import_hf_weights(Engine& engine, const std::string& dir) {
  const HfFolder folder = open_hf_folder(engine.plan.model, dir);
  for (const HfTensor& tensor : folder.tensors) {
    const TraceScope scope(engine.stream.trace(), Work::checkpoint, "read_tensor");
    if (engine.params.has(tensor.param))
      read_held(folder.files, tensor, engine.device, engine.params.find(tensor.param));  // else of another stage
  }
  check_tied_head(folder, engine.plan.model);
  refresh_weights(engine);
  return folder.note;
}

}  // namespace mw
