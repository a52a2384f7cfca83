// Panel products through oneDNN (2.6 and 3.x), the only file that knows it.
#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/host.h"
#include "base/median.h"
#include "base/text.h"
#include "ops/cpu/panel_product.h"
#include "ops/cpu/tile_matmul.h"

namespace mw::cpu {
namespace {

using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;

// The height for which the layout of packed weights is asked; all heights then take that layout.
constexpr int64_t kLayoutHeight = 256;

dnnl::memory::data_type to_dnnl(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

Desc matrix(int64_t rows, int64_t cols, DType dtype, Tag tag = Tag::ab) { return {{rows, cols}, to_dnnl(dtype), tag}; }

// A template so that only the constructor of the version at hand is compiled: 3.0 folded the descriptor into it.
template <class Matmul>
typename Matmul::primitive_desc make_descriptor(const dnnl::engine& engine, const Desc& a, const Desc& b, const Desc& c,
                                                const dnnl::primitive_attr& attributes) {
  if constexpr (DNNL_VERSION_MAJOR >= 3) return typename Matmul::primitive_desc(engine, a, b, c, attributes);
  else return typename Matmul::primitive_desc(typename Matmul::desc(a, b, c), attributes, engine);
}

dnnl::matmul::primitive_desc describe(const dnnl::engine& engine, const Desc& a, const Desc& b, const Desc& c,
                                      Store store) {
  dnnl::primitive_attr attributes;
  attributes.set_fpmath_mode(dnnl::fpmath_mode::strict);
  if (store == Store::accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  return make_descriptor<dnnl::matmul>(engine, a, b, c, attributes);
}

// oneDNN takes its thread count from the OpenMP runtime, both when it makes and when it runs a primitive.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~ThreadCount() { omp_set_num_threads(before_); }

 private:
  int before_;
};

// Threads that a product can feed: below some MFLOP each, waking and joining them costs more than they save.
int useful_threads(const PanelProduct& p, int available) {
  constexpr int64_t kFlopsPerThread = 8'000'000;
  return static_cast<int>(std::clamp<int64_t>(2 * p.height * p.n * p.k / kFlopsPerThread, 1, available));
}

// Intel cores run the AVX-512 bf16 dot product at half the rate of their two fp32 units (measured without AMX: 105
// against 200 GFLOP/s a core), so that converting to fp32 is faster there. AMD's run it at twice the rate of fp32.
bool is_bf16_dot_product_slow() {
  std::ifstream cpu_info("/proc/cpuinfo");
  std::string line;
  while (std::getline(cpu_info, line))
    if (line.starts_with("vendor_id")) return line.find("GenuineIntel") != std::string::npos;
  return false;
}

// {whether bf16 products run natively, whether our own kernels for AMX compute them}.
std::pair<bool, bool> choose_bf16() {
  const char* choice = std::getenv("MOEWRIGHT_CPU_BF16");
  const std::string_view word(choice ? choice : "");
  if (!word.empty() && word != "library" && word != "fp32")
    fail(Exit::usage, fmt::format("MOEWRIGHT_CPU_BF16 is \"{}\"", printable(word)),
         "set it to library or fp32, or unset it");
  std::string implementation;
  try {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    const Desc a = matrix(kLayoutHeight, 256, DType::bf16);
    implementation = describe(engine, a, matrix(256, 256, DType::bf16, Tag::any), a, Store::overwrite).impl_info_str();
  } catch (const dnnl::error&) {
    return {};  // a CPU without bf16 instructions
  }
  // Other implementations emulate bf16, or serve as a reference. Only where the library uses AMX have the system's
  // permission and ONEDNN_MAX_CPU_ISA been checked.
  if (implementation.find("brg") == std::string::npos) return {};
  const bool amx = implementation.find("amx") != std::string::npos && amx_unit();
  if (!word.empty()) return {word == "library", false};
  return {amx || !is_bf16_dot_product_slow(), amx};
}

// A product ready to run: its memory objects are pointed at the operands of each call.
struct PreparedProduct {
  dnnl::matmul primitive;
  dnnl::memory a, b, c;
  std::unordered_map<int, dnnl::memory> arguments;
};

struct ProductHash {
  size_t operator()(const PanelProduct& p) const {
    size_t hash = 0;
    for (int64_t part :
         {static_cast<int64_t>(p.kind), p.height, p.n, p.k, static_cast<int64_t>(p.in), static_cast<int64_t>(p.out),
          static_cast<int64_t>(p.packed), static_cast<int64_t>(p.store), p.a_row})
      hash = (hash ^ static_cast<size_t>(part)) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
  }
};

// A reorder from a weight's values to one of its packed forms.
struct PreparedPacking {
  dnnl::reorder primitive;
  dnnl::memory values, packed;
};

struct OnednnState : StreamState {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::unordered_map<PanelProduct, PreparedProduct, ProductHash> products;
  std::map<std::tuple<ProductKind, int64_t, int64_t>, PreparedPacking> packings;  // by kind, n, k
};

// The matrix [K, N] (forward) or [N, K] (d_input) that a panel is multiplied with, in its packed layout. The library
// may like another layout for another number of threads: one number decides for packing and for all products.
Desc packed_layout(const dnnl::engine& engine, ProductKind kind, int64_t n, int64_t k) {
  const ThreadCount threads(1);
  const DType dtype = matmul_traits().native_bf16 ? DType::bf16 : DType::f32;
  const int64_t rows = kind == ProductKind::forward ? k : n, cols = kind == ProductKind::forward ? n : k;
  const Desc layout = describe(engine, matrix(kLayoutHeight, rows, dtype), matrix(rows, cols, dtype, Tag::any),
                               matrix(kLayoutHeight, cols, dtype), Store::overwrite)
                          .weights_desc();
  const auto bound = static_cast<size_t>(packed_weight_bytes(n, k, dtype == DType::bf16));
  return layout.get_size() <= bound ? layout : matrix(rows, cols, dtype);
}

// The weight's f32 values [N, K] seen as that matrix.
Desc plain_layout(ProductKind kind, int64_t n, int64_t k) {
  return kind == ProductKind::forward ? matrix(k, n, DType::f32, Tag::ba) : matrix(n, k, DType::f32);
}

PreparedProduct prepare(const dnnl::engine& engine, const PanelProduct& p) {
  const bool forward = p.kind == ProductKind::forward;
  Desc a, b, c;
  if (p.kind == ProductKind::d_weight) {
    a = {{p.n, p.height}, to_dnnl(p.in), {1, p.a_row}};
    b = matrix(p.height, p.k, p.in);
    c = matrix(p.n, p.k, p.out);
  } else {
    a = {{p.height, forward ? p.k : p.n}, to_dnnl(p.in), {p.a_row, 1}};
    b = p.packed ? packed_layout(engine, p.kind, p.n, p.k) : plain_layout(p.kind, p.n, p.k);
    c = matrix(p.height, forward ? p.n : p.k, p.out);
  }
  PreparedProduct prepared{dnnl::matmul(describe(engine, a, b, c, p.store)),
                           dnnl::memory(a, engine, nullptr),
                           dnnl::memory(b, engine, nullptr),
                           dnnl::memory(c, engine, nullptr),
                           {}};
  prepared.arguments = {{DNNL_ARG_SRC, prepared.a}, {DNNL_ARG_WEIGHTS, prepared.b}, {DNNL_ARG_DST, prepared.c}};
  return prepared;
}

void pack_form(OnednnState& state, ProductKind kind, const Weight& weight, const TensorView& form) {
  auto [entry, is_new] = state.packings.try_emplace({kind, weight.n, weight.k});
  PreparedPacking& packing = entry->second;
  if (is_new) {
    packing.values = {plain_layout(kind, weight.n, weight.k), state.engine, nullptr};
    packing.packed = {packed_layout(state.engine, kind, weight.n, weight.k), state.engine, nullptr};
    packing.primitive = dnnl::reorder(packing.values, packing.packed);
  }
  packing.values.set_data_handle(weight.values.data);
  packing.packed.set_data_handle(form.data);
  packing.primitive.execute(state.stream, packing.values, packing.packed);
  state.stream.wait();
}

[[noreturn]] void fail_library(const dnnl::error& error, const std::string& what) {
  if (error.status == dnnl_out_of_memory) fail(Exit::memory, fmt::format("oneDNN ran out of memory in {}", what));
  fail(Exit::internal, fmt::format("oneDNN failed in {}: {}", what, error.what()));
}

}  // namespace

void pack_for_panels(Stream& stream, const Weight& weight) {
  const ThreadCount threads(stream.threads());
  try {
    auto& state = stream.state<OnednnState>();
    pack_form(state, ProductKind::forward, weight, weight.packed_forward);
    pack_form(state, ProductKind::d_input, weight, weight.packed_backward);
  } catch (const dnnl::error& error) {
    fail_library(error, fmt::format("packing a weight [{}, {}]", weight.n, weight.k));
  }
}

void run_panel(Stream& stream, const PanelProduct& product, const void* a, const void* b, void* c) {
  const ThreadCount threads(useful_threads(product, stream.threads()));
  try {
    auto& state = stream.state<OnednnState>();
    auto found = state.products.find(product);
    if (found == state.products.end()) found = state.products.emplace(product, prepare(state.engine, product)).first;
    PreparedProduct& prepared = found->second;
    prepared.a.set_data_handle(const_cast<void*>(a));
    prepared.b.set_data_handle(const_cast<void*>(b));
    prepared.c.set_data_handle(c);
    prepared.primitive.execute(state.stream, prepared.arguments);
    state.stream.wait();
  } catch (const dnnl::error& error) {
    fail_library(error,
                 fmt::format("a product of {} rows with a weight [{}, {}]", product.height, product.n, product.k));
  }
}

MatmulTraits matmul_traits() {
  static const auto [native_bf16, amx] = choose_bf16();
  static const std::string library = [] {
    const dnnl_version_t* version = dnnl_version();
    return fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch);
  }();
  return {native_bf16, amx, library.c_str()};
}

double measure_library_gflops(DType dtype, int64_t size, bool packed, int threads, int repeats) {
  const ThreadCount thread_count(threads);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  try {
    const Desc plain = matrix(size, size, dtype);
    const Desc b = packed ? matrix(size, size, dtype, Tag::any) : plain;
    const auto product = describe(engine, plain, b, plain, Store::overwrite);
    const dnnl::memory values(plain, engine), weights(product.weights_desc(), engine), result(plain, engine);
    // Zeros would let the CPU clock higher than real operands do.
    if (dtype == DType::bf16) std::fill_n(static_cast<bf16*>(values.get_data_handle()), size * size, to_bf16(1.234f));
    else std::fill_n(static_cast<float*>(values.get_data_handle()), size * size, 1.234f);
    dnnl::memory from = values, to = weights;
    dnnl::reorder(from, to).execute(stream, from, to);

    const dnnl::matmul primitive(product);
    std::vector<double> seconds;
    for (int i = -2; i < repeats; ++i) {  // two to warm up
      const double begin = now_seconds();
      primitive.execute(stream, {{DNNL_ARG_SRC, values}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, result}});
      stream.wait();
      if (i >= 0) seconds.push_back(now_seconds() - begin);
    }
    return 2e-9 * static_cast<double>(size * size) * static_cast<double>(size) / median(std::move(seconds));
  } catch (const dnnl::error&) {
    return 0;  // bf16 on a CPU without bf16 instructions
  }
}

}  // namespace mw::cpu
