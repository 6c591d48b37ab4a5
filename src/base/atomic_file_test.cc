#include "base/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <optional>

#include "base/mapped_file.h"
#include "base/test_folder.h"
#include "onnx_light/errors.h"

namespace onnx_light {
namespace {

using Names = std::vector<std::string>;

mode_t Permissions(const std::string& path) {
  struct stat status;
  EXPECT_EQ(stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 0777;
}

void Save(const std::string& path, std::string_view content, bool overwrite = true) {
  AtomicFile file(path, overwrite);
  file.Write(AsBytes(content));
  file.Commit();
}

// The exit status of `f` in a child process that is not root.
template <typename Function>
int RunAsNobody(const Function& f) {
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(99);
    _exit(f());
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// While it lives, files of this process stay below a size.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t size) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{size, before_.rlim_max};
    handler_ = signal(SIGXFSZ, SIG_IGN);
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_;
  sighandler_t handler_;
};

TEST(AtomicFile, AppearsAtCommitAndNotBefore) {
  TestFolder folder;
  const std::string path = folder / "file";
  for (const bool sync : {false, true}) {
    std::filesystem::remove(path);
    AtomicFile file(path);
    file.Write(AsBytes("one "));
    const std::vector parts = {AsBytes("two "), AsBytes(""), AsBytes("three")};
    file.Write(parts);
    EXPECT_EQ(file.bytes_written(), 13u);
    EXPECT_FALSE(std::filesystem::exists(path));
    file.Commit(sync);
    EXPECT_EQ(ReadTestFile(path), "one two three");
    EXPECT_EQ(folder.Names(), Names{"file"});
  }
}

TEST(AtomicFile, WithoutCommitNothingChanges) {
  TestFolder folder;
  WriteTestFile(folder / "file", "old");
  {
    AtomicFile file(folder / "file");
    file.Write(AsBytes("new"));
    EXPECT_EQ(folder.Names().size(), 2u);
    EXPECT_EQ(ReadTestFile(folder / "file"), "old");
  }
  EXPECT_EQ(folder.Names(), Names{"file"});
  EXPECT_EQ(ReadTestFile(folder / "file"), "old");
}

TEST(AtomicFile, MappingsOfTheOldFileStay) {
  TestFolder folder;
  WriteTestFile(folder / "file", "old bytes, longer than the new");
  const SharedBytes old = MapFile(folder / "file");
  Save(folder / "file", "new");
  EXPECT_EQ(old.view(), "old bytes, longer than the new");
  EXPECT_EQ(MapFile(folder / "file").view(), "new");
}

TEST(AtomicFile, TwoWritersDoNotMix) {
  TestFolder folder;
  AtomicFile first(folder / "file"), second(folder / "file");
  first.Write(AsBytes("first"));
  second.Write(AsBytes("second"));
  second.Commit();
  EXPECT_EQ(ReadTestFile(folder / "file"), "second");
  first.Commit();
  EXPECT_EQ(ReadTestFile(folder / "file"), "first");
  EXPECT_EQ(folder.Names(), Names{"file"});
}

TEST(AtomicFile, TakesTheLongestNameAndRelativePaths) {
  TestFolder folder;
  const std::string name(255, 'n');
  Save(folder / name, "content");
  EXPECT_EQ(ReadTestFile(folder / name), "content");
  // The folder is held, so the working directory may change in between.
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  AtomicFile file("relative");
  std::filesystem::current_path(before);
  file.Commit();
  EXPECT_TRUE(std::filesystem::exists(folder / "relative"));
}

TEST(AtomicFile, FailedWriteKeepsTheOldFile) {
  TestFolder folder;
  WriteTestFile(folder / "file", "old");
  {
    const FileSizeLimit limit(1 << 20);
    AtomicFile file(folder / "file");
    const std::string piece(700'000, 'x');
    file.Write(AsBytes(piece));
    // A part still fits, so this begins with a short write.
    const auto error = Thrown<SystemError>([&] { file.Write(AsBytes(piece)); });
    EXPECT_EQ(error.error_number(), EFBIG);
    EXPECT_EQ(error.filename(), folder / "file");
    EXPECT_EQ(folder.Names(), Names{"file"});
    EXPECT_EQ(Thrown<SystemError>([&] { file.Write(AsBytes("x")); }).error_number(), EBADF);
    EXPECT_EQ(Thrown<SystemError>([&] { file.Commit(); }).error_number(), EBADF);
    EXPECT_EQ(file.bytes_written(), piece.size());
  }
  EXPECT_EQ(ReadTestFile(folder / "file"), "old");
  EXPECT_EQ(folder.Names(), Names{"file"});
}

// The descriptor by which this process has the only file of `folder` but "file" open.
int TemporaryDescriptor(const TestFolder& folder) {
  for (const std::string& name : folder.Names()) {
    struct stat temporary, status;
    if (name == "file" || stat((folder / name).c_str(), &temporary) != 0) continue;
    for (int fd = 0; fd < 1000; ++fd) {
      if (fstat(fd, &status) == 0 && status.st_ino == temporary.st_ino) return fd;
    }
  }
  return -1;
}

TEST(AtomicFile, FailedSyncKeepsTheOldFile) {
  TestFolder folder;
  WriteTestFile(folder / "file", "old");
  AtomicFile file(folder / "file");
  file.Write(AsBytes("new"));
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const FileDescriptor reader(fds[0]), writer(fds[1]);
  ASSERT_NE(dup2(writer.get(), TemporaryDescriptor(folder)), -1);  // a pipe cannot be synced
  const auto error = Thrown<SystemError>([&] { file.Commit(); });
  EXPECT_EQ(error.error_number(), EINVAL);
  EXPECT_EQ(error.filename(), folder / "file");
  EXPECT_EQ(folder.Names(), Names{"file"});
  EXPECT_EQ(ReadTestFile(folder / "file"), "old");
}

TEST(AtomicFile, FailedCloseKeepsTheOldFile) {
  TestFolder folder;
  WriteTestFile(folder / "file", "old");
  AtomicFile file(folder / "file");
  file.Write(AsBytes("new"));
  ASSERT_EQ(close(TemporaryDescriptor(folder)), 0);
  EXPECT_EQ(Thrown<SystemError>([&] { file.Commit(/*sync=*/false); }).error_number(), EBADF);
  EXPECT_EQ(folder.Names(), Names{"file"});
  EXPECT_EQ(ReadTestFile(folder / "file"), "old");
}

TEST(AtomicFile, FailedRenameLeavesNothing) {
  TestFolder folder;
  AtomicFile file(folder / "target");
  file.Write(AsBytes("new"));
  std::filesystem::create_directory(folder / "target");
  EXPECT_EQ(Thrown<SystemError>([&] { file.Commit(); }).error_number(), EISDIR);
  EXPECT_EQ(folder.Names(), Names{"target"});
  EXPECT_TRUE(std::filesystem::is_directory(folder / "target"));
}

TEST(AtomicFile, WithoutOverwriteAnExistingFileWins) {
  TestFolder folder;
  Save(folder / "file", "first", /*overwrite=*/false);
  const auto early = Thrown<SystemError>([&] { AtomicFile(folder / "file", false); });
  EXPECT_EQ(early.error_number(), EEXIST);
  AtomicFile late(folder / "late", false);
  late.Write(AsBytes("ours"));
  WriteTestFile(folder / "late", "theirs");
  EXPECT_EQ(Thrown<SystemError>([&] { late.Commit(); }).error_number(), EEXIST);
  EXPECT_EQ(ReadTestFile(folder / "late"), "theirs");
  ASSERT_EQ(symlink("nowhere", (folder / "dangling").c_str()), 0);
  EXPECT_EQ(Thrown<SystemError>([&] { AtomicFile(folder / "dangling", false); }).error_number(),
            EEXIST);
  EXPECT_EQ(folder.Names(), (Names{"dangling", "file", "late"}));
}

TEST(RenameNoReplace, BothWaysRefuseToReplace) {
  TestFolder folder;
  const FileDescriptor fd = OpenFolder(folder.path());
  for (const bool use_link : {false, true}) {
    WriteTestFile(folder / "from", "new");
    WriteTestFile(folder / "to", "old");
    EXPECT_EQ(RenameNoReplace(fd.get(), "from", "to", use_link), EEXIST);
    EXPECT_EQ(ReadTestFile(folder / "to"), "old");
    std::filesystem::remove(folder / "to");
    EXPECT_EQ(RenameNoReplace(fd.get(), "from", "to", use_link), 0);
    EXPECT_EQ(ReadTestFile(folder / "to"), "new");
    EXPECT_EQ(folder.Names(), Names{"to"});
    EXPECT_EQ(RenameNoReplace(fd.get(), "missing", "other", use_link), ENOENT);
  }
}

TEST(AtomicFile, LinksStayAndLeadToTheNewFile) {
  TestFolder folder;
  std::filesystem::create_directory(folder / "real");
  std::filesystem::create_directory(folder / "links");
  WriteTestFile(folder / "real/file", "old");
  ASSERT_EQ(symlink("../real/file", (folder / "links/first").c_str()), 0);
  ASSERT_EQ(symlink((folder / "links/first").c_str(), (folder / "second").c_str()), 0);
  Save(folder / "second", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "second"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "links/first"));
  EXPECT_FALSE(std::filesystem::is_symlink(folder / "real/file"));
  EXPECT_EQ(ReadTestFile(folder / "real/file"), "new");
  ASSERT_EQ(symlink("real/made", (folder / "dangling").c_str()), 0);
  Save(folder / "dangling", "made");
  EXPECT_EQ(ReadTestFile(folder / "real/made"), "made");
  ASSERT_EQ(symlink("loop", (folder / "loop").c_str()), 0);
  EXPECT_EQ(Thrown<SystemError>([&] { AtomicFile(folder / "loop"); }).error_number(), ELOOP);
}

TEST(AtomicFile, LinksThatAreRefusedLeadNowhere) {
  TestFolder folder;
  WriteTestFile(folder / "outside", "old");
  ASSERT_EQ(symlink("outside", (folder / "link").c_str()), 0);
  const auto make = [&](const char* name) {
    return std::make_unique<AtomicFile>(folder / name, true, AtomicFile::Links::kRefuse);
  };
  EXPECT_EQ(Thrown<ValueError>([&] { make("link"); }).code(), "file.not_regular");
  const auto file = make("late");
  file->Write(AsBytes("new"));
  ASSERT_EQ(symlink("outside", (folder / "late").c_str()), 0);
  file->Commit();
  EXPECT_FALSE(std::filesystem::is_symlink(folder / "late"));
  EXPECT_EQ(ReadTestFile(folder / "late"), "new");
  EXPECT_EQ(ReadTestFile(folder / "outside"), "old");
  EXPECT_EQ(folder.Names(), (Names{"late", "link", "outside"}));
}

TEST(AtomicFile, FinishedFilesWaitForTheirNames) {
  TestFolder folder;
  WriteTestFile(folder / "a", "old");
  {
    AtomicFile first(folder / "a"), second(folder / "b");
    for (AtomicFile* file : {&first, &second}) {
      file->Write(AsBytes("new"));
      file->Finish();
      EXPECT_EQ(Thrown<SystemError>([&] { file->Write(AsBytes("x")); }).error_number(), EBADF);
      EXPECT_EQ(Thrown<SystemError>([&] { file->Finish(); }).error_number(), EBADF);
    }
    EXPECT_EQ(ReadTestFile(folder / "a"), "old");
    second.Publish();
    second.SyncFolder();
    EXPECT_EQ(folder.Names().size(), 3u);
  }
  EXPECT_EQ(ReadTestFile(folder / "a"), "old");
  EXPECT_EQ(ReadTestFile(folder / "b"), "new");
  EXPECT_EQ(folder.Names(), (Names{"a", "b"}));
}

TEST(AtomicFile, AnInterruptKeepsTheOldFile) {
  TestFolder folder;
  WriteTestFile(folder / "file", "old");
  struct Stop {};
  const std::vector<std::byte> large(size_t{65} << 20);
  const std::vector<std::span<const std::byte>> parts = {large};
  AtomicFile file(folder / "file");
  int calls = 0;
  EXPECT_THROW(file.Write(parts,
                          [&] {
                            ++calls;
                            throw Stop();
                          }),
               Stop);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(ReadTestFile(folder / "file"), "old");
  EXPECT_EQ(folder.Names(), Names{"file"});
}

TEST(AtomicFile, AnotherHardLinkKeepsTheOldBytes) {
  TestFolder folder;
  WriteTestFile(folder / "file", "old");
  std::filesystem::create_hard_link(folder / "file", folder / "other");
  Save(folder / "file", "new");
  EXPECT_EQ(ReadTestFile(folder / "file"), "new");
  EXPECT_EQ(ReadTestFile(folder / "other"), "old");
}

TEST(AtomicFile, PermissionsAreTheOldFilesOrTheUmasks) {
  TestFolder folder;
  const mode_t before = umask(027);
  Save(folder / "new", "");
  EXPECT_EQ(Permissions(folder / "new"), 0640u);
  for (const mode_t mode : {0600u, 0666u, 0755u}) {
    WriteTestFile(folder / "old", "");
    ASSERT_EQ(chmod((folder / "old").c_str(), mode), 0);
    Save(folder / "old", "content");
    EXPECT_EQ(Permissions(folder / "old"), mode);
  }
  umask(before);
}

TEST(AtomicFile, TheGroupIsKeptOrLosesItsPermissions) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file to another group";
  TestFolder folder;
  const std::string path = folder / "file";
  WriteTestFile(path, "old");
  ASSERT_EQ(chown(path.c_str(), 65534, 4321), 0);
  ASSERT_EQ(chmod(path.c_str(), 0664), 0);
  Save(path, "by root");
  struct stat status;
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_gid, 4321u);
  EXPECT_EQ(status.st_mode & 0777, 0664u);
  // Nobody may write the file as its owner, but is not in its group.
  ASSERT_EQ(chown(path.c_str(), 65534, 4321), 0);
  ASSERT_EQ(chmod(folder.path().c_str(), 0777), 0);
  EXPECT_EQ(RunAsNobody([&] {
              Save(path, "by nobody");
              return 0;
            }),
            0);
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_gid, 65534u);
  EXPECT_EQ(status.st_mode & 0777, 0604u);
}

