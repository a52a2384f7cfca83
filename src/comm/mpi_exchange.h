// An uneven all-to-all over MPI. Each rank sends one message to each peer that gets rows, at most kSendWindow at a
// time. MPI_Ialltoallv may start all messages at once, which congests links between many ranks, and may send empty
// ones.
#pragma once

#include <mpi.h>
#include <cstdint>
#include <vector>

#include "comm/comm.h"
#include "core/progress.h"

namespace mw {

constexpr int kSendWindow = 16, kSendsBeforeReceives = 4;

// Throws Exit::comm unless the status is MPI_SUCCESS, with MPI's text for it.
void check_mpi(int status, const char* call);
// Throws Exit::internal where n is negative or does not fit.
int to_mpi_count(int64_t n);

class MpiExchange;

// The messages that are under way, of all exchanges in all groups of a process. Whoever waits for one exchange moves
// all of them on: members of a group may wait for their exchanges in different orders.
class OpenExchanges {
 public:
  // receive: which one of the exchange, or -1 for a send.
  void add(MPI_Request request, MpiExchange& exchange, int receive);
  // Blocks until some messages are complete, and tells their exchanges, which may start others. Errors: comm, the first
  // one after all exchanges have been told.
  void wait_some();
  // Cancels the exchange's receives, so that MPI does not write into buffers that are no more.
  void abandon(const MpiExchange& exchange);

 private:
  struct Owner {
    MpiExchange* exchange = nullptr;  // null: the message is complete
    int receive = -1;
  };
  void drop_complete();

  std::vector<MPI_Request> requests_;
  std::vector<Owner> owners_;  // by request
  // Scratch of wait_some().
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

class MpiExchange : public Pending {
 public:
  // Starts the exchange. comm: the group; tag: differs among the group's exchanges that are under way; row: a datatype
  // of x.row_bytes bytes. All of them, and the buffers of x, must outlive this object.
  MpiExchange(OpenExchanges& open, Progress& progress, MPI_Comm comm, int tag, MPI_Datatype row, const RowExchange& x);
  ~MpiExchange() override;
  MpiExchange(const MpiExchange&) = delete;
  MpiExchange& operator=(const MpiExchange&) = delete;
  // Errors: comm, where a member sends another number of rows than is expected here.
  void wait() override;

 private:
  friend class OpenExchanges;
  struct Message {
    int peer = 0;
    int64_t first = 0;  // byte of the buffer
    int count = 0;      // rows
  };
  bool is_done() const { return active_ == 0 && next_send_ == sends_.size(); }
  void start_receive(size_t receive);
  void start_send();
  void complete(int receive, const MPI_Status& status, int error);
  void finish();

  OpenExchanges& open_;
  Progress& progress_;
  int64_t number_;
  MPI_Comm comm_;
  int tag_;
  MPI_Datatype row_;
  const std::byte* send_;
  std::byte* receive_;
  std::vector<Message> receives_, sends_;
  size_t next_send_ = 0, active_ = 0;
  bool failed_ = false;
};

}  // namespace mw
