#include "base/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <limits>
#include <thread>

#include "base/file.h"
#include "base/test_folder.h"
#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

std::string Text(size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 13 + i / 257);
  return text;
}

bool IsMapped(const void* address) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  void* base = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) / page * page);
  unsigned char resident;
  return mincore(base, 1, &resident) == 0;
}

// Both ways to get at a file must agree in everything but where the bytes lie.
struct Mode {
  const char* name;
  SharedBytes (*whole)(const std::string&);
  SharedBytes (*range)(int, uint64_t, uint64_t, const std::string&);
};

class FileBytes : public testing::TestWithParam<Mode> {};

INSTANTIATE_TEST_SUITE_P(, FileBytes,
                         testing::Values(Mode{"Map", MapFile, MapFile},
                                         Mode{"Read", ReadFile, ReadFile}),
                         [](const auto& mode) { return mode.param.name; });

TEST_P(FileBytes, WholeFile) {
  TestFolder folder;
  for (const size_t size : {1, 63, 4095, 4096, 4097, 1'000'000}) {
    const std::string text = Text(size);
    WriteTestFile(folder / "file", text);
    const SharedBytes bytes = GetParam().whole(folder / "file");
    EXPECT_TRUE(bytes.view() == text) << size;
    EXPECT_TRUE(bytes.owner);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data) % kBufferAlignment, 0u);
  }
}

TEST_P(FileBytes, Ranges) {
  TestFolder folder;
  const std::string text = Text(20'000);
  WriteTestFile(folder / "file", text);
  FileDescriptor file = OpenForReading(folder / "file");
  for (const uint64_t offset : {0, 1, 64, 4095, 4096, 4097, 8192, 19'999, 20'000}) {
    for (const uint64_t length : {0, 1, 4096, 9000}) {
      if (offset + length > text.size()) continue;
      const SharedBytes bytes = GetParam().range(file.get(), offset, length, "file");
      EXPECT_TRUE(bytes.view() == text.substr(offset, length)) << offset << " " << length;
    }
  }
  const SharedBytes kept = GetParam().range(file.get(), 5000, 10'000, "file");
  file.Close("file");
  EXPECT_TRUE(kept.view() == text.substr(5000, 10'000));
}

TEST_P(FileBytes, RangesOutsideAreRefused) {
  TestFolder folder;
  WriteTestFile(folder / "file", Text(100));
  const FileDescriptor file = OpenForReading(folder / "file");
  const std::pair<uint64_t, uint64_t> ranges[] = {{101, 0},  {100, 1},  {50, 51},       {0, 101},
                                                  {0, kMax}, {kMax, 1}, {50, kMax - 40}};
  for (const auto& [offset, length] : ranges) {
    const auto error =
        Thrown<ValueError>([&] { GetParam().range(file.get(), offset, length, "the name"); });
    EXPECT_EQ(error.code(), "file.range") << offset << " " << length;
    EXPECT_EQ(error.path(), "the name");
  }
}

TEST_P(FileBytes, EmptyFile) {
  TestFolder folder;
  WriteTestFile(folder / "file", "");
  EXPECT_EQ(GetParam().whole(folder / "file").size, 0u);
  const FileDescriptor file = OpenForReading(folder / "file");
  EXPECT_EQ(GetParam().range(file.get(), 0, 0, "file").size, 0u);
}

TEST_P(FileBytes, WhatIsNoFileIsRefused) {
  TestFolder folder;
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(Thrown<ValueError>([&] { GetParam().whole(folder / "fifo"); }).code(),
            "file.not_regular");
  EXPECT_EQ(Thrown<ValueError>([&] { GetParam().whole("/dev/null"); }).code(), "file.not_regular");
  EXPECT_EQ(Thrown<SystemError>([&] { GetParam().whole(folder.path()); }).error_number(), EISDIR);
  const auto missing = Thrown<SystemError>([&] { GetParam().whole(folder / "missing"); });
  EXPECT_EQ(missing.error_number(), ENOENT);
  EXPECT_EQ(missing.filename(), folder / "missing");
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const FileDescriptor reader(fds[0]), writer(fds[1]);
  EXPECT_EQ(Thrown<ValueError>([&] { GetParam().range(fds[0], 0, 1, "pipe"); }).code(),
            "file.not_regular");
}

// procfs files claim to be empty: taking them at their word would lose their content.
TEST_P(FileBytes, FilesThatHideTheirSizeAreRefused) {
  EXPECT_EQ(Thrown<ValueError>([&] { GetParam().whole("/proc/self/status"); }).code(),
            "file.changed");
}

TEST_P(FileBytes, OffsetsAboveFourGibibytes) {
  TestFolder folder;
  const uint64_t offset = (uint64_t{5} << 30) + 123;
  const FileDescriptor file(open((folder / "sparse").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(pwrite(file.get(), "payload", 7, static_cast<off_t>(offset)), 7);
  EXPECT_EQ(RegularFileSize(file.get(), "sparse"), offset + 7);
  EXPECT_EQ(GetParam().range(file.get(), offset, 7, "sparse").view(), "payload");
}

TEST(MapFile, UnmapsWithTheLastReference) {
  TestFolder folder;
  WriteTestFile(folder / "file", Text(10'000));
  const FileDescriptor file = OpenForReading(folder / "file");
  SharedBytes part;
  {
    const SharedBytes bytes = MapFile(file.get(), 5000, 5000, "file");
    part = bytes.Slice(1000, 10);
  }
  const void* address = part.data;
  EXPECT_TRUE(IsMapped(address));
  EXPECT_TRUE(part.view() == Text(10'000).substr(6000, 10));
  part = SharedBytes();
  EXPECT_FALSE(IsMapped(address));
}

TEST(MapFile, KeepsTheOldBytesWhenTheFileIsReplaced) {
  TestFolder folder;
  WriteTestFile(folder / "file", "old bytes");
  const SharedBytes bytes = MapFile(folder / "file");
  WriteTestFile(folder / "new", "new");
  std::filesystem::rename(folder / "new", folder / "file");
  EXPECT_EQ(bytes.view(), "old bytes");
  std::filesystem::remove(folder / "file");
  EXPECT_EQ(bytes.view(), "old bytes");
}

TEST(MapFile, IsReadOnly) {
  TestFolder folder;
  WriteTestFile(folder / "file", "content");
  const SharedBytes bytes = MapFile(folder / "file");
  EXPECT_DEATH(*const_cast<std::byte*>(bytes.data) = std::byte{0}, "");
}

// Another thread changes the file while it is read, over and over: every read gives the whole file
// as it was at one size, or says that it changed; and it does say so.
TEST(ReadFile, NoticesAFileThatChangesItsSize) {
  TestFolder folder;
  const std::string path = folder / "file";
  constexpr off_t kLarge = 4 << 20;
  const FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(ftruncate(file.get(), kLarge), 0);
  bool changed = false;
  std::jthread changer([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (ftruncate(file.get(), kLarge / 2) != 0 || ftruncate(file.get(), kLarge) != 0) return;
    }
  });
  for (int i = 0; i < 20'000 && !changed; ++i) {
    try {
      const uint64_t size = ReadFile(path).size;
      EXPECT_TRUE(size == kLarge || size == kLarge / 2) << size;
    } catch (const ValueError& error) {
      EXPECT_EQ(error.code(), "file.changed");
      changed = true;
    }
  }
  EXPECT_TRUE(changed);
}

}  // namespace
}  // namespace onnx_light
