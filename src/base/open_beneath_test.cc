#include "base/open_beneath.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <iterator>
#include <thread>

#include "base/mapped_file.h"
#include "base/test_folder.h"
#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

// A folder "model" with some files, and beside it what must stay out of reach.
class OpenBeneathTest : public testing::TestWithParam<bool> {
 protected:
  OpenBeneathTest() {
    std::filesystem::create_directories(outer_ / "model/deep/er");
    WriteTestFile(outer_ / "secret", "secret");
    WriteTestFile(outer_ / "model/weights", "weights");
    WriteTestFile(outer_ / "model/a..b", "dots");
    WriteTestFile(outer_ / "model/deep/er/file", "deep");
    folder_ = OpenFolder(outer_ / "model");
  }

  FileDescriptor Open(const std::string& location, bool trusted_links = false) const {
    return OpenBeneath(folder_.get(), location,
                       {.trusted_links = trusted_links, .use_openat2 = GetParam()});
  }
  std::string Content(const std::string& location, bool trusted_links = false) const {
    const FileDescriptor file = Open(location, trusted_links);
    const uint64_t size = RegularFileSize(file.get(), location);
    return std::string(ReadFile(file.get(), 0, size, location).view());
  }
  std::string Refusal(const std::string& location, bool trusted_links = false) const {
    return Thrown<ValueError>([&] { Open(location, trusted_links); }).code();
  }
  int SystemRefusal(const std::string& location, bool trusted_links = false) const {
    const auto error = Thrown<SystemError>([&] { Open(location, trusted_links); });
    EXPECT_EQ(error.filename(), location);
    return error.error_number();
  }
  void Link(const std::string& target, std::string_view name) const {
    ASSERT_EQ(symlink(target.c_str(), (outer_ / name).c_str()), 0) << name;
  }

  TestFolder outer_;
  FileDescriptor folder_;
};

INSTANTIATE_TEST_SUITE_P(, OpenBeneathTest, testing::Bool(),
                         [](const auto& way) { return way.param ? "Openat2" : "Walking"; });

