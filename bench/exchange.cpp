// The exchange of one MoE layer's routed rows over the ranks of a job, by several transports in turn. Experts copy
// their rows, so that the result is known: every run checks it.
//   mpirun -np 32 bench_exchange --ranks-per-node 8 --transport flat halo bypass --tokens 256 --width 512 --json FILE
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "base/file.h"
#include "comm/world.h"
#include "engine/engine.h"
#include "exchange_arm.h"
#include "layout/recompute.h"
#include "model/make_transport.h"
#include "model/param_store.h"
#include "model/platform.h"
#include "ops/device.h"
#include "ops/elementwise.h"
#include "planner/exchange_time.h"

namespace {

using namespace mw;
using namespace mw::bench;

// One transport with its memory.
class Exchange : public Arm {
 public:
  Exchange(World& world, MeshComms& comms, const Options& o, const std::string& name, Device device)
      : Arm(world.comm(), name),
        plan_(plan_of(world, o, name, device)),
        stream_(open_stream(device, 1)),
        store_(to_slots(plan_.activation_rows), arenas_of(device)) {
    attach_workspaces(store_, stream_, *comms.ep);
    exchanges_ = comms.ep->exchange_stream();
    const Islands islands = make_islands(group_of(plan_.mesh, MeshAxis::ep, plan_.rank), plan_.nodes);
    const LayerRows row(Recompute::none, 0, 0);
    ExpertScratch experts{store_.rows("work.expert_a"),
                          store_.rows("work.expert_y"),
                          store_.rows("work.row_weights"),
                          store_.rows("work.d_row_weights"),
                          {},
                          {}};
    if (store_.has("exchange.rows")) experts.exchange_rows = store_.rows("exchange.rows");
    if (store_.has("exchange.weights")) experts.exchange_weights = store_.rows("exchange.weights");
    if (gathers()) {
      const WeightSlots& slots = plan_.weight_cache.slots;
      cache_ = std::make_unique<WeightCache>(store_.fixed(kWeightSlots), slots);
      for (const bool backward : {false, true})  // every pass gathers again
        uses_.push_back(plan_weight_uses({{0, backward}}, {pieces_of(plan_.gathers[0])}, slots.count()));
    }
    transport_ = make_transport(plan_.transports[0], {comms,
                                                      plan_.placements->layers[0],
                                                      islands,
                                                      {},
                                                      plan_.gathers[0],
                                                      resident_experts(),
                                                      {},
                                                      experts,
                                                      store_,
                                                      row,
                                                      o.chunks,
                                                      false,
                                                      Fault::none,
                                                      cache_.get()});
    x_ = store_.fixed("work.normed");
    out_ = store_.fixed("work.branch");
    d_weights_ = store_.fixed("work.d_gate").reshape({o.tokens, o.top_k});
    weights_ = store_.fixed(row("gate_weights"));
    const std::vector<float> equal(static_cast<size_t>(o.tokens * o.top_k), 1.0f / static_cast<float>(o.top_k));
    write_values<float>(stream_, equal, weights_);
    std::vector<bf16> x(static_cast<size_t>(x_.numel()));
    const RngKey key = make_rng_key(7 + static_cast<uint64_t>(world.comm().rank()), "x");
    for (size_t i = 0; i < x.size(); ++i) x[i] = to_bf16(std::round(8 * normal_at(key, i)) / 8);
    write_values<bf16>(stream_, x, x_);
    TensorView ids = store_.fixed(row("expert_choice"));
    write_values<int32_t>(stream_, draw_choices(o, world.comm().rank()), ids);
    layout_ = {o.tokens,
               o.top_k,
               o.experts,
               0,
               0,
               store_.fixed(row("token_ids")),
               store_.fixed(row("expert_ids")),
               store_.fixed(row("row_weights")),
               store_.fixed(row("row_of")),
               store_.fixed(row("rows_per_expert"))};
    build_token_layout(stream_, ids, weights_, {}, plan_.placements->layers[0].position_of_expert(), {}, layout_);
  }

