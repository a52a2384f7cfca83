#include "probe/links.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "core/tensor_store.h"
#include "ops/device.h"
#include "ops/matmul.h"

namespace mw {
namespace {

// Of messages in ascending size: the latency of the smallest, and the rate that each of the others adds to it. Where
// latency is most of both, noise would be the rate: what is added counts half of the time at least.
LinkCost fit(const std::vector<double>& bytes, const std::vector<double>& seconds) {
  LinkCost cost;
  cost.latency_s = seconds.front();
  for (size_t i = 1; i < bytes.size(); ++i)
    cost.rates.push_back({bytes[i], bytes[i] / std::max(seconds[i] - cost.latency_s, 0.5 * seconds[i])});
  cost.bytes_per_s = cost.rates.back().per_second;
  return cost;
}

struct Buffers {
  Buffers(Device device, int64_t bytes)
      : store({{"send", DType::u8, {bytes}, 0}, {"receive", DType::u8, {bytes}, 0}}, arenas_of(device)),
        send(static_cast<std::byte*>(store.fixed("send").data)),
        receive(static_cast<std::byte*>(store.fixed("receive").data)) {}
  TensorStore store;
  std::byte *send, *receive;
};

// `bytes` from every member, shared out to all.
RowExchange even_exchange(const Buffers& buffers, int members, int64_t bytes) {
  const int64_t each = bytes / members;
  RowExchange x;
  x.row_bytes = 1;
  x.send = buffers.send;
  x.receive = buffers.receive;
  for (int64_t member = 0; member < members; ++member) {
    x.send_offsets.push_back(member * each);
    x.send_counts.push_back(each);
  }
  x.receive_offsets = x.send_offsets;
  x.receive_counts = x.send_counts;
  return x;
}

struct LevelMeter {
  Comm& group;
  Meter& meter;
  Stream& stream;
  Buffers& buffers;
  std::vector<int64_t> sizes;
  int inside;  // ranks that nearer links join

  template <class Transfer>
  LinkCost measure(double share, const Transfer& transfer) {
    std::vector<double> bytes, seconds;
    for (const int64_t size : sizes) {
      bytes.push_back(std::round(share * static_cast<double>(size)));
      seconds.push_back(meter.seconds_of([&] { transfer(size); }));
    }
    return fit(bytes, seconds);
  }
  // By the bytes that leave what nearer links join.
  LinkCost all_to_all() {
    return measure(static_cast<double>(group.size() - inside) / group.size(), [&](int64_t bytes) {
      group.all_to_all(stream, even_exchange(buffers, group.size(), bytes))->wait();
    });
  }
  // A sum passes every link twice; ranks that nearer links join share what leaves them.
  LinkCost ring() {
    const double members = group.size();
    LinkCost cost = measure(2 * (members - 1) / members / inside, [&](int64_t bytes) {
      group.all_reduce_sum(stream, std::span(reinterpret_cast<float*>(buffers.send), static_cast<size_t>(bytes) / 4))
          ->wait();
    });
    cost.latency_s /= 2;
    return cost;
  }
  // A sum that one member gets, and what it then has for all: each member's turn.
  LinkCost owner() {
    const auto members = static_cast<size_t>(group.size());
    size_t turn = 0;
    LinkCost both = measure(1, [&](int64_t bytes) {
      std::vector<int64_t> counts(members);
      counts[turn % members] = bytes / 4;
      const std::span values(reinterpret_cast<float*>(buffers.send), static_cast<size_t>(bytes) / 4);
      group.reduce_scatter_sum(stream, values, counts)->wait();
      counts[turn++ % members] = bytes;
      group.all_gather(stream, std::as_writable_bytes(values), counts)->wait();
    });
    both.latency_s /= 2;
    both.bytes_per_s *= 2;
    for (RatePoint& point : both.rates) point.per_second *= 2;
    return both;
  }
  // To the next member beyond nearer links and from the one before, all at the same time: an exchange is what every
  // library does at once in both directions.
  LinkCost message() {
    return message([](int) { return true; });
  }
  // Ranks that share a link outward: how much faster a message is where one of them sends alone.
  int64_t ranks_per_link(const LinkCost& of_all) {
    const LinkCost alone = message([&](int rank) { return rank % inside == 0; });
    return std::clamp<int64_t>(std::llround(alone.bytes_per_s / of_all.bytes_per_s), 1, inside);
  }

