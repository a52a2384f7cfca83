#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "base/error.h"
#include "comm/mpi_exchange.h"

namespace mw {

void check_mpi(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(status, text, &length);
  fail(Exit::comm, fmt::format("{} failed: {}", call, std::string(text, static_cast<size_t>(length))),
       "another rank may have died: look for the first error of the job");
}

int to_mpi_count(int64_t n) {
  MW_CHECK(n >= 0 && n <= std::numeric_limits<int>::max(), "{} rows in one message", n);
  return static_cast<int>(n);
}

void OpenExchanges::add(MPI_Request request, MpiExchange& exchange, int receive) {
  requests_.push_back(request);
  owners_.push_back({&exchange, receive});
}

void OpenExchanges::wait_some() {
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int count = 0;
  const int status =
      MPI_Waitsome(static_cast<int>(requests_.size()), requests_.data(), &count, indices_.data(), statuses_.data());
  if (status != MPI_ERR_IN_STATUS) check_mpi(status, "MPI_Waitsome");
  std::vector<Owner> complete;
  for (size_t i = 0; static_cast<int>(i) < count; ++i)
    complete.push_back(std::exchange(owners_[static_cast<size_t>(indices_[i])], {}));
  drop_complete();
  std::exception_ptr first;
  for (size_t i = 0; i < complete.size(); ++i) {
    const auto [exchange, receive] = complete[i];
    try {
      exchange->complete(receive, statuses_[i], status == MPI_ERR_IN_STATUS ? statuses_[i].MPI_ERROR : MPI_SUCCESS);
    } catch (...) {
      exchange->failed_ = true;
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void OpenExchanges::abandon(const MpiExchange& exchange) {
  for (size_t i = 0; i < requests_.size(); ++i) {
    Owner& owner = owners_[i];
    if (owner.exchange != &exchange) continue;
    if (owner.receive >= 0) {
      MPI_Cancel(&requests_[i]);
      MPI_Wait(&requests_[i], MPI_STATUS_IGNORE);
    }
    owner = {};
  }
  drop_complete();
}

void OpenExchanges::drop_complete() {
  size_t kept = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (owners_[i].exchange == nullptr) continue;
    requests_[kept] = requests_[i];
    owners_[kept++] = owners_[i];
  }
  requests_.resize(kept);
  owners_.resize(kept);
}

namespace {

// Reorders messages so that those next to each other in the list go to ranks far apart. In the order of ranks, the
// messages under way together would share a few of the links between nodes.
template <class T>
std::vector<T> spread(const std::vector<T>& in_turn) {
  const size_t n = in_turn.size();
  size_t stride = std::max<size_t>(1, n * 618 / 1000);
  while (n > 0 && std::gcd(stride, n) != 1) ++stride;
  std::vector<T> spread;
  for (size_t i = 0; i < n; ++i) spread.push_back(in_turn[i * stride % n]);
  return spread;
}

}  // namespace

// Receives are all posted at once, after the sends of a small exchange: with Open MPI over TCP, ranks that share cores
// left links idle for up to half the time if receives came first, and were up to 1.27 times slower if they came after
// one send. In a large exchange they come after a few sends, because messages wait for them. Sends begin with the next
// rank, so that not all send to the same one first.
MpiExchange::MpiExchange(OpenExchanges& open, Progress& progress, MPI_Comm comm, int tag, MPI_Datatype row,
                         const RowExchange& x)
    : open_(open),
      progress_(progress),
      number_(progress.begin_collective()),
      comm_(comm),
      tag_(tag),
      row_(row),
      send_(static_cast<const std::byte*>(x.send)),
      receive_(static_cast<std::byte*>(x.receive)) {
  int rank = 0;
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  const int size = static_cast<int>(x.send_counts.size());
  for (int i = 0; i < size; ++i) {
    const int peer = (rank + i) % size;
    const auto m = static_cast<size_t>(peer);
    const Message out{peer, x.send_offsets[m] * x.row_bytes, to_mpi_count(x.send_counts[m])};
    const Message in{peer, x.receive_offsets[m] * x.row_bytes, to_mpi_count(x.receive_counts[m])};
    if (peer == rank) {
      MW_CHECK(in.count == out.count, "{} rows from this rank to itself, {} expected", out.count, in.count);
      if (in.count > 0)
        std::memmove(receive_ + in.first, send_ + out.first, static_cast<size_t>(in.count * x.row_bytes));
      continue;
    }
    if (out.count > 0) sends_.push_back(out);
    if (in.count > 0) receives_.push_back(in);
  }
  sends_ = spread(sends_);
  try {
    const size_t first_sends = sends_.size() > kSendWindow ? kSendsBeforeReceives : sends_.size();
    while (next_send_ < first_sends) start_send();
    for (size_t i = 0; i < receives_.size(); ++i) start_receive(i);
    while (next_send_ < std::min<size_t>(kSendWindow, sends_.size())) start_send();
  } catch (...) {
    open_.abandon(*this);
    throw;
  }
}

MpiExchange::~MpiExchange() {
  try {
    finish();
  } catch (...) {  // the first error is what counts
  }
  // Counts that disagree may leave messages that nobody sends.
  if (!is_done()) open_.abandon(*this);
}

void MpiExchange::wait() {
  if (failed_) fail(Exit::comm, "this all_to_all has failed before", "the first error of the job says why");
  finish();
}

void MpiExchange::start_receive(size_t receive) {
  const Message& in = receives_[receive];
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Irecv(receive_ + in.first, in.count, row_, in.peer, tag_, comm_, &request), "MPI_Irecv");
  open_.add(request, *this, static_cast<int>(receive));
  ++active_;
}

void MpiExchange::start_send() {
  const Message& out = sends_[next_send_++];
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(send_ + out.first, out.count, row_, out.peer, tag_, comm_, &request), "MPI_Isend");
  open_.add(request, *this, -1);
  ++active_;
}

void MpiExchange::complete(int receive, const MPI_Status& status, int error) {
  --active_;
  if (receive >= 0) {
    const Message& in = receives_[static_cast<size_t>(receive)];
    int kind = MPI_SUCCESS, rows = 0;
    check_mpi(MPI_Error_class(error, &kind), "MPI_Error_class");
    if (kind != MPI_ERR_TRUNCATE) check_mpi(error, "a message of all_to_all");
    check_mpi(MPI_Get_count(&status, row_, &rows), "MPI_Get_count");
    if (kind == MPI_ERR_TRUNCATE || rows != in.count)
      fail(Exit::comm,
           fmt::format("all_to_all: member {} of the group sent {} rows than the {} that are expected", in.peer,
                       kind == MPI_ERR_TRUNCATE ? "more" : "fewer", in.count),
           "the ranks disagree about counts: please report this as a bug");
    return;
  }
  check_mpi(error, "a message of all_to_all");
  if (next_send_ < sends_.size()) start_send();
}

void MpiExchange::finish() {
  if (is_done() || failed_) return;
  const CollectiveWait noted(progress_, "all_to_all", number_);
  failed_ = true;  // until all is well
  while (!is_done()) open_.wait_some();
  failed_ = false;
}

}  // namespace mw
