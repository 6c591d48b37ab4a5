// The token ids of a snapshot.
#pragma once

#include <vector>

#include "onnx_light/bytes.h"
#include "onnx_light/snapshot_content.h"
#include "snapshot/fold.h"

namespace onnx_light::snapshot {

// The ids in one record's extent, verified. Throws Failure. REQUIRES: the record has the extent.
TokenIds ReadRecordTokens(const SharedBytes& source, const Record& record);

// All ids, verified; where they are in one record, they are shared with the source.
TokenIds ReadTokens(const SharedBytes& source, const std::vector<Record>& records,
                    const std::vector<TokenSpan>& spans);

// Those of [first, last), counted from the first one of `tokens`.
TokenIds SliceTokens(const TokenIds& tokens, int64_t first, int64_t last);

}  // namespace onnx_light::snapshot
