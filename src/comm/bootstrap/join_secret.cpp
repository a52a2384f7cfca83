#include "comm/bootstrap/join_secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/text.h"
#include "comm/bootstrap/socket.h"

namespace mw {
namespace {

constexpr const char* kVariable = "MOEWRIGHT_JOIN_SECRET";
constexpr const char* kFileVariable = "MOEWRIGHT_JOIN_SECRET_FILE";
constexpr size_t kFewestCharacters = 16;
constexpr size_t kMostCharacters = 4096;

std::string value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

[[noreturn]] void refuse_file(const std::string& path, const std::string& why, const std::string& hint = "") {
  fail(Exit::comm, fmt::format("{}={}: {}", kFileVariable, printable(path), why), hint);
}

std::string read_secret_file(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about {};
  if (!file.valid() || fstat(file.get(), &about) != 0) refuse_file(path, std::strerror(errno));
  if (!S_ISREG(about.st_mode)) refuse_file(path, "this is not a file");
  if (about.st_uid != geteuid())
    refuse_file(path, fmt::format("the file belongs to user {}, this process to user {}", about.st_uid, geteuid()),
                "the file must belong to the user who starts the job");
  if ((about.st_mode & 077) != 0)
    refuse_file(path,
                fmt::format("others can get at it: its mode is {:03o}, expected 600 or 400", about.st_mode & 0777),
                fmt::format("chmod 600 {}", printable(path)));
  std::string text(kMostCharacters + 1, '\0');
  const ssize_t got = read(file.get(), text.data(), text.size());
  if (got < 0) refuse_file(path, std::strerror(errno));
  text.resize(static_cast<size_t>(got));
  while (!text.empty() && std::strchr(" \t\r\n", text.back()) != nullptr) text.pop_back();
  return text;
}

}  // namespace

const char* const kMakeSecret =
    "export MOEWRIGHT_JOIN_SECRET=$(od -An -vtx1 -N32 /dev/urandom | tr -d ' \\n') where the job is started, so that "
    "all its ranks get the same; or write it to a file of mode 600 and set MOEWRIGHT_JOIN_SECRET_FILE";

std::optional<JoinKey> read_join_secret() {
  std::string secret = value_of(kVariable);
  const std::string path = value_of(kFileVariable);
  if (secret.empty() && path.empty()) return std::nullopt;
  if (!secret.empty() && !path.empty())
    fail(Exit::comm, fmt::format("{} and {} are both set", kVariable, kFileVariable), "unset one of them");
  if (!path.empty()) secret = read_secret_file(path);
  if (secret.size() < kFewestCharacters || secret.size() > kMostCharacters)
    fail(Exit::comm,
         fmt::format("the join secret of {} has {} characters, expected {} to {}",
                     path.empty() ? kVariable : printable(path), secret.size(), kFewestCharacters, kMostCharacters),
         kMakeSecret);
  return key_from_secret(secret);
}

}  // namespace mw
