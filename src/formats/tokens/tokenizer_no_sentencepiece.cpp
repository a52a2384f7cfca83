#include "base/error.h"
#include "formats/tokens/tokenizer.h"

namespace mw {

std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path) {
  fail(Exit::unsupported, fmt::format("{}: this build has no SentencePiece", path),
       "install libsentencepiece-dev and build again");
}

}  // namespace mw
