// A platform for smpirun: nodes of Frontier, a host for each of 8 GCDs ("gcd-0" and so on), in one group of 128 nodes
// on 32 switches. Figures of the OLCF user guide and of the papers on X-MoE and Piper; shares and latencies are
// assumed:
//   between GCDs  200, 100 or 50 GB/s both ways together, of which 75 % are reached; without a link, over one GCD
//   between nodes 4 NICs of 25 GB/s a node, of which 90 % are reached, each of 2 GCDs; 4 nodes share a switch
//   between switches one link of 25 GB/s for each pair
// FRONTIER_ROUTES=ideal: links between switches bind nothing, as if routes adapted to the load; otherwise each message
// takes the one link between its switches.
#include <array>
#include <cstdlib>
#include <simgrid/kernel/routing/NetPoint.hpp>
#include <simgrid/kernel/routing/NetZoneImpl.hpp>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

namespace {

namespace routing = simgrid::kernel::routing;
using simgrid::kernel::resource::StandardLinkImpl;

constexpr int kGcds = 8, kNics = 4, kNodes = 128, kSwitches = 32, kNodesOfSwitch = kNodes / kSwitches;
constexpr double kNicRate = 0.9 * 25e9, kSwitchRate = 25e9, kFabricShare = 0.75 / 2;  // of both ways
constexpr double kNicLatency = 1e-6, kSwitchLatency = 0.35e-6, kFabricLatency = 2e-6;

struct Wire {
  StandardLinkImpl* link = nullptr;
  double latency = 0;
};

class FrontierZone : public routing::NetZoneImpl {
 public:
  FrontierZone() : NetZoneImpl("frontier") {
    const char* routes = std::getenv("FRONTIER_ROUTES");
    ideal_ = routes != nullptr && std::string(routes) == "ideal";
    for (const auto& [a, b, rate] : {std::array{0, 1, 200},
                                     {2, 3, 200},
                                     {4, 5, 200},
                                     {6, 7, 200},
                                     {0, 6, 100},
                                     {2, 4, 100},
                                     {0, 2, 50},
                                     {1, 3, 50},
                                     {1, 5, 50},
                                     {3, 7, 50},
                                     {4, 6, 50},
                                     {5, 7, 50}})
      rates_[index(a, b)] = rates_[index(b, a)] = rate;
    for (int node = 0; node < kNodes; ++node) add_node(node);
    for (int a = 0; a < kSwitches; ++a)
      for (int b = 0; b < kSwitches; ++b)
        between_.push_back(a == b ? Wire{} : wire("switch", a, b, kSwitchRate, kSwitchLatency));
  }

  void get_local_route(const routing::NetPoint* from, const routing::NetPoint* to, routing::Route* into,
                       double* latency) override {
    const auto add = [&](const Wire& wire) {
      into->link_list_.push_back(wire.link);
      if (latency != nullptr) *latency += wire.latency;
    };
    const int source = number_of(from), target = number_of(to);
    const int a = source % kGcds, b = target % kGcds, node = source / kGcds, other = target / kGcds;
    if (node == other) {
      const int by = over(a, b);
      add(fabric_[static_cast<size_t>(node)][index(a, by)]);
      if (by != b) add(fabric_[static_cast<size_t>(node)][index(by, b)]);
      return;
    }
    add(out_[static_cast<size_t>(node * kNics + a / 2)]);
    const int switch_a = node / kNodesOfSwitch, switch_b = other / kNodesOfSwitch;
    if (!ideal_ && switch_a != switch_b) add(between_[static_cast<size_t>(switch_a * kSwitches + switch_b)]);
    if (ideal_ && latency != nullptr) *latency += kSwitchLatency;
    add(in_[static_cast<size_t>(other * kNics + b / 2)]);
  }
  void get_graph(const s_xbt_graph_t*, std::map<std::string, xbt_node_t, std::less<>>*,
                 std::map<std::string, xbt_edge_t, std::less<>>*) override {}

 private:
  static constexpr size_t index(int a, int b) { return static_cast<size_t>(a * kGcds + b); }
  static int number_of(const routing::NetPoint* host) { return std::atoi(host->get_name().c_str() + 4); }
  // The GCD that messages from a to b go to first: b itself, or the one with the widest links to both.
  int over(int a, int b) const {
    if (a == b || rates_[index(a, b)] > 0) return b;
    int best = b, most = 0;
    for (int by = 0; by < kGcds; ++by) {
      const int rate = std::min(rates_[index(a, by)], rates_[index(by, b)]);
      if (rate > most) best = by, most = rate;
    }
    return best;
  }
  Wire wire(const std::string& kind, int a, int b, double rate, double latency) {
    auto* link = get_iface()->create_link(kind + "-" + std::to_string(a) + "-" + std::to_string(b), rate);
    link->set_latency(latency)->seal();
    return {link->get_impl(), latency};
  }
  void add_node(int node) {
    const std::string name = "fabric-" + std::to_string(node);
    auto& fabric = fabric_.emplace_back();
    for (int a = 0; a < kGcds; ++a) {
      get_iface()->create_host("gcd-" + std::to_string(node * kGcds + a), 1e11)->seal();
      for (int b = 0; b < kGcds; ++b)
        if (const int rate = rates_[index(a, b)]; rate > 0)
          fabric[index(a, b)] = wire(name, a, b, kFabricShare * 1e9 * rate, kFabricLatency);
    }
    for (int nic = 0; nic < kNics; ++nic) {
      out_.push_back(wire("out", node, nic, kNicRate, kNicLatency));
      in_.push_back(wire("in", node, nic, kNicRate, kNicLatency));
    }
  }

  bool ideal_ = false;
  std::array<int, kGcds * kGcds> rates_{};               // GB/s, 0: no link
  std::vector<std::array<Wire, kGcds * kGcds>> fabric_;  // by node
  std::vector<Wire> out_, in_;                           // by NIC
  std::vector<Wire> between_;                            // by pair of switches
};

}  // namespace

extern "C" void load_platform(const simgrid::s4u::Engine&);
void load_platform(const simgrid::s4u::Engine&) { (new FrontierZone)->get_iface()->seal(); }
