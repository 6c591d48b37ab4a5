// Walks over the messages of a tree. They have a stack of their own, so trees may be as deep as
// they like.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "onnx_light/message.h"

namespace onnx_light {

// A message on the way from the root, and how far the walk has come in it. `M` is Message, or const
// Message.
template <typename M>
struct VisitFrame {
  VisitFrame(const MessageInfo& message_info, M& visited) : info(&message_info), message(&visited) {
    for (uint32_t bits = visited.presence; bits != 0; bits &= bits - 1) {
      const auto index = static_cast<size_t>(std::countr_zero(bits));
      if (message_info.fields[index].kind == Kind::kMessage) fields_left |= uint32_t{1} << index;
    }
  }

  // The next submessage, or null behind the last.
  M* Next() {
    while (position == count) {
      if (fields_left == 0) return nullptr;
      field = &info->fields[static_cast<size_t>(std::countr_zero(fields_left))];
      fields_left &= fields_left - 1;
      position = 0;
      count = field->repeated ? ViewList(*message, *field).size : 1;
    }
    const uint64_t index = position++;
    if (!field->repeated) return Member<Message*>(*message, *field);
    return ViewList(*message, *field).template span<Message*>()[index];
  }

  const MessageInfo* info;
  M* message;
  uint32_t fields_left = 0;          // presence bits
  const FieldInfo* field = nullptr;  // the one being walked
  uint64_t position = 0;             // in it, behind the submessage given last
  uint64_t count = 0;
};

// Where a visit is. Costs nothing until it is asked for.
template <typename M>
class VisitPath {
 public:
  explicit VisitPath(const std::vector<VisitFrame<M>>& frames) : frames_(frames) {}

  // The field that holds the message `levels` above the one that is visited; null at the root.
  const FieldInfo* Field(size_t levels = 0) const {
    return levels < frames_.size() ? frames_[frames_.size() - 1 - levels].field : nullptr;
  }

  // "graph.initializer[3]"; empty at the root.
  std::string ToString() const {
    std::string path;
    for (const VisitFrame<M>& frame : frames_) {
      if (!path.empty()) path += '.';
      path += frame.field->name;
      if (frame.field->repeated) path += '[' + std::to_string(frame.position - 1) + ']';
    }
    return path;
  }

 private:
  const std::vector<VisitFrame<M>>& frames_;
};

// Calls f(const MessageInfo&, M&, const VisitPath<M>&) for every message of the tree, parents
// before children, in the order of writing. `f` may change the message that it gets and what lies
// below it.
template <typename M, typename F>
void VisitMessages(const MessageInfo& info, M& root, const F& f) {
  std::vector<VisitFrame<M>> frames;
  const VisitPath<M> path(frames);
  const auto enter = [&](const MessageInfo& entered, M& message) {
    f(entered, message, path);
    VisitFrame<M> frame(entered, message);
    if (frame.fields_left != 0) frames.push_back(frame);
  };
  enter(info, root);
  while (!frames.empty()) {
    M* next = frames.back().Next();
    if (next == nullptr) {
      frames.pop_back();
    } else {
      enter(*frames.back().field->message, *next);
    }
  }
}

// The same for the messages that carry a payload (MessageInfo::has_payload).
template <typename M, typename F>
void VisitPayloads(const MessageInfo& info, M& root, const F& f) {
  VisitMessages(info, root, [&](const MessageInfo& entered, M& message, const VisitPath<M>& path) {
    if (entered.has_payload()) f(entered, message, path);
  });
}

}  // namespace onnx_light
