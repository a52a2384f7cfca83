#include "comm/bootstrap/join_secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace mw {
namespace {

class JoinSecret : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override {
    clear();
    std::filesystem::remove(path_);
  }
  static void clear() {
    unsetenv("MOEWRIGHT_JOIN_SECRET");
    unsetenv("MOEWRIGHT_JOIN_SECRET_FILE");
  }
  void write(const std::string& text, mode_t mode) {
    std::filesystem::remove(path_);
    std::ofstream(path_) << text;
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    setenv("MOEWRIGHT_JOIN_SECRET_FILE", path_.c_str(), 1);
  }
  static std::string error_of_read() {
    try {
      read_join_secret();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::comm);
      return error.what();
    }
    return "";
  }
  std::string path_ = testing::TempDir() + "join_secret_" + std::to_string(getpid());
};

TEST_F(JoinSecret, ComesFromTheVariableOrTheFile) {
  EXPECT_FALSE(read_join_secret());
  setenv("MOEWRIGHT_JOIN_SECRET", "0123456789abcdef", 1);
  const auto of_variable = read_join_secret();
  ASSERT_TRUE(of_variable);
  EXPECT_EQ(*of_variable, key_from_secret("0123456789abcdef"));
  clear();
  write("0123456789abcdef\n", 0600);
  EXPECT_EQ(read_join_secret(), of_variable);
  write("0123456789abcdeg\n", 0400);
  EXPECT_NE(read_join_secret(), of_variable);
}

TEST_F(JoinSecret, IsNotReadFromAFileThatOthersCanReadOrWrite) {
  for (const mode_t mode : {0644, 0640, 0604, 0620, 0602}) {
    write("0123456789abcdef\n", mode);
    EXPECT_NE(error_of_read().find("others can get at it: its mode is 6"), std::string::npos) << mode;
  }
}

TEST_F(JoinSecret, MistakesAreNamed) {
  setenv("MOEWRIGHT_JOIN_SECRET_FILE", "/nowhere/secret", 1);
  EXPECT_NE(error_of_read().find("MOEWRIGHT_JOIN_SECRET_FILE=/nowhere/secret: No such file"), std::string::npos);
  setenv("MOEWRIGHT_JOIN_SECRET_FILE", testing::TempDir().c_str(), 1);
  EXPECT_NE(error_of_read().find("this is not a file"), std::string::npos);
  write("short\n", 0600);
  EXPECT_NE(error_of_read().find("has 5 characters, expected 16"), std::string::npos);
  setenv("MOEWRIGHT_JOIN_SECRET", "0123456789abcdef", 1);
  EXPECT_NE(error_of_read().find("both set"), std::string::npos);
}

}  // namespace
}  // namespace mw
