#include "onnx_light/errors.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace onnx_light {
namespace {

TEST(Errors, WhatIsPathAndMessage) {
  const ValueError error("cache.length", "graph.blocks[3].length", "17 exceeds capacity 16");
  EXPECT_STREQ(error.what(), "graph.blocks[3].length: 17 exceeds capacity 16");
  EXPECT_EQ(error.code(), "cache.length");
  EXPECT_EQ(error.path(), "graph.blocks[3].length");
  EXPECT_EQ(error.message(), "17 exceeds capacity 16");
  EXPECT_STREQ(TypeError("type", "", "an int").what(), "an int");
}

TEST(Errors, ParseErrorHasAnOffset) {
  const ParseError error("wire.truncated", "graph.node[3]", 1ull << 40, "ends early");
  EXPECT_STREQ(error.what(), "graph.node[3]: byte 1099511627776: ends early");
  EXPECT_EQ(error.offset(), 1ull << 40);
}

TEST(Errors, SystemErrorHasNumberAndFile) {
  const SystemError error(ENOENT, "model.onnx", "open");
  EXPECT_STREQ(error.what(), "model.onnx: open: No such file or directory");
  EXPECT_EQ(error.error_number(), ENOENT);
  EXPECT_EQ(error.filename(), "model.onnx");
  EXPECT_EQ(error.code(), "system");
}

TEST(Errors, EveryClassIsCaughtAsItsBases) {
  EXPECT_THROW(throw ParseError("c", "p", 0, "m"), ValueError);
  EXPECT_THROW(throw ValueError("c", "p", "m"), Error);
  EXPECT_THROW(throw TypeError("c", "p", "m"), Error);
  EXPECT_THROW(throw SystemError(EIO, "f", "read"), Error);
  EXPECT_THROW(throw SystemError(EIO, "f", "read"), std::exception);
}

}  // namespace
}  // namespace onnx_light
