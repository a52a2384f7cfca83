#include "formats/tokens/tokenize.h"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/host.h"
#include "base/text.h"
#include "formats/io/checksum.h"
#include "formats/io/output_lock.h"
#include "formats/io/worker_pool.h"
#include "formats/tokens/chat.h"
#include "formats/tokens/document_reader.h"
#include "formats/tokens/growing_dataset.h"
#include "formats/tokens/tokenize_state.h"
#include "formats/tokens/tokenizer.h"

namespace mw {
namespace {

// Megatron's own rule.
constexpr int64_t kSmallVocabulary = 65500;

// A block of documents as tokens.
struct EncodedBlock {
  std::vector<int32_t> tokens;  // of all documents, back to back
  std::vector<uint8_t> mask;    // of these tokens; empty without a chat template
  std::vector<size_t> ends;     // of each document in tokens
  int64_t replaced_bytes = 0;
  DocumentPlace end;
  int64_t consumed = 0;  // bytes of the inputs when the block was read
};

std::optional<int32_t> find_end_of_document(const TokenizeJob& job, const ChatTemplate* form,
                                            const Tokenizer& tokenizer) {
  if (job.end_of_document == "none" || (job.end_of_document.empty() && form != nullptr && form->ends_answers()))
    return std::nullopt;
  if (!job.end_of_document.empty()) {
    const std::optional<int32_t> id = tokenizer.id_of(job.end_of_document);
    if (!id)
      fail(Exit::usage,
           fmt::format("--eod: \"{}\" is not a token of {}", printable(job.end_of_document), job.tokenizer),
           "pass the token as the tokenizer spells it, for example --eod '<|endoftext|>'");
    return id;
  }
  if (!tokenizer.end_of_document())
    fail(Exit::usage, fmt::format("{} does not define a token that ends a document", job.tokenizer),
         "name the token with --eod TOKEN, or pass --eod none to write no separator");
  return tokenizer.end_of_document();
}

// Everything of one run.
class TokenizeRun {
 public:
  explicit TokenizeRun(const TokenizeJob& job);
  TokenizeResult run();

 private:
  EncodedBlock encode(const DocumentBlock& block, int64_t consumed, Tokenizer& tokenizer) const;
  void write(const EncodedBlock& block);
  void save();
  [[noreturn]] void fail_without_documents();

