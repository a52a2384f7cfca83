#include "train/checkpoint/describe_model.h"

#include <sys/stat.h>

#include <ctime>
#include <filesystem>

#include "base/text.h"
#include "config/hf_config.h"
#include "config/hf_family.h"
#include "formats/tokens/tokenizer.h"
#include "formats/weights/hf_folder.h"
#include "planner/layout.h"
#include "train/checkpoint/checkpoint_reader.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

std::string line(const char* label, const std::string& text) { return fmt::format("{:<12}{}\n", label, text); }

// What `body` returns, or the reason why it cannot.
template <class Body>
std::string or_reason(Body body) {
  try {
    return body();
  } catch (const Error& error) {
    return printable(error.what(), 400);
  }
}

struct FolderSize {
  int64_t bytes = 0, weight_files = 0;
};

FolderSize measure_folder(const std::string& folder) {
  FolderSize size;
  std::error_code error, unreadable;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (!it->is_regular_file(unreadable)) continue;
    size.bytes += static_cast<int64_t>(it->file_size(unreadable));
    if (it->path().extension() == ".safetensors") ++size.weight_files;
  }
  return size;
}

std::string format_size(const FolderSize& size) {
  return fmt::format("{} in {}", format_bytes(size.bytes), counted(size.weight_files, "file"));
}

std::string modification_time(const std::string& path) {
  struct stat status {};
  std::tm parts{};
  if (::stat(path.c_str(), &status) != 0 || ::gmtime_r(&status.st_mtime, &parts) == nullptr)
    return "at an unknown time";
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts);
  return text;
}

std::string export_family(const ModelSpec& model) {
  try {
    return fmt::format("exports as {}", fit_hf_family(model).family);
  } catch (const Error&) {
    return "fits no Hugging Face family";
  }
}

std::string describe_model_of(const RunSpec& run) {
  return or_reason([&] {
    const ModelSpec model = load_model_spec(run);
    if (!run.hf_dir.empty()) return fmt::format("{} of {}", model.family, printable(run.hf_dir, 400));
    return fmt::format("{}; {}",
                       run.native.preset.empty() ? "[model] table" : fmt::format("preset {}", run.native.preset),
                       export_family(model));
  });
}

// The sizes of the tensors that are there; what else the model says only where it can be read.
std::string describe_parameters(const RunSpec& run, const CheckpointIndex& index) {
  try {
    return summary(load_model_spec(run));
  } catch (const Error&) {
    int64_t elements = 0;
    for (const auto& [name, shape] : index.tensors) {
      if (!name.starts_with("param.")) continue;
      int64_t n = 1;
      for (const int64_t d : shape) n *= d;
      elements += n;
    }
    return fmt::format("{} parameters", format_count(static_cast<double>(elements)));
  }
}

std::string describe_data(const DataSpec& data) {
  if (!data.blend.empty()) return fmt::format("{} data sets in a blend, {}", data.blend.size(), word_of(data.kind));
  return data.path.empty() ? "none" : fmt::format("{}, {}", printable(data.path, 400), word_of(data.kind));
}

}  // namespace

std::string describe_checkpoint(const std::string& folder) {
  const CheckpointReader reader(folder);
  reader.check_files();
  const CheckpointIndex& index = reader.index();
  const FolderSize size = measure_folder(folder);
  std::string text = line("checkpoint", printable(folder, 400));
  RunSpec run;
  const std::string unreadable = or_reason([&] {
    run = parse_run_text(index.run_toml, "the stored run file", {});
    return std::string();
  });
  if (unreadable.empty()) {
    text += line("model", describe_model_of(run)) + line("size", describe_parameters(run, index));
    const double tokens = static_cast<double>(index.state.samples) * static_cast<double>(run.train.seq_len);
    // An imported model has no run: what its run file says of steps is the default.
    text +=
        line("step", reader.needs_moments() ? fmt::format("{} of {}; {} samples, {} tokens", index.state.step,
                                                          run.train.steps, index.state.samples, format_count(tokens))
                                            : "0: an imported model, before any training");
  } else {
    text += line("run file", unreadable);
    text += line("step", fmt::format("{}; {} samples", index.state.step, index.state.samples));
  }
  if (index.state.loss) text += line("loss", fmt::format("{:.4f} in this step's training batch", *index.state.loss));
  text += line("optimizer", reader.has_moments()
                                ? fmt::format("{} moments in {}",
                                              run.train.optimizer == Optimizer::muon ? "Muon and AdamW" : "AdamW",
                                              word_of(run.moments))
                                : "no moments: weights alone");
  if (unreadable.empty()) {
    text += line("layout", fmt::format("{}, {}, {}", counted(size.weight_files, "rank"), describe(layout_of(run)),
                                       word_of(run.train.dtype)));
    text += line("data", describe_data(run.data));
  }
  return text + line("written", fmt::format("{}, {}", modification_time(folder + "/DONE"), format_size(size)));
}

std::string describe_hf_folder(const std::string& dir) {
  const ModelSpec model = read_hf_config(dir + "/config.json");
  std::string text = line("folder", fmt::format("{}, a Hugging Face model folder", printable(dir, 400)));
  text += line("model", model.family) + line("size", summary(model));
  text += line("weights", or_reason([&] {
                 const HfFolder folder = open_hf_folder(model, dir);
                 FolderSize size;
                 for (const SafetensorsFile& file : folder.files.files()) {
                   for (const SafetensorsEntry& entry : file.entries()) size.bytes += entry.end - entry.begin;
                   ++size.weight_files;
                 }
                 return fmt::format("{} tensors, {}", folder.files.names().size(), format_size(size));
               }));
  text +=
      line("tokenizer",
           or_reason([&] { return has_tokenizer_file(dir) ? open_tokenizer(dir)->describe() : std::string("none"); }));
  return text;
}

}  // namespace mw
