#include <algorithm>
#include <exception>
#include <map>

#include "comm/mpi_comm.h"

namespace mw {
namespace {

// Elements per call. Libraries take scratch as large as what they sum, which no table of bytes knows; and the counts of
// MPI 3 have 32 bits.
constexpr size_t kMaxCount = size_t{1} << 22, kSumCount = size_t{1} << 20;
// Tags: of messages, which match in the order of their calls; of exchanges, whose messages start in any order.
constexpr int kMessageTag = 1, kExchangeTags = 16384;

// A message in parts, each of a count that MPI can hold.
class MpiMessage : public Pending {
 public:
  MpiMessage(Progress& progress, const char* call)
      : progress_(progress), call_(call), number_(progress.begin_collective()) {}
  ~MpiMessage() override {
    // The other side of a rank that fails may never come.
    if (std::uncaught_exceptions() == 0) finish();
  }
  void wait() override { check_mpi(finish(), "MPI_Waitall"); }
  // start(first, count, request) begins one part.
  template <class Start>
  void start(size_t bytes, const Start& start) {
    for (size_t begin = 0; begin < bytes; begin += kMaxCount) {
      parts_.push_back(MPI_REQUEST_NULL);
      start(begin, static_cast<int>(std::min(kMaxCount, bytes - begin)), &parts_.back());
    }
  }

 private:
  int finish() {
    const CollectiveWait noted(progress_, call_, number_);
    return MPI_Waitall(static_cast<int>(parts_.size()), parts_.data(), MPI_STATUSES_IGNORE);
  }
  Progress& progress_;
  const char* call_;
  int64_t number_;
  std::vector<MPI_Request> parts_;
};

class MpiComm : public Comm {
 public:
  using Comm::all_reduce_sum;
  using Comm::all_to_all;
  using Comm::receive;
  using Comm::send;
  MpiComm(MPI_Comm comm, bool owned, Progress& progress, OpenExchanges& open)
      : comm_(comm), owned_(owned), progress_(progress), open_(open) {
    check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  ~MpiComm() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized != 0) return;
    for (auto& [bytes, type] : row_types_) MPI_Type_free(&type);
    if (owned_) MPI_Comm_free(&comm_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_reduce_sum(std::span<float> values) override { all_reduce(values, MPI_FLOAT, MPI_SUM); }
  void all_reduce_sum(std::span<double> values) override { all_reduce(values, MPI_DOUBLE, MPI_SUM); }
  void all_reduce_sum(std::span<int64_t> values) override { all_reduce(values, MPI_INT64_T, MPI_SUM); }
  void all_reduce_max(std::span<double> values) override { all_reduce(values, MPI_DOUBLE, MPI_MAX); }
  void all_reduce_max(std::span<int64_t> values) override { all_reduce(values, MPI_INT64_T, MPI_MAX); }

  void reduce_sum(std::span<float> values, int root) override {
    const CollectiveWait noted(progress_, "reduce");
    for (size_t begin = 0; begin < values.size(); begin += kSumCount) {
      const int count = static_cast<int>(std::min(kSumCount, values.size() - begin));
      float* piece = values.data() + begin;
      check_mpi(MPI_Reduce(rank_ == root ? MPI_IN_PLACE : piece, piece, count, MPI_FLOAT, MPI_SUM, root, comm_),
                "MPI_Reduce");
    }
  }
  void broadcast(std::span<std::byte> bytes, int root) override {
    const CollectiveWait noted(progress_, "broadcast");
    for (size_t begin = 0; begin < bytes.size(); begin += kMaxCount) {
      const int count = static_cast<int>(std::min(kMaxCount, bytes.size() - begin));
      check_mpi(MPI_Bcast(bytes.data() + begin, count, MPI_BYTE, root, comm_), "MPI_Bcast");
    }
  }
  void barrier() override {
    const CollectiveWait noted(progress_, "barrier");
    check_mpi(MPI_Barrier(comm_), "MPI_Barrier");
  }

  std::unique_ptr<Pending> all_to_all(const RowExchange& x) override {
    exchanges_ = exchanges_ % kExchangeTags + 1;
    return std::make_unique<MpiExchange>(open_, progress_, comm_, kMessageTag + exchanges_, row_type(x.row_bytes), x);
  }

  // Synchronous sends: none depends on room that the library may or may not have, so that what runs with small messages
  // runs with large ones.
  std::unique_ptr<Pending> send(std::span<const std::byte> bytes, int to) override {
    auto message = std::make_unique<MpiMessage>(progress_, "send");
    message->start(bytes.size(), [&](size_t first, int count, MPI_Request* request) {
      check_mpi(MPI_Issend(bytes.data() + first, count, MPI_BYTE, to, kMessageTag, comm_, request), "MPI_Issend");
    });
    return message;
  }
  std::unique_ptr<Pending> receive(std::span<std::byte> bytes, int from) override {
    auto message = std::make_unique<MpiMessage>(progress_, "receive");
    message->start(bytes.size(), [&](size_t first, int count, MPI_Request* request) {
      check_mpi(MPI_Irecv(bytes.data() + first, count, MPI_BYTE, from, kMessageTag, comm_, request), "MPI_Irecv");
    });
    return message;
  }

  std::unique_ptr<Comm> split(int color, int key) override {
    const CollectiveWait noted(progress_, "split");
    MPI_Comm child = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(comm_, color, key, &child), "MPI_Comm_split");
    return std::make_unique<MpiComm>(child, true, progress_, open_);
  }
  Progress* progress() override { return &progress_; }

 private:
  template <class T>
  void all_reduce(std::span<T> values, MPI_Datatype type, MPI_Op op) {
    if (size_ == 1) return;
    const CollectiveWait noted(progress_, "all_reduce");
    for (size_t begin = 0; begin < values.size(); begin += kSumCount) {
      const int count = static_cast<int>(std::min(kSumCount, values.size() - begin));
      check_mpi(MPI_Allreduce(MPI_IN_PLACE, values.data() + begin, count, type, op, comm_), "MPI_Allreduce");
    }
  }
  // Rows are one element each, so that counts stay in rows and never overflow as bytes would.
  MPI_Datatype row_type(int64_t bytes) {
    const auto it = row_types_.find(bytes);
    if (it != row_types_.end()) return it->second;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    check_mpi(MPI_Type_contiguous(to_mpi_count(bytes), MPI_BYTE, &type), "MPI_Type_contiguous");
    check_mpi(MPI_Type_commit(&type), "MPI_Type_commit");
    row_types_[bytes] = type;
    return type;
  }

  MPI_Comm comm_;
  bool owned_;
  Progress& progress_;
  OpenExchanges& open_;
  int rank_ = 0, size_ = 1, exchanges_ = 0;
  std::map<int64_t, MPI_Datatype> row_types_;
};

}  // namespace

std::unique_ptr<Comm> make_mpi_comm(MPI_Comm comm, bool owned, Progress& progress, OpenExchanges& open) {
  return std::make_unique<MpiComm>(comm, owned, progress, open);
}

}  // namespace mw