 private:
  template <class Sends>
  LinkCost message(const Sends& sends) {
    const auto members = static_cast<size_t>(group.size()),
               next = static_cast<size_t>((group.rank() + inside) % group.size()),
               before = static_cast<size_t>((group.rank() + group.size() - inside) % group.size());
    return measure(1, [&](int64_t bytes) {
      RowExchange x = even_exchange(buffers, group.size(), 0);
      x.send_offsets.assign(members, 0);
      x.receive_offsets.assign(members, 0);
      if (sends(group.rank())) x.send_counts[next] = x.receive_counts[before] = bytes;
      group.all_to_all(stream, x)->wait();
    });
  }
};

// How much slower products are while rows travel beside them.
double measure_slowdown(Comm& group, Meter& meter, Stream& stream, Buffers& buffers, int64_t bytes) {
  const int64_t rows = 8192, width = 2048;
  TensorStore t({{"values", DType::f32, {width, width}, 0},
                 {"packed", DType::u8, {packed_weight_bytes(width, width, true)}, 0},
                 {"x", DType::bf16, {rows, width}, 0},
                 {"y", DType::bf16, {rows, width}, 0}},
                arenas_of(stream.device()));
  const Weight w{width, width, t.fixed("values"), t.fixed("packed"), t.fixed("packed")};
  pack_weight(stream, w);
  const TensorView x = t.fixed("x"), y = t.fixed("y");
  const RowExchange exchange = even_exchange(buffers, group.size(), bytes);
  const double exchanging = meter.seconds_of([&] { group.all_to_all(stream, exchange)->wait(); });
  const double product = meter.seconds_of([&] { matmul(stream, x, w, y); });
  const auto products = std::max<int64_t>(1, static_cast<int64_t>(exchanging / product));
  const double alone = meter.seconds_of([&] {
    for (int64_t i = 0; i < products; ++i) matmul(stream, x, w, y);
  });
  const double beside = meter.seconds_of([&] {
    const auto pending = group.all_to_all(stream, exchange);
    for (int64_t i = 0; i < products; ++i) matmul(stream, x, w, y);
    pending->wait();
  });
  return std::clamp(beside / std::max(alone, exchanging), 1.0, 3.0);
}

// Sums and gathers as those of gradients, whole and cut: message libraries keep memory once they were used.
void use_sums(Comm& group, Stream& stream) {
  const int64_t members = group.size(), each = (int64_t{8} << 20) / members, elements = each * members;
  TensorStore memory({{"gradients", DType::f32, {elements}, 0}}, arenas_of(stream.device()));
  const std::span values(memory.fixed("gradients").as<float>(), static_cast<size_t>(elements));
  const std::vector<int64_t> counts(static_cast<size_t>(members), each),
      bytes(static_cast<size_t>(members), each * size_of(DType::f32));
  group.all_reduce_sum(stream, values)->wait();
  group.reduce_scatter_sum(stream, values, counts)->wait();
  group.all_gather(stream, std::as_writable_bytes(values), bytes)->wait();
}

// Ranks of a level, from near to far: those of a node, where several share one, and all of several nodes.
std::vector<int> level_sizes(World& world) {
  const int ranks = world.comm().size(), local = std::max(1, world.local_size());
  std::vector<int> sizes;
  if (local > 1) sizes.push_back(local);
  if (world.nodes() > 1) sizes.push_back(ranks);
  return sizes;
}

std::vector<int64_t> message_sizes(bool on_gpu) {
  const int64_t large = int64_t{on_gpu ? 256 : 8} << 20;
  std::vector<int64_t> bytes;
  for (int64_t size = int64_t{4} << 10; size < large; size *= 16) bytes.push_back(size);
  bytes.push_back(large);
  return bytes;
}

// Members next to each other that a mesh makes groups of, whose other axis are groups at that distance: both are
// measured. `inside`: ranks of a level that nearer links join; from there on only groups with one member there.
std::vector<int> shapes_of_level(int size, int inside) {
  if (inside > 1) return {inside};
  std::vector<int> near;
  for (int members = 2; members < size; members *= 2)
    if (size % members == 0) near.push_back(members);
  return near;
}

}  // namespace

void measure_links(World& world, Meter& meter, Stream& stream, PlatformProfile& profile) {
  const Device device = stream.device();
  const bool on_gpu = device.kind != DeviceKind::cpu;
  const int local = std::max(1, world.local_size());
  std::array<int64_t, 2> most = {local, -local};
  world.comm().all_reduce_max(std::span(most));
  if (most[0] != -most[1])
    fail(Exit::usage, fmt::format("the number of ranks per node differs: {} to {}", -most[1], most[0]),
         "start the same number of ranks on every node");
  profile.levels.clear();
  const std::vector<int> sizes = level_sizes(world);
  if (sizes.empty()) {
    profile.levels = {{"one rank", 1, {1e-6, 1e9}, {1e-6, 1e9}, {1e-6, 1e9}}};
    return;
  }
  const std::vector<int64_t> bytes = message_sizes(on_gpu);
  Buffers buffers(device, bytes.back());
  int inside = 1;
  for (const int size : sizes) {
    const std::string name = size > local ? "network" : on_gpu ? "links of a node" : "shared memory";
    const auto own = world.comm().split(world.comm().rank() / size, world.comm().rank());
    const int64_t free_before = on_gpu ? free_bytes(device) : 0;
    MeshSpec spec;
    spec.ep = own->size();
    const MeshComms comms = make_mesh_comms(*own, make_mesh(spec, own->size()), device);
    LevelMeter level{*comms.ep, meter, stream, buffers, bytes, inside};
    LinkLevel measured{name, size, level.all_to_all(), level.ring(), level.message(), {}, level.owner()};
    if (inside > 1) measured.ranks_per_link = level.ranks_per_link(measured.message);
    profile.levels.push_back(measured);
    inside = size;
    if (!on_gpu) {
      use_sums(*comms.ep, stream);
      continue;
    }
    profile.overlap_slowdown = measure_slowdown(*comms.ep, meter, stream, buffers, bytes.back());
    if (!comms.gpu_library.empty() && profile.libraries.size() < 2)
      profile.libraries.push_back({comms.gpu_library, std::max<int64_t>(0, free_before - free_bytes(device)), true});
  }
}

int count_group_shapes(World& world) {
  int count = 0, inside = 1;
  for (const int size : level_sizes(world)) {
    const auto near = static_cast<int>(shapes_of_level(size, inside).size());
    count += inside > 1 ? near : 2 * near;
    inside = size;
  }
  return count;
}

void measure_groups(World& world, Meter& meter, Stream& stream, PlatformProfile& profile) {
  const std::vector<int64_t> bytes = message_sizes(stream.device().kind != DeviceKind::cpu);
  Buffers buffers(stream.device(), bytes.back());
  int inside = 1;
  for (LinkLevel& level : profile.levels) {
    const auto size = static_cast<int>(level.ranks);
    std::vector<GroupCosts> groups;
    for (const int near : shapes_of_level(size, inside)) {
      const auto own = world.comm().split(world.comm().rank() / size, world.comm().rank());
      MeshSpec spec;
      spec.ep = near;
      const MeshComms comms = make_mesh_comms(*own, make_mesh(spec, own->size()), stream.device());
      const auto measure = [&](Comm& group, int64_t stride) {
        LevelMeter meter_of{group, meter, stream, buffers, bytes, 1};
        groups.push_back({group.size(), stride, meter_of.all_to_all(), meter_of.ring(), meter_of.owner()});
      };
      if (inside == 1) measure(*comms.ep, 1);
      measure(*comms.edp, near);
    }
    if (!groups.empty()) level.groups = groups;
    inside = size;
  }
}

}  // namespace mw
