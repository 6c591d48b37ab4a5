#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "base/test_folder.h"
#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

TEST(FileDescriptor, ClosesOnceAndKeepsErrno) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  {
    FileDescriptor first(fds[0]);
    FileDescriptor second = std::move(first);
    EXPECT_EQ(first.get(), -1);
    EXPECT_EQ(second.get(), fds[0]);
    errno = ENOSPC;
  }
  EXPECT_EQ(errno, ENOSPC);
  EXPECT_EQ(fcntl(fds[0], F_GETFD), -1);
  FileDescriptor writer(fds[1]);
  writer.Close("pipe");
  EXPECT_FALSE(writer);
  EXPECT_EQ(fcntl(fds[1], F_GETFD), -1);
  EXPECT_EQ(Thrown<SystemError>([&] { writer.Close("gone"); }).error_number(), EBADF);
}

TEST(SplitPath, CutsAtTheLastSlash) {
  const auto expect = [](const char* path, const char* folder, const char* name) {
    const PathParts parts = SplitPath(path);
    EXPECT_EQ(parts.folder, folder) << path;
    EXPECT_EQ(parts.name, name) << path;
  };
  expect("b", ".", "b");
  expect("a/b", "a", "b");
  expect("/b", "/", "b");
  expect("/a/b/c", "/a/b", "c");
  expect("a/", "a", "");
  expect("", ".", "");
}

TEST(OpenForReading, TakesRegularFilesThroughLinks) {
  TestFolder folder;
  WriteTestFile(folder / "file", "content");
  ASSERT_EQ(symlink("file", (folder / "link").c_str()), 0);
  for (const char* name : {"file", "link"}) {
    const FileDescriptor file = OpenForReading(folder / name);
    EXPECT_EQ(RegularFileSize(file.get(), name), 7u);
    EXPECT_EQ(fcntl(file.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  }
}

TEST(OpenForReading, RefusesWhatIsNoFileWithoutWaiting) {
  TestFolder folder;
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  const FileDescriptor socket_fd(socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (folder / "socket").c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  for (const std::string& path : {folder / "fifo", folder / "socket", std::string("/dev/zero")}) {
    const auto error = Thrown<ValueError>([&] { OpenForReading(path); });
    EXPECT_EQ(error.code(), "file.not_regular");
    EXPECT_EQ(error.path(), path);
  }
}

TEST(OpenForReading, SaysWhatTheSystemSays) {
  TestFolder folder;
  const auto missing = Thrown<SystemError>([&] { OpenForReading(folder / "missing"); });
  EXPECT_EQ(missing.error_number(), ENOENT);
  EXPECT_EQ(missing.filename(), folder / "missing");
  EXPECT_EQ(Thrown<SystemError>([&] { OpenForReading(""); }).error_number(), ENOENT);
  EXPECT_EQ(Thrown<SystemError>([&] { OpenForReading(folder.path()); }).error_number(), EISDIR);
  WriteTestFile(folder / "file", "");
  EXPECT_EQ(Thrown<SystemError>([&] { OpenFolder(folder / "file"); }).error_number(), ENOTDIR);
}

TEST(OpenForReading, DoesNotCutAPathAtNul) {
  TestFolder folder;
  WriteTestFile(folder / "file", "content");
  const std::string path = (folder / "file") + std::string("\0.txt", 5);
  EXPECT_EQ(Thrown<ValueError>([&] { OpenForReading(path); }).code(), "file.path");
}

TEST(WriteAll, WritesManyPartsInOrder) {
  TestFolder folder;
  std::string expected;
  std::vector<std::string> texts;
  for (int i = 0; i < 5000; ++i)
    texts.push_back(std::string(static_cast<size_t>(i % 7), static_cast<char>('a' + i % 26)));
  std::vector<std::span<const std::byte>> parts;
  for (const std::string& text : texts) {
    parts.push_back(AsBytes(text));
    expected += text;
  }
  const FileDescriptor file(open((folder / "file").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  WriteAll(file.get(), parts, "file");
  WriteAll(file.get(), AsBytes("end"), "file");
  WriteAll(file.get(), std::span<const std::byte>(), "file");
  EXPECT_EQ(ReadTestFile(folder / "file"), expected + "end");
}

void DoNothing(int) {}

// A non-blocking pipe takes a part of what it is given, then says EAGAIN; signals that arrive
// meanwhile interrupt the wait.
TEST(WriteAll, GoesOnAfterShortWritesFullPipesAndSignals) {
  struct sigaction action = {};
  struct sigaction before = {};
  action.sa_handler = DoNothing;  // without SA_RESTART
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  std::string text(3'000'000, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + i / 251);
  for (const int flags : {0, O_NONBLOCK}) {
    int fds[2];
    ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
    ASSERT_EQ(fcntl(fds[1], F_SETFL, flags), 0);
    const FileDescriptor reader(fds[0]);
    const pthread_t writer_thread = pthread_self();
    std::string received;
    {
      FileDescriptor writer(fds[1]);
      std::jthread thread([&] {
        std::array<char, 50'000> piece;
        ssize_t count;
        while ((count = read(fds[0], piece.data(), piece.size())) > 0) {
          received.append(piece.data(), static_cast<size_t>(count));
          if (received.size() < text.size()) pthread_kill(writer_thread, SIGUSR1);
        }
      });
      const std::string_view view = text;
      const std::vector parts = {AsBytes(view.substr(0, 1)), AsBytes(view.substr(1, 1'999'999)),
                                 AsBytes(view.substr(2'000'000))};
      WriteAll(fds[1], parts, "pipe");
      writer.Close("pipe");
    }
    EXPECT_TRUE(received == text);
  }
  ASSERT_EQ(sigaction(SIGUSR1, &before, nullptr), 0);
}

// A reader that never comes: without the interrupt this would wait for ever.
TEST(WriteAll, AnInterruptEndsTheWait) {
  struct sigaction action = {};
  struct sigaction before = {};
  action.sa_handler = DoNothing;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  const std::string text(3'000'000, 'x');
  struct Stop {};
  for (const int flags : {0, O_NONBLOCK}) {
    int fds[2];
    ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
    ASSERT_EQ(fcntl(fds[1], F_SETFL, flags), 0);
    const FileDescriptor reader(fds[0]), writer(fds[1]);
    const pthread_t writer_thread = pthread_self();
    const std::jthread signals([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        pthread_kill(writer_thread, SIGUSR1);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    int calls = 0;
    const auto bytes = AsBytes(text);
    EXPECT_THROW(WriteAll(writer.get(), std::span(&bytes, 1), "pipe",
                          [&] {
                            if (++calls == 5) throw Stop();
                          }),
                 Stop);
  }
  ASSERT_EQ(sigaction(SIGUSR1, &before, nullptr), 0);
}

TEST(WriteAll, NamesTheFileThatFailed) {
  const FileDescriptor full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  const auto error = Thrown<SystemError>([&] { WriteAll(full.get(), AsBytes("x"), "model.onnx"); });
  EXPECT_EQ(error.error_number(), ENOSPC);
  EXPECT_EQ(error.filename(), "model.onnx");
  EXPECT_EQ(Thrown<SystemError>([] { WriteAll(-1, AsBytes("x"), ""); }).error_number(), EBADF);
}

}  // namespace
}  // namespace onnx_light
