// Asynchronous messages between pipeline stages: activations forward, gradients backward. A send is only waited for
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
  // All references must outlive this object.
  StageMessages(Transformer& model, PipelineComms& comms) : model_(model), comms_(comms) {}

  // To be called before the stage writes its output, or the gradient of its input: waits until the previous message has
  // left that buffer.
  void before_output(int stage);
  void before_input_gradient(int stage);

  // Send or receive the stage's buffer together with the doubles `riding`, whose number the receiver must know. Sends
  // are asynchronous; received data is valid for work enqueued on the stream afterwards.
  void send_activation(int stage, int64_t micro_batch, int64_t tokens, const std::vector<double>& riding);
  void receive_activation(int stage, int64_t micro_batch, int64_t tokens, std::vector<double>& riding);
  void send_gradient(int stage, int64_t micro_batch, int64_t tokens, const std::vector<double>& riding);
  void receive_gradient(int stage, int64_t micro_batch, int64_t tokens, std::vector<double>& riding);

  // Waits until all messages have been sent.
  void finish();

 private:
  // A message in flight: a buffer and its riding doubles.
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