  // Each token's row must come out, or K times it as the sum of gradients; where ranks have slices of the experts, each
  // of them adds as much.
  double error() override {
    std::vector<double> worst = {0};
    transport_->prepare(stream_, {layout_, {}, {}}, weights_, true);
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      dispatch(pass);
      combine(pass);
      float times = pass == Pass::forward ? 1 : static_cast<float>(layout_.top_k);
      if (slices()) times *= static_cast<float>(comm_.size());
      const std::vector<bf16> x = read_values<bf16>(stream_, x_), out = read_values<bf16>(stream_, out_);
      for (size_t i = 0; i < x.size(); ++i)
        worst[0] = std::max(worst[0], static_cast<double>(std::abs(to_float(out[i]) / times - to_float(x[i]))));
    }
    comm_.all_reduce_max(std::span(worst));
    return worst[0];
  }

 private:
  void prepare() override {
    transport_->prepare(stream_, {layout_, {}, {}}, weights_, true);
    stream_.wait();
  }
  double run_phase(int phase) override {
    const Pass pass = phase < 2 ? Pass::forward : Pass::backward;
    double copies = 0;
    if (phase % 2 == 0) copies = dispatch(pass);
    else combine(pass);
    stream_.wait();
    if (exchanges_ != nullptr) exchanges_->wait();
    return copies;
  }
  Trace::SentBytes sent_bytes() override { return stream_.trace().sent_bytes(); }

  bool gathers() const { return traits_of(plan_.transports[0]).gathers_weights; }
  bool slices() const { return traits_of(plan_.transports[0]).slices_experts; }

  // Weights of any value, which all experts share, and their gradients; where experts only copy, none.
  ResidentExperts resident_experts() {
    ResidentExperts experts;
    if (slices()) experts.up.resize(static_cast<size_t>(plan_.model.layers[0].moe.experts));
    experts.down = experts.up;
    if (!gathers()) return experts;
    const ExpertForms& f = plan_.gathers[0].forms;
    const auto own = static_cast<int64_t>(plan_.placements->layers[0].experts_of(comm_.rank()).size());
    weights_memory_ =
        std::make_unique<TensorStore>(std::vector<TensorSlot>{{"expert", DType::u8, {f.forward_bytes()}, 0},
                                                              {"d_up", DType::f32, {own, f.up_n, f.up_k}, 0},
                                                              {"d_down", DType::f32, {own, f.down_n, f.down_k}, 0}},
                                      arenas_of(stream_.device()));
    const TensorView forms = weights_memory_->fixed("expert");
    const auto weight = [&](int64_t n, int64_t k, int64_t begin, int64_t bytes) {
      const TensorView form = forms.slice(begin, bytes);
      return Weight{n, k, TensorView(form.data, DType::f32, {n, k}), form, form};
    };
    experts.up.assign(static_cast<size_t>(own), weight(f.up_n, f.up_k, 0, f.up_bytes));
    experts.down.assign(static_cast<size_t>(own), weight(f.down_n, f.down_k, f.up_bytes, f.down_bytes));
    experts.d_up = weights_memory_->fixed("d_up");
    experts.d_down = weights_memory_->fixed("d_down");
    return experts;
  }

  static Plan plan_of(World& world, const Options& o, const std::string& name, Device device) {
    const RunSpec run = run_of(o, name, world.comm().size());
    const ModelSpec model = build_native_model(run.native);
    Platform platform = measure_platform(model, run, make_mesh(run.mesh, world.comm().size()), 1, device.kind);
    platform.nodes = world.place().nodes;
    return make_plan(model, run, world.comm().size(), world.comm().rank(), platform);
  }

