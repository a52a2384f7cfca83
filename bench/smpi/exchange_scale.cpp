// The dispatch of one MoE layer's rows under SimGrid SMPI, which runs all ranks as fibers of one process and computes
// when their messages arrive. Counts, plans and windows of messages are those of a run; rows have sizes, but no memory.
// bench/smpi/exchange_scale.py builds this, chooses platforms and runs it. Prints one line of JSON.
#include <mpi.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <simgrid/s4u.hpp>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi_comm.h"
#include "core/rng.h"
#include "layout/exchange_volume.h"
#include "moe/transports/count_exchange.h"
#include "moe/transports/leg_exchange.h"

// Rows travel as bytes: SMPI would copy those of a derived type, folded memory or not.
static int bytes_of(int count, MPI_Datatype type) {
  int size = 0;
  MPI_Type_size(type, &size);
  return count * size;
}
// What a wait costs the simulator grows with the requests that it is given, and SMPI's own MPI_Waitsome switches to the
// simulator and back for each request that is not complete. A complete send makes room for another, but of its receives
// an exchange only needs the last one, in whatever order they are noticed. So a rank waits for all sends and for one
// receive of each exchange, and notices one message at a time.
struct OpenMessages {
  std::vector<MPI_Request> sends;
  std::map<std::pair<MPI_Comm, int>, std::vector<MPI_Request>> receives;  // by group and tag: of one exchange
};
static OpenMessages& open_messages() {
  static std::map<aid_t, OpenMessages> of_ranks;  // which are fibers of one process
  return of_ranks[simgrid::s4u::this_actor::get_pid()];
}
int MPI_Isend(const void* rows, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  const int status = PMPI_Isend(rows, bytes_of(count, type), MPI_BYTE, to, tag, comm, request);
  open_messages().sends.push_back(*request);
  return status;
}
int MPI_Irecv(void* rows, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  const int status = PMPI_Irecv(rows, bytes_of(count, type), MPI_BYTE, from, tag, comm, request);
  open_messages().receives[{comm, tag}].push_back(*request);
  return status;
}
int MPI_Waitsome(int requests, MPI_Request* request, int* complete, int* indices, MPI_Status* statuses) {
  OpenMessages& open = open_messages();
  std::vector<MPI_Request> awaited;
  for (const auto& [exchange, receives] : open.receives) awaited.push_back(receives.back());
  const auto receives = std::ssize(awaited);
  awaited.insert(awaited.end(), open.sends.begin(), open.sends.end());
  MW_CHECK(!awaited.empty(), "MPI_Waitsome got {} requests, but no exchange is open", requests);
  std::vector<MPI_Request> left = awaited;
  int first = 0;
  const int status = PMPI_Waitany(static_cast<int>(left.size()), left.data(), &first, statuses);
  if (first < receives) {
    const auto exchange = std::next(open.receives.begin(), first);
    exchange->second.pop_back();
    if (exchange->second.empty()) open.receives.erase(exchange);
  } else {
    open.sends.erase(open.sends.begin() + first - receives);
  }
  MPI_Request* const noticed = std::find(request, request + requests, awaited[static_cast<size_t>(first)]);
  MW_CHECK(noticed != request + requests, "a wait for {} requests without the one that is complete", requests);
  *noticed = MPI_REQUEST_NULL;
  *complete = 1;
  indices[0] = static_cast<int>(noticed - request);
  return status;
}

namespace {

using namespace mw;
namespace s4u = simgrid::s4u;

struct Options {
  // flat, halo, bypass; at_once: flat without a window; printed: HALO as algorithm 1 of the paper Piper prints it.
  std::string transport = "halo";
  int64_t experts = 256, top_k = 8, tokens = 128, row_bytes = 4096, chunks = 1;
  int ranks_per_node = 8;
  int ep = 0, stride = 1;      // ranks of an EP group (0: all) and their distance; all groups work at the same time
  bool forward = false;        // with the choices and gate weights that travel beside the rows of a forward dispatch
  std::optional<double> zipf;  // routing is drawn, popularity of experts falling as 1 / i^zipf; else mean counts

