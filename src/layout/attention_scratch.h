// What attention takes as scratch, by the rules of its operators: a plan links none.
#pragma once

#include "layout/byte_table.h"

namespace mw {

// Of any rank of the mesh, in its largest layer; 0 where operators are asked. A test holds it together with what they
// answer (tests/model/scratch_rule_test.cpp).
int64_t attention_scratch_bytes(const ModelSpec& model, const RunSpec& run, const Mesh& mesh, const Platform& platform);

}  // namespace mw