TEST_P(OpenBeneathTest, OpensFilesBeneath) {
  EXPECT_EQ(Content("weights"), "weights");
  EXPECT_EQ(Content("a..b"), "dots");
  EXPECT_EQ(Content("deep/er/file"), "deep");
  EXPECT_EQ(Content("./deep//./er/file"), "deep");
  EXPECT_EQ(fcntl(Open("weights").get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST_P(OpenBeneathTest, RefusesPathsThatLeave) {
  const std::string absolute = outer_ / "secret";
  for (const bool trusted_links : {false, true}) {
    for (const std::string& location :
         {std::string(), absolute, std::string("/"), std::string("../secret"), std::string(".."),
          std::string("deep/../../secret"), std::string("deep/../weights"), std::string("deep/.."),
          std::string("./../secret"), std::string("weights\0.bin", 12), std::string("."),
          std::string("deep/"), std::string("weights/"), std::string("deep/."),
          std::string(4096, 'x')}) {
      EXPECT_EQ(Refusal(location, trusted_links), "external.path") << location;
    }
  }
}

TEST_P(OpenBeneathTest, RefusesSymbolicLinksUnlessTrusted) {
  Link("weights", "model/inside");
  Link("../secret", "model/outside");
  Link(outer_ / "secret", "model/absolute");
  Link("inside", "model/chain");
  Link("deep", "model/folder");
  Link("..", "model/parent");
  Link("er", "model/deep/middle");
  const std::pair<const char*, const char*> links[] = {
      {"inside", "weights"},       {"outside", "secret"},      {"absolute", "secret"},
      {"chain", "weights"},        {"folder/er/file", "deep"}, {"parent/secret", "secret"},
      {"deep/middle/file", "deep"}};
  for (const auto& [location, content] : links) {
    EXPECT_EQ(Refusal(location), "external.link") << location;
    EXPECT_EQ(Content(location, /*trusted_links=*/true), content) << location;
  }
  Link("nowhere", "model/dangling");
  EXPECT_EQ(Refusal("dangling"), "external.link");
  EXPECT_EQ(SystemRefusal("dangling", true), ENOENT);
  Link("loop", "model/loop");
  EXPECT_EQ(Refusal("loop"), "external.link");
  EXPECT_EQ(SystemRefusal("loop", true), ELOOP);
}

TEST_P(OpenBeneathTest, RefusesHardLinksUnlessTrusted) {
  std::filesystem::create_hard_link(outer_ / "secret", outer_ / "model/hard");
  const auto error = Thrown<ValueError>([&] { Open("hard"); });
  EXPECT_EQ(error.code(), "external.link");
  EXPECT_NE(std::string(error.what()).find("2 hard links"), std::string::npos) << error.what();
  EXPECT_EQ(Content("hard", true), "secret");
  std::filesystem::remove(outer_ / "secret");
  EXPECT_EQ(Content("hard"), "secret");
}

TEST_P(OpenBeneathTest, RefusesWhatIsNoFile) {
  ASSERT_EQ(mkfifo((outer_ / "model/fifo").c_str(), 0600), 0);
  const FileDescriptor socket_fd(socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (outer_ / "model/socket").c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  for (const bool trusted_links : {false, true}) {
    for (const char* location : {"fifo", "socket", "deep", "deep/er"}) {
      EXPECT_EQ(Refusal(location, trusted_links), "external.not_regular") << location;
    }
  }
  Link("/dev/zero", "model/zero");
  EXPECT_EQ(Refusal("zero", true), "external.not_regular");
}

TEST_P(OpenBeneathTest, SaysWhatTheSystemSays) {
  for (const bool trusted_links : {false, true}) {
    EXPECT_EQ(SystemRefusal("missing", trusted_links), ENOENT);
    EXPECT_EQ(SystemRefusal("missing/file", trusted_links), ENOENT);
    EXPECT_EQ(SystemRefusal("weights/file", trusted_links), ENOTDIR);
    EXPECT_EQ(SystemRefusal(std::string(300, 'x'), trusted_links), ENAMETOOLONG);
  }
}

TEST_P(OpenBeneathTest, MagicLinksAreLinks) {
  const FileDescriptor proc = OpenFolder("/proc/self");
  const auto error = Thrown<ValueError>([&] {
    OpenBeneath(proc.get(), "cwd/file", {.trusted_links = false, .use_openat2 = GetParam()});
  });
  EXPECT_EQ(error.code(), "external.link");
}

// Somebody exchanges a folder for a link to the outside, over and over, while it is opened: what is
// opened is never the file outside.
TEST_P(OpenBeneathTest, CannotBeRacedOutOfTheFolder) {
  std::filesystem::create_directory(outer_ / "elsewhere");
  WriteTestFile(outer_ / "elsewhere/file", "secret");
  Link("../elsewhere", "model/swap");
  WriteTestFile(outer_ / "model/deep/file", "public");
  std::jthread swapper([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      renameat2(folder_.get(), "swap", folder_.get(), "deep", RENAME_EXCHANGE);
    }
  });
  int opened = 0;
  int refused = 0;
  for (int i = 0; i < 200'000 && (i < 2000 || opened == 0 || refused == 0); ++i) {
    try {
      const FileDescriptor file = Open("deep/file");
      ++opened;
      ASSERT_EQ(ReadFile(file.get(), 0, 6, "file").view(), "public");
    } catch (const ValueError& error) {
      ++refused;
      ASSERT_EQ(error.code(), "external.link");
    } catch (const SystemError& error) {
      // The walk asks a second time what it was that it could not enter, and may find the folder.
      ASSERT_EQ(error.error_number(), ENOTDIR);
    }
  }
  EXPECT_GT(opened, 0);
  EXPECT_GT(refused, 0);
}

// The exit status of a child in which openat2 fails with `error`, as in an old kernel or a sandbox.
int RunWithoutOpenat2(unsigned error, const std::function<int()>& f) {
  const pid_t child = fork();
  if (child == 0) {
    sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{std::size(code), code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) _exit(98);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) _exit(99);
    if (syscall(SYS_openat2, -1, "", nullptr, 0) != -1 || errno != static_cast<int>(error)) {
      _exit(97);
    }
    _exit(f());
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(OpenBeneath, WorksWhereThereIsNoOpenat2) {
  TestFolder outer;
  std::filesystem::create_directory(outer / "folder");
  WriteTestFile(outer / "folder/file", "content");
  ASSERT_EQ(symlink("folder", (outer / "link").c_str()), 0);
  const FileDescriptor folder = OpenFolder(outer.path());
  for (const unsigned error : {ENOSYS, EPERM}) {
    EXPECT_EQ(RunWithoutOpenat2(error,
                                [&] {
                                  const FileDescriptor file =
                                      OpenBeneath(folder.get(), "folder/file");
                                  return RegularFileSize(file.get(), "file") == 7 ? 0 : 1;
                                }),
              0);
    EXPECT_EQ(RunWithoutOpenat2(error,
                                [&] {
                                  const auto refusal = Thrown<ValueError>(
                                      [&] { OpenBeneath(folder.get(), "link/file"); });
                                  return refusal.code() == "external.link" ? 0 : 1;
                                }),
              0);
  }
}

TEST(CheckLocation, QuotesWhatItRefuses) {
  const auto text = [](std::string_view location) {
    return std::string(Thrown<ValueError>([&] { CheckLocation(location); }).what());
  };
  EXPECT_NE(text("../a\"b\n").find(R"("../a\"b\x0a")"), std::string::npos) << text("../a\"b\n");
  EXPECT_NE(text(std::string("a\0b", 3)).find(R"("a\x00b")"), std::string::npos);
  EXPECT_LT(text("../" + std::string(1'000'000, 'x')).size(), 400u);
  CheckLocation("...");
  CheckLocation("a/..b/c..");
  CheckLocation("..a");
}

}  // namespace
}  // namespace onnx_light
