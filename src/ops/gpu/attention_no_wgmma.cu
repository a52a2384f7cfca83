#include "ops/gpu/attention_wgmma.h"

namespace mw::gpu {

bool warpgroups_take(Stream&, const AttentionShape&) { return false; }
bool warpgroups_lead(Stream&, const AttentionShape&, int64_t) { return false; }
void attention_by_warpgroups(Stream&, const AttentionShape&, TensorView, TensorView, TensorView, TensorView, TensorView,
                             TensorView) {
  MW_CHECK(false, "attention by warpgroups is not in this build");
}
void attention_gradients_by_warpgroups(Stream&, const AttentionShape&, const attention_detail::Operands<bf16>&,
                                       int64_t) {
  MW_CHECK(false, "attention by warpgroups is not in this build");
}

}  // namespace mw::gpu