  bool merges() const { return transport == "bypass"; }
  bool by_node() const { return transport == "halo" || transport == "bypass"; }
  // Bytes of what travels for one unit, each in a message of its own.
  std::vector<int64_t> parts() const {
    const int64_t choices = merges() ? top_k : 1;
    if (!forward) return {row_bytes};
    if (!by_node()) return {row_bytes, 4};
    return {row_bytes, 4 * choices, 4 * choices};
  }
};

// What all ranks send while rows travel. Ranks share it, since they are fibers of one process.
struct Traffic {
  std::vector<const s4u::Host*> hosts;  // by rank
  std::map<const s4u::Link*, double> bytes;
  std::map<std::pair<int, int>, double> seconds;  // of two ranks, on a link whose rate each message has for itself
  int64_t messages = 0, near_bytes = 0, far_bytes = 0;

  void add(int from, int to, int64_t sent, bool near) {
    ++messages;
    (near ? near_bytes : far_bytes) += sent;
    std::vector<s4u::Link*> route;
    double latency = 0;
    hosts[static_cast<size_t>(from)]->route_to(hosts[static_cast<size_t>(to)], route, &latency);
    for (const s4u::Link* link : route) {
      const auto size = static_cast<double>(sent);
      if (link->get_sharing_policy() == s4u::Link::SharingPolicy::FATPIPE)
        seconds[{from, to}] += size / link->get_bandwidth();
      else bytes[link] += size;
    }
  }
  // Seconds that the busiest link needs, or the busiest pair of ranks with a rate of its own.
  double bound() const {
    double most = 0;
    for (const auto& [link, sent] : bytes) most = std::max(most, sent / link->get_bandwidth());
    for (const auto& [pair, needed] : seconds) most = std::max(most, needed);
    return most;
  }
};
Traffic traffic;
s4u::BarrierPtr begins;  // of all ranks, in no time
// All messages of all ranks lie here, one over the other: folded pages, which SMPI does not copy.
std::byte* rows_of_all = nullptr;

// Counts of tokens [begin, end) of one source.
class Routing {
 public:
  Routing(const Options& o, const Islands& islands, int member, int64_t source)
      : o_(o), islands_(islands), member_(member), noise_(make_rng_key(static_cast<uint64_t>(source), "choices")) {
    if (!o.zipf) return;
    std::vector<double> popularity;
    for (int64_t i = 1; i <= o.experts; ++i) popularity.push_back(std::pow(static_cast<double>(i), -*o.zipf));
    const RngKey shuffle = make_rng_key(1, "order");
    for (size_t i = popularity.size(); i > 1; --i)
      std::swap(popularity[i - 1], popularity[static_cast<size_t>(uniform_at(shuffle, i) * static_cast<double>(i))]);
    std::partial_sum(popularity.begin(), popularity.end(), std::back_inserter(up_to_));
  }

  SourceCounts counts(int64_t begin, int64_t end) {
    SourceCounts counts;
    counts.sent.assign(static_cast<size_t>(islands_.size()), 0);
    counts.units = counts.sent;
    counts.rows.assign(static_cast<size_t>(o_.experts), 0);
    if (!o_.zipf) put_mean(begin, end, counts);
    else
      for (int64_t t = begin; t < end; ++t) draw(counts);
    return counts;
  }

 private:
  int64_t slots() const { return o_.experts / islands_.size(); }
  int receiver(int member) const {
    return islands_.is_near(member_, member)
               ? member
               : islands_.gateway(member_, islands_.island_of[static_cast<size_t>(member)]);
  }

  // The same of all sources: means of uniform choices.
  void put_mean(int64_t begin, int64_t end, SourceCounts& counts) const {
    MoeSpec moe;
    moe.experts = o_.experts;
    moe.top_k = o_.top_k;
    const auto among = [&](double of_token) {
      return std::llround(static_cast<double>(end) * of_token) - std::llround(static_cast<double>(begin) * of_token);
    };
    const double choices = static_cast<double>(o_.top_k) / islands_.size();
    for (const std::vector<int>& island : islands_.members) {
      int64_t most = 0, all = 0;
      for (const int m : island) {
        const int64_t rows = among(choices);
        for (int64_t s = 0; s < slots(); ++s)
          counts.rows[static_cast<size_t>(m * slots() + s)] = rows * (s + 1) / slots() - rows * s / slots();
        int64_t& units = counts.units[static_cast<size_t>(m)];
        units = rows == 0 || !o_.merges() ? rows : std::clamp<int64_t>(among(chance_of_any(moe, slots())), 1, rows);
        most = std::max(most, units);
        all += units;
        if (islands_.is_near(member_, m)) counts.sent[static_cast<size_t>(m)] = units;
      }
      if (islands_.is_near(member_, island.front())) continue;
      counts.sent[static_cast<size_t>(receiver(island.front()))] =
          o_.merges() ? std::clamp<int64_t>(among(chance_of_any(moe, slots() * std::ssize(island))), most, all) : all;
    }
  }