  const TokenizeJob& job_;
  const ChatTemplate* form_;  // null: plain text
  std::string key_;
  std::vector<std::string> files_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<int32_t> end_of_document_;
  TokenType type_;
  TokenizeSettings settings_;
  OutputLock lock_;
  std::string state_path_;
  TokenizeState state_;
  std::unique_ptr<GrowingDataset> dataset_;
  TokenizeProgress progress_;
  double saved_ = now_seconds();
};

// Suffixes behind a folder's name would make hidden files in it.
void check_name(const std::string& prefix) {
  const std::string name = std::filesystem::path(prefix).filename();
  if (name.empty() || name == "." || name == "..")
    fail(Exit::usage, fmt::format("--output {} names a folder, expected a prefix of .bin and .idx", prefix),
         fmt::format("add a name, for example --output {}", (std::filesystem::path(prefix) / "corpus").native()));
}

// What is written must not be read as documents, now or when the run is taken up again.
const std::vector<std::string>& check_apart(const std::vector<std::string>& inputs, const std::string& prefix) {
  check_name(prefix);
  namespace fs = std::filesystem;
  const fs::path output = fs::weakly_canonical(fs::absolute(prefix)).parent_path();
  for (const std::string& input : inputs) {
    if (!fs::is_directory(input)) continue;
    const fs::path folder = fs::weakly_canonical(fs::absolute(input));
    const auto [end, unused] = std::mismatch(folder.begin(), folder.end(), output.begin(), output.end());
    if (end == folder.end())
      fail(Exit::config, fmt::format("the output {} lies in the input folder {}", prefix, input),
           "choose an --output outside of the input folders");
  }
  return inputs;
}

std::string with_folder(const std::string& path) {
  create_folder_of(path);
  return path;
}

TokenizeRun::TokenizeRun(const TokenizeJob& job)
    : job_(job),
      form_(job.chat.empty() ? nullptr : &find_chat_template(job.chat)),
      key_(!job.key.empty()   ? job.key
           : form_ == nullptr ? "text"
                              : "messages"),
      files_(list_documents(check_apart(job.inputs, job.prefix))),
      tokenizer_(open_tokenizer(job.tokenizer)),
      end_of_document_(find_end_of_document(job, form_, *tokenizer_)),
      type_(tokenizer_->vocab_size() < kSmallVocabulary ? TokenType::u16 : TokenType::i32),
      lock_(with_folder(job.prefix + ".tokenize.lock")),
      state_path_(job.prefix + ".tokenize.json") {
  if (!lock_.is_held() && job.warn)
    job.warn(fmt::format("the file system of {} does not support locks: do not let two runs write this output at once",
                         job.prefix));
  if (form_ != nullptr) check_chat_tokens(*form_, *tokenizer_);
  if (!job.restart && path_exists(state_path_)) GrowingDataset::take_back_finish(job.prefix);
  for (const char* suffix : {".bin", ".idx", ".mask"})
    if (path_exists(job.prefix + suffix))
      fail(Exit::data, fmt::format("{}{} already exists", job.prefix, suffix),
           "choose another --output, or remove the file");
  settings_ = {xxh3_hex(MappedFile(find_tokenizer_file(job.tokenizer)).bytes()),
               key_,
               job.chat,
               end_of_document_ ? *end_of_document_ : -1,
               std::string(name_of(type_)),
               describe_inputs(files_)};
  for (const TokenizeSettings::Input& input : settings_.inputs) progress_.total_bytes += input.size;
  if (!job.restart && path_exists(state_path_)) {
    state_ = read_tokenize_state(state_path_, settings_);
    dataset_ = std::make_unique<GrowingDataset>(job.prefix, type_, state_.mark);
    progress_.resumed_bytes = state_.consumed;
    progress_.replaced_bytes = state_.replaced_bytes;
    progress_.in_loss = state_.in_loss;
  } else {
    ::unlink(state_path_.c_str());
    dataset_ = std::make_unique<GrowingDataset>(job.prefix, type_, form_ != nullptr);
  }
}

EncodedBlock TokenizeRun::encode(const DocumentBlock& block, int64_t consumed, Tokenizer& tokenizer) const {
  EncodedBlock out;
  out.end = block.end;
  out.consumed = consumed;
  const auto end_document = [&] {
    if (end_of_document_) out.tokens.push_back(*end_of_document_);
    out.ends.push_back(out.tokens.size());
  };
  if (form_ == nullptr)
    out.replaced_bytes = for_each_document(block, key_, [&](std::string_view text) {
      tokenizer.encode(text, out.tokens);
      end_document();
    });
  else
    for_each_line(block, [&](std::string_view line, const std::string& where) {
      const std::vector<ChatMessage> messages = parse_chat(line, key_, where);
      if (messages.empty()) return;
      const size_t begin = out.tokens.size();
      encode_chat(*form_, messages, where, tokenizer, out.tokens, out.mask);
      if (out.tokens.size() == begin) return;  // as any document without text
      end_document();
      // The end is learned where what stands before it is.
      out.mask.resize(out.tokens.size(), out.mask.back() != 0);
    });
  out.tokens.shrink_to_fit();  // it may wait long
  out.mask.shrink_to_fit();
  return out;
}

void TokenizeRun::save() {
  state_.mark = dataset_->save();
  write_tokenize_state(state_path_, settings_, state_);
  saved_ = now_seconds();
}

void TokenizeRun::write(const EncodedBlock& block) {
  size_t begin = 0;
  for (const size_t end : block.ends) {
    const auto document = [&](const auto& values) { return std::span(values).subspan(begin, end - begin); };
    if (end > begin)
      dataset_->add_document(document(block.tokens),
                             form_ == nullptr ? std::span<const uint8_t>() : document(block.mask));
    begin = end;
  }
  state_.place = block.end;
  state_.consumed = block.consumed;
  state_.replaced_bytes += block.replaced_bytes;
  if (state_.in_loss >= 0) state_.in_loss += std::count(block.mask.begin(), block.mask.end(), 1);
  progress_.bytes = block.consumed;
  progress_.replaced_bytes = state_.replaced_bytes;
  progress_.in_loss = state_.in_loss;
  progress_.documents = dataset_->documents();
  progress_.tokens = dataset_->tokens();
  if (now_seconds() - saved_ >= job_.save_seconds) save();
  if (job_.report) job_.report(progress_);
}

// Nothing is left that another run could go on from.
void TokenizeRun::fail_without_documents() {
  dataset_.reset();
  for (const char* suffix : {".bin.tmp", ".lengths.tmp", ".mask.tmp"}) ::unlink((job_.prefix + suffix).c_str());
  ::unlink(state_path_.c_str());
  fail(Exit::data, fmt::format("the inputs hold no document: {}", describe_passed_over(files_)),
       form_ != nullptr ? fmt::format("name JSON lines with messages in \"{}\", or another field with --key", key_)
                        : fmt::format("name files with text, or JSON lines with text in \"{}\", or another field with "
                                      "--key",
                                      key_));
}

TokenizeResult TokenizeRun::run() {
  DocumentReader reader(files_, state_.place);
  std::vector<std::unique_ptr<Tokenizer>> tokenizers;
  for (int i = 0; i < job_.threads; ++i) tokenizers.push_back(tokenizer_->clone());
  const size_t most = 2 * static_cast<size_t>(job_.threads);  // blocks under way
  struct UnderWay {
    std::future<EncodedBlock> encoded;
    int64_t bytes = 0;  // of its text
  };
  std::deque<UnderWay> under_way;  // in the order of the inputs
  int64_t bytes_under_way = 0;
  WorkerPool workers(job_.threads);
  const auto write_first = [&] {
    write(under_way.front().encoded.get());
    bytes_under_way -= under_way.front().bytes;
    under_way.pop_front();
  };
  while (std::optional<DocumentBlock> block = reader.next()) {
    const int64_t bytes = std::ssize(block->bytes);
    while (!under_way.empty() && (under_way.size() >= most || bytes_under_way + bytes > job_.read_ahead)) write_first();
    auto task = std::make_shared<std::packaged_task<EncodedBlock(int)>>(
        [this, &tokenizers, consumed = reader.consumed(), block = std::move(*block)](int thread) {
          return encode(block, consumed, *tokenizers[static_cast<size_t>(thread)]);
        });
    under_way.push_back({task->get_future(), bytes});
    bytes_under_way += bytes;
    workers.add([task](int thread) { (*task)(thread); });
  }
  while (!under_way.empty()) write_first();
  progress_.documents = dataset_->documents();
  progress_.tokens = dataset_->tokens();
  if (progress_.documents == 0) fail_without_documents();
  dataset_->finish();
  ::unlink(state_path_.c_str());
  return {progress_, tokenizer_->describe(), std::string(name_of(type_))};
}

}  // namespace

TokenizeResult tokenize(const TokenizeJob& job) {
  MW_CHECK(job.threads > 0, "{} threads", job.threads);
  return TokenizeRun(job).run();
}

}  // namespace mw
