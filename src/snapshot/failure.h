// What is wrong with a file, on its way from where it is found to the caller or the report.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "onnx_light/errors.h"
#include "onnx_light/snapshot_report.h"

namespace onnx_light::snapshot {

class Failure : public std::exception {
 public:
  explicit Failure(SnapshotProblem problem) : problem_(std::move(problem)) {}
  const char* what() const noexcept override { return problem_.message.c_str(); }
  const SnapshotProblem& problem() const { return problem_; }

 private:
  SnapshotProblem problem_;
};

// "byte 128: <message>".
inline std::string AtByte(uint64_t offset, const std::string& message) {
  return "byte " + std::to_string(offset) + ": " + message;
}

[[noreturn]] inline void Fail(const char* code, const std::string& place, uint64_t offset,
                              const std::string& message) {
  throw Failure({code, place, AtByte(offset, message), "", -1, offset});
}

[[noreturn]] inline void FailCorrupt(const std::string& place, uint64_t offset,
                                     const std::string& message) {
  Fail("snapshot.corrupt", place, offset, message);
}

// As the error that the public functions throw. `name` is the file's, or empty.
inline ValueError ToError(const std::string& name, const SnapshotProblem& problem) {
  const std::string separator = name.empty() || problem.path.empty() ? "" : ": ";
  return ValueError(problem.code, name + separator + problem.path, problem.message);
}

}  // namespace onnx_light::snapshot