  // Different experts, one after the other, each with its popularity among those that are left.
  void draw(SourceCounts& counts) {
    std::vector<int64_t> experts;
    std::vector<int> members, receivers;
    const auto add = [&](std::vector<int>& seen, int m, std::vector<int64_t>& of) {
      if (o_.merges() && std::find(seen.begin(), seen.end(), m) != seen.end()) return;
      seen.push_back(m);
      ++of[static_cast<size_t>(m)];
    };
    while (std::ssize(experts) < o_.top_k) {
      const double u = static_cast<double>(bits_at(noise_, draws_++) >> 11) * 0x1p-53;
      const auto found = std::upper_bound(up_to_.begin(), up_to_.end(), u * up_to_.back());
      const int64_t expert = std::min<int64_t>(found - up_to_.begin(), o_.experts - 1);
      if (std::find(experts.begin(), experts.end(), expert) != experts.end()) continue;
      experts.push_back(expert);
      ++counts.rows[static_cast<size_t>(expert)];
      const int m = static_cast<int>(expert / slots());
      add(members, m, counts.units);
      add(receivers, receiver(m), counts.sent);
    }
  }

  const Options& o_;
  const Islands& islands_;
  int member_;
  RngKey noise_;
  uint64_t draws_ = 0;
  std::vector<double> up_to_;  // sums of popularity up to each expert
};

// One rank's part.
class Exchange {
 public:
  Exchange(const Options& o, Comm& world) : o_(o), world_(world) {
    const int block = (o.ep > 0 ? o.ep : world.size()) * o.stride;  // ranks among which o.stride groups alternate
    const int first = world.rank() / block * block + world.rank() % o.stride;
    ep_ = world.split(first, 0);
    for (int m = 0; m < ep_->size(); ++m) ranks_.push_back(first + m * o.stride);
    islands_ = make_islands(ranks_, {o.ranks_per_node, {}});
    for (int64_t m = 0; m <= ep_->size(); ++m) rank_offsets_.push_back(m * o.experts / ep_->size());
    Routing routing(o, islands_, ep_->rank(), world.rank());
    for (int64_t c = 0; c < o.chunks; ++c)
      counts_.push_back(routing.counts(o.tokens * c / o.chunks, o.tokens * (c + 1) / o.chunks));
  }

  nlohmann::ordered_json run() {
    std::vector<int64_t> to_members(ranks_.size(), 0);  // flat and printed: rows to each, of all chunks
    for (const SourceCounts& counts : counts_)
      for (size_t m = 0; m < ranks_.size(); ++m)
        to_members[m] += std::accumulate(counts.rows.begin() + rank_offsets_[m],
                                         counts.rows.begin() + rank_offsets_[m + 1], int64_t{0});
    const int64_t block = o_.row_bytes * largest(*std::max_element(to_members.begin(), to_members.end()));
    if (!begins) begins = s4u::Barrier::create(static_cast<unsigned>(world_.size()));
    traffic.hosts.resize(static_cast<size_t>(world_.size()));
    traffic.hosts[static_cast<size_t>(world_.rank())] = s4u::Host::current();

    std::vector<ExchangePlan> plans;
    RowExchange flat;
    const double counting = seconds_of([&] {
      if (o_.by_node()) plans = exchange_counts(*ep_, islands_, rank_offsets_, counts_);
      else if (o_.transport == "flat") flat = exchange_flat_counts(to_members);
    });
    make_room(std::max(block * std::max(islands_.count(), o_.ranks_per_node), o_.row_bytes * largest_message(plans)));
    const double moving = seconds_of([&] {
      if (o_.by_node()) send_by_node(plans);
      else if (o_.transport == "flat") send_flat(flat);
      else if (o_.transport == "at_once") send_blocks(members_but(ep_->rank()), block);
      else send_as_printed(block);
    });
    return {{"counts_us", 1e6 * counting},      {"rows_us", 1e6 * moving},        {"bound_us", 1e6 * traffic.bound()},
            {"near_bytes", traffic.near_bytes}, {"far_bytes", traffic.far_bytes}, {"messages", traffic.messages}};
  }

