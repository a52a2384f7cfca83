// memory.recompute: which tensors a layer does not keep from its forward to its backward, where they are computed again
// from what it keeps, and which rows of the table of bytes hold them meanwhile.
//
// A layer that keeps a tensor has a row of its own for each live micro-batch: "act.LAYER.NAME". What is recomputed has
// one row for all layers and micro-batches of a rank, "recomputed.NAME", as large as the largest asks: forward only
// passes through it, and backward of a layer fills it just before it reads it.
//
// Bytes kept by a layer for a live micro-batch, without rounding; N tokens of the micro-batch and T those of this
// rank's shard (N without tensor parallelism), D width, H and G its query and key/value heads of width h, E experts, K
// top-k, F expert width, S shared width, W its width of a dense layer, c halves of the activation (2 for SwiGLU, else
// 1), b bytes of an element, R rows that the rank's experts receive (T*K under balanced load). Under moe.tp_mode "ted"
// T is N, and F and S are the rank's shares of these widths.
//   attention  2*b*T*D + 8*T + 4*N*H and
//              grouped: 2*b*N*(H + G)*h, with a query/key norm 4*N*(H + G) more (8*N over full width)
//              latent, of ranks Q and C, rotated width r, value width v: b*N*(Q + C + r + H*v) + 8*N, without Q
//              b*N*(H*h + C + r + H*v) + 4*N
//              with train.qk_clip 4*H more, always kept
//   routing    24*T*K + 8*E, always kept: recompute never routes anew
//   logits     4*T*E
//   dispatched R*(b*D + 8), nothing where rows stay on their rank; padded: 4*T*K more, and 4 for each row that is sent;
//              gather_tokens: S*(b*D + 12*K), S tokens of the EP group, of which R is S*K and F the slice's width
//   hidden     b*c*(R*F + T*S), or b*c*N*W of a dense layer
//
//   norms      2*b*T*D and, of grouped attention, b*N*(H + G)*h (with clip_qkv b*N*(H + 2*G)*h): normed inputs, and
//              queries, keys and clipped values as the attention operator reads them
//
//   keep_norms attention, routing, logits, dispatched, hidden, norms
//   none       attention, routing, logits, dispatched, hidden
//   selective  attention, routing, logits, dispatched
//   moe        attention, routing, logits; dense layers as with none
//   full       b*T*D (the layer's input), routing
// R*b*D is A_dispatch of X-MoE (section 3.2); its A_combine, as large, is never kept in any mode.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "layout/byte_table.h"

namespace mw {

// Whether layers compute their tensor of this name ("h", "received", ...) again.
bool is_recomputed(Recompute mode, std::string_view name);
// Whether layers keep "norms".
inline bool keeps_norms(Recompute mode) { return mode == Recompute::keep_norms; }

// What backward leaves to its weight part where the schedule splits it in two: the weight gradients of a layer's first
// products, where it keeps their operands anyway. Gradients of queries, keys, values and pre-activations then lie in
// the rows of the tensors themselves, so that a split costs no memory beyond longer lives. The input part computes the
// weight gradients of all other products: it reads the gradients of outputs and activated hidden states, which are
// never kept.
//
//   none, keep_norms
//              wq, wk, wv (latent: wq or wq_a, and wkv_a), w_up of dense layers, of routed and of shared experts
//   selective  those of attention
//   moe        those of attention, w_up of dense layers
//   full       nothing
struct WeightPart {
  bool attention = false, dense = false, moe = false;
  bool empty() const { return !attention && !dense && !moe; }
};
// Empty where the schedule splits nothing.
WeightPart weight_part(const RunSpec& run);

// Names the rows that one layer works on for one live micro-batch.
class LayerRows {
 public:
  LayerRows(Recompute mode, int64_t layer, int64_t slot);
  std::string operator()(const std::string& name) const;

 private:
  Recompute mode_;
  std::string own_;
};

// The table of a run that recomputes, from that of one that keeps everything: rows "act.LAYER.NAME" of what is
// recomputed become one row each, of workspace, behind the others.
std::vector<ByteRow> share_recomputed(Recompute mode, std::vector<ByteRow> rows);

}  // namespace mw
