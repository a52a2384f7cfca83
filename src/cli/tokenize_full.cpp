#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "base/host.h"
#include "base/text.h"
#include "cli/run_commands.h"
#include "formats/tokens/chat.h"
#include "formats/tokens/tokenize.h"

namespace mw {
namespace {

// One line that moves on a terminal; elsewhere a line every ten seconds.
class ProgressLine {
 public:
  ~ProgressLine() {
    if (terminal_) std::fputs("\x1b[K", stderr);
  }
  void show(const TokenizeProgress& progress) {
    const double now = now_seconds();
    if (now - shown_ < (terminal_ ? 0.2 : 10.0)) return;
    shown_ = now;
    std::fputs((text(progress, now) + (terminal_ ? "\x1b[K\r" : "\n")).c_str(), stderr);
  }

 private:
  std::string text(const TokenizeProgress& p, double now) const {
    const auto done = static_cast<double>(p.bytes - p.resumed_bytes);
    const double rate = done / std::max(now - begin_, 1e-9);
    return fmt::format("{} of {} ({:.0f} %) | {} documents | {} tokens | {}/s | eta {}", format_bytes(p.bytes),
                       format_bytes(p.total_bytes),
                       100.0 * static_cast<double>(p.bytes) / static_cast<double>(std::max<int64_t>(p.total_bytes, 1)),
                       format_count(static_cast<double>(p.documents)), format_count(static_cast<double>(p.tokens)),
                       format_bytes(static_cast<int64_t>(rate)),
                       rate > 0 ? format_duration(static_cast<double>(p.total_bytes - p.bytes) / rate) : "?");
  }

  const bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  double begin_ = now_seconds(), shown_ = begin_;
};

std::string describe_chat_templates() {
  std::string text = "read conversations from JSON lines; only answers count in the loss. The template:";
  for (const ChatTemplate& form : chat_templates()) text += fmt::format(" {} ({}),", form.name, form.families);
  text.back() = '.';
  return text;
}

Exit run_tokenize(TokenizeJob job) {
  if (job.threads == 0) job.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const double begin = now_seconds();
  const TokenizeResult result = [&] {
    ProgressLine line;
    job.report = [&](const TokenizeProgress& progress) { line.show(progress); };
    job.warn = [](const std::string& text) { std::fputs(("warning: " + text + "\n").c_str(), stderr); };
    return tokenize(job);
  }();
  const double seconds = now_seconds() - begin;
  const TokenizeProgress& p = result.progress;
  std::printf("%s\n", result.tokenizer.c_str());
  if (p.resumed_bytes > 0) std::printf("resumed after %s of the input\n", format_bytes(p.resumed_bytes).c_str());
  if (p.replaced_bytes > 0)
    std::printf("warning: %lld bytes were not valid UTF-8 and were replaced by U+FFFD\n",
                static_cast<long long>(p.replaced_bytes));
  if (!job.chat.empty() && p.in_loss >= 0)
    std::printf("%lld of %lld tokens count in the loss, by %s.mask\n", static_cast<long long>(p.in_loss),
                static_cast<long long>(p.tokens), job.prefix.c_str());
  if (!job.chat.empty() && p.in_loss == 0)
    std::printf("warning: training on this data alone has no loss: no message of the role assistant counts\n");
  std::printf("wrote %s.bin and .idx: %lld %s tokens in %lld documents, from %s in %s\n", job.prefix.c_str(),
              static_cast<long long>(p.tokens), result.token_type.c_str(), static_cast<long long>(p.documents),
              format_bytes(p.total_bytes).c_str(), format_duration(seconds).c_str());
  return Exit::ok;
}

}  // namespace

Command add_tokenize_command(CommandLine& line) {
  Subcommand sub = line.add_command("tokenize", "convert text to token files (Megatron .bin and .idx)");
  auto job = std::make_shared<TokenizeJob>();
  job->threads = 0;
  sub.add_option("INPUT", job->inputs,
                 "text files (one document each) and *.jsonl files, plain, .zst or .gz, or folders of them")
      .required();
  sub.add_option("-t,--tokenizer", job->tokenizer,
                 "a tokenizer.json, a SentencePiece .model, or a folder with one of them")
      .required();
  sub.add_option("-o,--output", job->prefix, "prefix of the .bin and .idx files to write").required();
  sub.add_option("--key", job->key, "field with the text in JSON lines; default: text, or messages with --chat");
  sub.add_option("--chat", job->chat, describe_chat_templates());
  sub.add_option(
      "--eod", job->end_of_document,
      "token that ends each document, or none; default: the tokenizer's own, or none where a chat template ends "
      "each message");
  sub.add_option("--threads", job->threads, "threads; 0: all cores").range(0, 4096).show_default();
  auto read_ahead = std::make_shared<int64_t>(job->read_ahead >> 20);
  sub.add_option("--read-ahead", *read_ahead,
                 "MiB of text to hold in memory; one document, or 1 MiB of lines, is held even if larger")
      .range(0, 1 << 20)
      .show_default();
  sub.add_option("--save-every", job->save_seconds, "seconds between saves of the progress")
      .not_negative()
      .show_default();
  sub.add_flag("--restart", job->restart, "start over instead of resuming an interrupted run");
  return {sub, [job, read_ahead] {
            job->read_ahead = *read_ahead << 20;
            return run_tokenize(*job);
          }};
}

}  // namespace mw