 private:
  int64_t largest(int64_t rows) {
    std::vector<int64_t> most = {rows};
    world_.all_reduce_max(std::span(most));
    return most[0];
  }
  int64_t largest_message(const std::vector<ExchangePlan>& plans) {
    int64_t rows = 0;
    for (const ExchangePlan& plan : plans)
      for (const ExchangeLeg* leg : {&plan.home, &plan.far, &plan.spread})
        for (const RowMessage& message : leg->send) rows = std::max(rows, message.rows);
    return largest(rows);
  }
  static void make_room(int64_t bytes) {
    if (rows_of_all == nullptr)
      rows_of_all = static_cast<std::byte*>(SMPI_SHARED_MALLOC(static_cast<size_t>(std::max<int64_t>(bytes, 1 << 20))));
  }

  // All ranks begin at the same time; until the last one's end.
  template <class Body>
  double seconds_of(const Body& body) {
    begins->wait();
    const double begin = MPI_Wtime();
    body();
    std::vector<double> seconds = {MPI_Wtime() - begin};
    world_.all_reduce_max(std::span(seconds));
    return seconds[0];
  }

  // As FlatTransport does: rows for each expert, to the ranks that have them.
  RowExchange exchange_flat_counts(const std::vector<int64_t>& to_members) {
    const auto members = ranks_.size();
    const int64_t slots = rank_offsets_[1];
    std::vector<int64_t> out(static_cast<size_t>(o_.experts), 0), in(out.size());
    for (size_t m = 0; m < members; ++m) out[m * static_cast<size_t>(slots)] = to_members[m];
    RowExchange x;
    x.row_bytes = sizeof(int64_t);
    x.send_counts.assign(members, slots);
    for (size_t m = 0; m < members; ++m) x.send_offsets.push_back(static_cast<int64_t>(m) * slots);
    x.receive_counts = x.send_counts;
    x.receive_offsets = x.send_offsets;
    x.send = out.data();
    x.receive = in.data();
    ep_->all_to_all(x)->wait();
    for (size_t m = 0; m < members; ++m) x.receive_counts[m] = in[m * static_cast<size_t>(slots)];
    x.send_counts = to_members;
    std::exclusive_scan(x.send_counts.begin(), x.send_counts.end(), x.send_offsets.begin(), int64_t{0});
    std::exclusive_scan(x.receive_counts.begin(), x.receive_counts.end(), x.receive_offsets.begin(), int64_t{0});
    return x;
  }

  using Pendings = std::vector<std::unique_ptr<Pending>>;
  static void wait(Pendings& pending) {
    for (const auto& each : pending) each->wait();
    pending.clear();
  }

  void note(size_t to, int64_t bytes) {
    traffic.add(world_.rank(), ranks_[to], bytes, islands_.is_near(ep_->rank(), static_cast<int>(to)));
  }
  void start(RowExchange x, Pendings& pending) {
    x.send = x.receive = rows_of_all;
    x.send_offsets.assign(ranks_.size(), 0);
    x.receive_offsets = x.send_offsets;
    for (size_t m = 0; m < ranks_.size(); ++m)
      if (x.send_counts[m] > 0 && static_cast<int>(m) != ep_->rank()) note(m, x.send_counts[m] * x.row_bytes);
    pending.push_back(ep_->all_to_all(x));
  }

  void send_flat(RowExchange x) {
    Pendings rows;
    for (const int64_t bytes : o_.parts()) {
      x.row_bytes = bytes;
      start(x, rows);
    }
    wait(rows);
  }