  // From the rows that ranks have got, and the closed forms of how many travel.
  std::optional<double> predict(ExchangePhase phase, const PlatformProfile& profile) override {
    const auto ranks = static_cast<size_t>(comm_.size());
    const Transfers transfers(profile, comm_.size());
    if (gathers()) return predict_gather(phase, profile, transfers);
    ExchangeShape shape{.moe = plan_.model.layers[0].moe,
                        .traits = traits_of(plan_.transports[0]),
                        .group = ep_group(plan_.mesh),
                        .tokens = static_cast<double>(layout_.tokens),
                        .row_bytes = static_cast<double>(x_.cols() * size_of(x_.dtype)),
                        .pieces = static_cast<double>(transport_->chunks())};
    shape.near = members_near(shape.group, profile.ranks_per_node, comm_.size());
    std::vector<int64_t> rows(ranks);
    rows[static_cast<size_t>(comm_.rank())] = transport_->rows();
    comm_.all_reduce_sum(std::span(rows));
    const auto fullest = [&](size_t together) {
      int64_t most = 0, all = 0;
      for (size_t begin = 0; begin < ranks; begin += together) {
        const auto from = rows.begin() + static_cast<std::ptrdiff_t>(begin);
        const int64_t sum =
            std::accumulate(from, from + static_cast<std::ptrdiff_t>(std::min(together, ranks - begin)), int64_t{0});
        most = std::max(most, sum);
        all += sum;
      }
      return static_cast<double>(most * comm_.size()) / static_cast<double>(all * static_cast<int64_t>(together));
    };
    shape.load = fullest(1);
    shape.link_load = fullest(static_cast<size_t>(transfers.members_per_link(shape.group)));
    return link_seconds(shape, phase, transfers) + copied_bytes(shape, phase) / profile.elementwise_bytes_per_s;
  }

  double predict_gather(ExchangePhase phase, const PlatformProfile& profile, const Transfers& transfers) {
    const WeightGather& gather = plan_.gathers[0];
    const auto pieces = static_cast<double>(gather.pieces());
    const GatherSeconds of_piece =
        gather_seconds(gather, ep_group(plan_.mesh), profile.overlaps_gradient_sums, transfers);
    switch (phase) {
      case ExchangePhase::dispatch: return pieces * of_piece.forward;
      case ExchangePhase::gradient_dispatch: return pieces * of_piece.backward;
      case ExchangePhase::gradient_combine: return pieces * of_piece.sums;
      default: return 0;
    }
  }

  // Returns the seconds that the experts' copies took.
  double dispatch(Pass pass) {
    double copies = 0;
    const int64_t chunks = transport_->chunks();
    if (gathers()) cache_->follow(uses_[pass == Pass::forward ? 0 : 1]);
    transport_->dispatch_begin(stream_, pass, 0, x_);
    for (int64_t c = 0; c < chunks; ++c) {
      if (c + 1 < chunks) transport_->dispatch_begin(stream_, pass, c + 1, x_);
      if (gathers()) transport_->weights(stream_, pass, c);
      const ExpertBatch batch = transport_->dispatch_finish(stream_, pass, c, x_);
      stream_.wait();
      const double begin = now();
      copy_rows(batch);
      stream_.wait();
      copies += now() - begin;
      if (c + 1 < chunks) transport_->combine_begin(stream_, pass, c);
    }
    return copies;
  }
  void combine(Pass pass) {
    const int64_t chunks = transport_->chunks();
    transport_->combine_begin(stream_, pass, chunks - 1);
    for (int64_t c = 0; c < chunks; ++c) transport_->combine_finish(stream_, pass, c, {{}, out_, d_weights_});
    if (!gathers() || pass != Pass::backward) return;
    for (int64_t c = 0; c < chunks; ++c)
      for (const ExpertMatrix matrix : {ExpertMatrix::down, ExpertMatrix::up}) {
        transport_->gradient(stream_, matrix, c, Store::overwrite);
        transport_->gradient_done(stream_, matrix, c, Store::overwrite);
      }
    transport_->gradients_finish(stream_);
  }
  // Experts that return what they get.
  void copy_rows(const ExpertBatch& batch) {
    const int64_t begin = batch.offsets.front(), count = batch.offsets.back() - begin;
    if (batch.out.index == nullptr)
      return gather_rows(stream_, batch.in.data, batch.in.index + begin, count, batch.out.data.slice(begin, count));
    if (batch.in.data.data == batch.out.data.data) return;
    convert(stream_, batch.in.data, batch.out.data);  // in the order of arrival; all chunks at once
  }