TEST(AtomicFile, RefusesWhatTheCallerMayNotWrite) {
  TestFolder folder;
  WriteTestFile(folder / "protected", "old");
  ASSERT_EQ(chmod((folder / "protected").c_str(), 0444), 0);
  ASSERT_EQ(chmod(folder.path().c_str(), 0777), 0);
  const auto save_error = [&](const char* name) {
    return Thrown<SystemError>([&] { AtomicFile(folder / name); }).error_number();
  };
  EXPECT_EQ(RunAsNobody([&] { return save_error("protected"); }), EACCES);
  ASSERT_EQ(chmod(folder.path().c_str(), 0555), 0);
  EXPECT_EQ(RunAsNobody([&] { return save_error("new"); }), EACCES);
  ASSERT_EQ(chmod(folder.path().c_str(), 0700), 0);
  EXPECT_EQ(ReadTestFile(folder / "protected"), "old");
  EXPECT_EQ(folder.Names(), Names{"protected"});
}

TEST(AtomicFile, RefusesWhatIsNoFile) {
  TestFolder folder;
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  for (const std::string& path : {folder / "fifo", std::string("/dev/null")}) {
    EXPECT_EQ(Thrown<ValueError>([&] { AtomicFile{path}; }).code(), "file.not_regular");
  }
  const auto error_number = [](const std::string& path) {
    const auto error = Thrown<SystemError>([&] { AtomicFile{path}; });
    EXPECT_EQ(error.filename(), path);
    return error.error_number();
  };
  EXPECT_EQ(error_number(folder.path()), EISDIR);
  EXPECT_EQ(error_number(folder / ""), EISDIR);
  EXPECT_EQ(error_number(folder / ".."), EISDIR);
  EXPECT_EQ(error_number(""), ENOENT);
  EXPECT_EQ(error_number(folder / "missing/file"), ENOENT);
  EXPECT_EQ(error_number(folder / "fifo/file"), ENOTDIR);
  EXPECT_EQ(error_number(folder / std::string(256, 'n')), ENAMETOOLONG);
  EXPECT_EQ(Thrown<ValueError>([&] { AtomicFile(std::string("a\0b", 3)); }).code(), "file.path");
  EXPECT_EQ(folder.Names(), Names{"fifo"});
}

TEST(AtomicFile, AForkedChildLeavesTheParentsTemporary) {
  TestFolder folder;
  std::optional<AtomicFile> file(std::in_place, folder / "file");
  file->Write(AsBytes("content"));
  const pid_t child = fork();
  if (child == 0) {
    file.reset();
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  file->Commit();
  EXPECT_EQ(ReadTestFile(folder / "file"), "content");
}

}  // namespace
}  // namespace onnx_light
