#include "ops/gpu/attention_library.h"

namespace mw::gpu {

bool attention_by_library(Stream&, const AttentionShape&, TensorView, TensorView, TensorView, TensorView, TensorView,
                          TensorView) {
  return false;
}
bool attention_backward_by_library(Stream&, const AttentionShape&, TensorView, TensorView, TensorView, TensorView,
                                   TensorView, TensorView, TensorView, TensorView, TensorView, TensorView, TensorView) {
  return false;
}
bool library_takes(Stream&, const AttentionShape&) { return false; }
LibraryChoice choose_library(Stream&, const AttentionShape&) { return {"no cuDNN", "it is not in this build"}; }
int64_t attention_library_workspace_bytes(const AttentionShape&) { return 0; }

}  // namespace mw::gpu