  Plan plan_;
  Stream stream_;
  Stream* exchanges_ = nullptr;  // between GPUs
  TensorStore store_;
  std::unique_ptr<TensorStore> weights_memory_;
  std::unique_ptr<WeightCache> cache_;
  std::vector<std::vector<WeightUse>> uses_;  // of the forward and of the backward pass
  std::unique_ptr<Transport> transport_;
  TensorView x_, out_, d_weights_, weights_;
  TokenLayout layout_;
};

void measure(World& world, const Options& o) {
  const int ranks = world.comm().size();
  const Device device = o.device == "cpu" ? Device{} : choose_device(DeviceChoice::automatic, world.place().rank);
  const RunSpec run = run_of(o, "flat", ranks);
  MeshComms comms = make_mesh_comms(world.comm(), make_mesh(run.mesh, ranks), device);
  std::vector<std::unique_ptr<Arm>> arms;
  for (const std::string& name : o.transports) {
    if (name == PrintedHalo::kName) arms.push_back(std::make_unique<PrintedHalo>(world, o));
    else arms.push_back(std::make_unique<Exchange>(world, comms, o, name, device));
  }
  nlohmann::ordered_json report = {{"ranks", ranks},       {"ranks_per_node", o.ranks_per_node},
                                   {"experts", o.experts}, {"top_k", o.top_k},
                                   {"width", o.width},     {"tokens_per_rank", o.tokens},
                                   {"dtype", "bf16"},      {"zipf", o.zipf},
                                   {"seed", o.seed},       {"chunks", o.chunks},
                                   {"repeats", o.repeats}, {"library", world.library()}};
  for (const auto& arm : arms) {
    const double error = arm->error();
    if (!(error <= 0.25)) fail(Exit::check_failed, fmt::format("{}: rows come back wrong, by {}", arm->name(), error));
  }
  for (int i = -1; i < o.repeats; ++i)
    for (const auto& arm : arms) arm->run(o.phases, i >= 0);
  PlatformProfile profile;
  if (!o.platform.empty()) profile = read_platform_profile(o.platform, ranks);
  for (const auto& arm : arms)
    report["transports"].push_back(arm->result(o.phases, o.platform.empty() ? nullptr : &profile));
  if (world.comm().rank() != 0) return;
  std::printf("%s\n", report.dump(1).c_str());
  if (!o.json.empty()) write_output_text(o.json, report.dump(1) + "\n");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto world = start_world(&argc, &argv);
    Options o;
    CLI::App app("Exchange of one MoE layer's rows by several transports");
    app.add_option("--transport", o.transports,
                   "transports, measured in turn; printed_halo: the messages of HALO as the paper Piper prints it");
    app.add_option("--experts", o.experts);
    app.add_option("--top-k", o.top_k);
    app.add_option("--width", o.width);
    app.add_option("--expert-width", o.expert_width, "of gather_weights, which gathers experts instead of rows");
    app.add_option("--tokens", o.tokens, "of each rank");
    app.add_option("--ranks-per-node", o.ranks_per_node, "0: as the launcher reports");
    app.add_option("--chunks", o.chunks)->check(CLI::PositiveNumber);
    app.add_option("--zipf", o.zipf, "exponent of the experts' popularity; 0: uniform");
    app.add_option("--seed", o.seed, "of the order of experts by popularity");
    app.add_option("--repeats", o.repeats)->check(CLI::PositiveNumber);
    app.add_option("--phases", o.phases, "2: rows out and back; 4: gradients too")->check(CLI::IsMember({2, 4}));
    app.add_option("--device", o.device, "cpu or gpu");
    app.add_option("--platform", o.platform, "profile of this machine (moewright probe): predicted times beside");
    app.add_option("--json", o.json);
    CLI11_PARSE(app, argc, argv);
    try {
      measure(*world, o);
    } catch (const Error& error) {
      std::fprintf(stderr, "bench_exchange: rank %d: %s\n", world->comm().rank(), error.what());
      world->abort(error.code());
    }
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "bench_exchange: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
