// A block of a cache's message: reading it is checking it.
#pragma once

#include <string>

#include "check/pages.h"
#include "onnx_light/messages.h"
#include "onnx_light/page.h"
#include "quant/encoded_proto.h"

namespace onnx_light {

struct Block {
  PageExtent extent;
  // Large data are shared with the message. Without bytes where they lie in another file that is
  // skipped; their size has been checked all the same, where the message tells it.
  PagePayload key, value;
};

// The block at `path`, alone: not yet whether its length fits its capacity, nor its neighbours.
// ValueError `cache.missing`, `cache.data_type`, `cache.shape`, `cache.payload_size`,
// `cache.unsupported`, and as ReadTensorData() and ReadEncodedValue().
Block ReadBlock(const PagedCacheBlockProto& block, const References& references,
                const std::string& path);

}  // namespace onnx_light
