// Activations and gradients between the stages of a pipeline, asynchronously: a message that was sent is waited for
// when its buffer is needed again.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "comm/stage_links.h"
#include "model/transformer.h"

namespace mw {

class StageMessages {
 public:
  // All must outlive it.
  StageMessages(Transformer& model, PipelineComms& comms) : model_(model), comms_(comms) {}

  // Before the stage writes its output, or the gradient of its input: the message before has left.
  void before_output(int stage);
  void before_input_gradient(int stage);

  // Doubles `riding` go along; the receiver knows how many. Sends start; what was received is there for what is
  // enqueued on the stream from then on.
  void send_activation(int stage, int64_t micro_batch, int64_t tokens, const std::vector<double>& riding);
  void receive_activation(int stage, int64_t micro_batch, int64_t tokens, std::vector<double>& riding);
  void send_gradient(int stage, int64_t micro_batch, int64_t tokens, const std::vector<double>& riding);
  void receive_gradient(int stage, int64_t micro_batch, int64_t tokens, std::vector<double>& riding);

  // All that was sent has left.
  void finish();

 private:
  // A message of one buffer, and what rides along with it.
  struct Sent {
    std::unique_ptr<Pending> rows, host;
    std::vector<double> riding;
    void wait();
  };
  void send(Sent& sent, Comm& comm, int to, TensorView view, const std::vector<double>& riding);
  void receive(Comm& comm, int from, TensorView view, std::vector<double>& riding);

  Transformer& model_;
  PipelineComms& comms_;
  std::map<int, Sent> outputs_, input_gradients_;  // by stage
};

}  // namespace mw
