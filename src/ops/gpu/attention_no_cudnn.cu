#include "ops/gpu/attention_library.h"

namespace mw::gpu {

bool library_takes(Stream&, const AttentionShape&) { return false; }
void attention_by_library(Stream&, const AttentionShape&, TensorView, TensorView, TensorView, TensorView, TensorView,
                          TensorView) {
  MW_CHECK(false, "attention by a library is not in this build");
}
void attention_backward_by_library(Stream&, const AttentionShape&, TensorView, TensorView, TensorView, TensorView,
                                   TensorView, TensorView, TensorView, TensorView, TensorView, TensorView, TensorView) {
  MW_CHECK(false, "attention by a library is not in this build");
}
LibraryChoice choose_library(Stream&, const AttentionShape&) { return {"no cuDNN", "it is not in this build"}; }
int64_t attention_library_workspace_bytes(const AttentionShape&) { return 0; }

}  // namespace mw::gpu
