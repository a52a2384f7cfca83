// Parity: a Hugging Face model folder, or a checkpoint, against a golden file of what transformers computed from it.
#pragma once

#include <string>
#include <vector>

#include "comm/comm.h"

namespace mw {

// One compared quantity. `norm_error` is |a - b| / |b| over the whole tensor (Frobenius), `element_error` the largest
// |a - b| / max(|b|, rms(b)) over its elements.
struct ParityLine {
  std::string name;
  double norm_error = 0, element_error = 0;
  double norm_tolerance = 0, element_tolerance = 0;
  std::string where;  // the worst element: index, got, expected
  bool ok() const { return norm_error <= norm_tolerance && element_error <= element_tolerance; }
};

// One of the two.
struct ParityModel {
  std::string hf_dir;      // model folder
  std::string checkpoint;  // its weights, as `export` would write them
};

struct ParityReport {
  std::vector<ParityLine> lines;
  bool ok() const;
};

// Computes in fp32 what the golden file holds: logits, router_logits.I, loss, aux_loss, every grad.*, and the AdamW
// trajectory (DESIGN section 9). Every tensor of the golden file must be understood and every trained parameter must
// have its gradient there. Errors: config, data. `comm` is this process alone.
// device: as train.device.
ParityReport run_parity(const ParityModel& model, const std::string& golden_path, Comm& comm, int threads,
                        const std::string& device);

std::string format_report(const ParityReport& report);

}  // namespace mw
