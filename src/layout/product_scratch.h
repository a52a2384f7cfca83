// What matrix products take as scratch: how wide they are, whatever computes them, and a CPU's bytes by the rules of
// its operators, as a plan links none.
#pragma once

#include "layout/byte_table.h"

namespace mw {

// The layer as the rank that computes the widest part of it does: the first of TP, or the one with the widest slices.
LayerSpec widest_local_layer(const LayerSpec& layer, TransportKind transport, const RunSpec& run, const Mesh& mesh);

// The longest side of all matrices that a rank of the mesh multiplies by. transports: by layer.
int64_t longest_product_side(const ModelSpec& model, const RunSpec& run, const Mesh& mesh,
                             const std::vector<TransportKind>& transports);

// Of any rank of the mesh on a CPU; 0 where the platform says it (ops_workspace_bytes). A test holds it together with
// what operators answer (tests/model/scratch_rule_test.cpp).
int64_t product_scratch_bytes(const ModelSpec& model, const RunSpec& run, const Mesh& mesh,
                              const std::vector<TransportKind>& transports, const Platform& platform);

}  // namespace mw