  // In the order of ByNodeTransport, by experts that take no time.
  void send_by_node(const std::vector<ExchangePlan>& plans) {
    std::vector<Pendings> far(plans.size()), home(plans.size()), spread(plans.size());
    size_t passed_on = 0;  // chunks
    const auto start_leg = [&](const ExchangeLeg& leg, int64_t bytes, Pendings& pending) {
      start(exchange_of(leg, Direction::to_experts, ep_->size(), bytes, rows_of_all, rows_of_all), pending);
    };
    const auto pass_on = [&](size_t c) {
      if (c < passed_on) return;
      wait(far[c]);
      passed_on = c + 1;
      if (islands_.count() > 1)
        for (const int64_t bytes : o_.parts()) start_leg(plans[c].spread, bytes, spread[c]);
    };
    const auto begin = [&](size_t c) {
      if (c > 0) pass_on(c - 1);
      for (const int64_t bytes : o_.parts()) {
        if (islands_.count() > 1) start_leg(plans[c].far, bytes, far[c]);
        start_leg(plans[c].home, bytes, home[c]);
      }
    };
    begin(0);
    for (size_t c = 0; c < plans.size(); ++c) {
      if (c + 1 < plans.size()) begin(c + 1);
      pass_on(c);
      wait(home[c]);
      wait(spread[c]);
    }
  }

  // Blocks of equal size to and from each of some members, all at once.
  void send_blocks(const std::vector<int>& members, int64_t bytes) {
    std::vector<MPI_Request> requests;
    for (const int m : members)
      PMPI_Irecv(rows_of_all, to_mpi_count(bytes), MPI_BYTE, ranks_[static_cast<size_t>(m)], 0, MPI_COMM_WORLD,
                 &requests.emplace_back());
    for (const int m : members) {
      note(static_cast<size_t>(m), bytes);
      PMPI_Isend(rows_of_all, to_mpi_count(bytes), MPI_BYTE, ranks_[static_cast<size_t>(m)], 0, MPI_COMM_WORLD,
                 &requests.emplace_back());
    }
    MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  }
  std::vector<int> members_but(int own) const {
    std::vector<int> members;
    for (int i = 1; i < ep_->size(); ++i) members.push_back((own + i) % ep_->size());
    return members;
  }
  // Phases one after the other, every block as large as the largest.
  void send_as_printed(int64_t block) {
    std::vector<int> island, others;
    for (const int m : members_but(ep_->rank())) {
      if (islands_.is_near(ep_->rank(), m)) island.push_back(m);
      else if (islands_.place_of[static_cast<size_t>(m)] == islands_.place_of[static_cast<size_t>(ep_->rank())])
        others.push_back(m);
    }
    send_blocks(island, block);
    send_blocks(others, block * (std::ssize(island) + 1));
    send_blocks(island, block * std::ssize(others));
  }

  const Options& o_;
  Comm& world_;
  std::unique_ptr<Comm> ep_;
  std::vector<int> ranks_;  // of the group's members
  Islands islands_;
  std::vector<int64_t> rank_offsets_;
  std::vector<SourceCounts> counts_;  // by chunk
};

void simulate(const Options& o) {
  Progress progress;
  OpenExchanges open;
  const std::unique_ptr<Comm> world = make_mpi_comm(MPI_COMM_WORLD, false, progress, open);
  if (o.experts % (o.ep > 0 ? o.ep : world->size()) != 0)
    fail(Exit::usage, "the ranks of an EP group must have equally many experts");
  const nlohmann::ordered_json line = Exchange(o, *world).run();
  if (world->rank() == 0) std::printf("%s\n", line.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  Options o;
  CLI::App app("One dispatch of an MoE layer's rows under SimGrid SMPI");
  app.add_option("--transport", o.transport)->check(CLI::IsMember({"flat", "halo", "bypass", "at_once", "printed"}));
  app.add_option("--experts", o.experts);
  app.add_option("--top-k", o.top_k);
  app.add_option("--tokens", o.tokens, "of each rank");
  app.add_option("--row-bytes", o.row_bytes);
  app.add_option("--ranks-per-node", o.ranks_per_node);
  app.add_option("--chunks", o.chunks)->check(CLI::PositiveNumber);
  app.add_option("--ep", o.ep, "ranks of an EP group; 0: all");
  app.add_option("--stride", o.stride, "distance of an EP group's ranks");
  app.add_flag("--forward", o.forward, "with the choices and gate weights of a forward dispatch");
  app.add_option("--zipf", o.zipf, "draw the routing, with this exponent of the experts' popularity");
  CLI11_PARSE(app, argc, argv);
  try {
    simulate(o);
  } catch (const Error& error) {
    std::fprintf(stderr, "exchange_scale: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(error.code()));
  }
  MPI_Finalize();
  return 0;
}
