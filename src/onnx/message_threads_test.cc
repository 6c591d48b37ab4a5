// Many threads on messages and buffers that they share. Run it under the thread sanitizer, too.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/test_folder.h"
#include "onnx_light/message_file.h"
#include "onnx_light/message_ops.h"
#include "onnx_light/messages.h"
#include "onnx_light/serialization.h"
#include "wire/visit.h"

namespace onnx_light {
namespace {

constexpr int kThreads = 4;
constexpr size_t kPayload = 20'000;

// Runs f(i) on threads that begin together.
void InThreads(const std::function<void(int)>& f) {
  std::latch start(kThreads);
  std::vector<std::jthread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      f(i);
    });
  }
}

std::string Content(int number) { return std::string(kPayload, static_cast<char>('a' + number)); }

// Nodes, short texts, unknown fields, and payloads that lie in `released`'s buffers.
void Fill(Owned<GraphProto>& graph, std::atomic<int>& released) {
  Arena& arena = graph.arena();
  graph->set_name(arena, "graph");
  for (int i = 0; i < 8; ++i) {
    NodeProto& node = *graph->add_node(arena);
    node.set_op_type(arena, "Identity");
    node.set_doc_string(arena, std::string(100, 'd'));
    AppendUnknownFields(arena, node, "\xf8\x07\x01");
    auto content = std::make_shared<std::string>(Content(i));
    const char* const data = content->data();
    graph->add_initializer(arena)->set_raw_data(
        arena, SharedBytes(BufferRef::Wrap(data, kPayload, [content, &released] {
          std::memset(content->data(), '!', content->size());  // a race with any late reader
          ++released;
        })));
  }
}

std::string Bytes(const GraphProto& graph) {
  const Serializer serializer(GraphProto::kInfo, graph);
  std::string bytes(serializer.size(), '\0');
  serializer.WriteTo(reinterpret_cast<std::byte*>(bytes.data()));
  return bytes;
}

TEST(MessageThreads, ManyReadersOfOneMessage) {
  TestFolder folder;
  std::atomic<int> released{0};
  {
    Owned<GraphProto> graph;
    Fill(graph, released);
    const std::string bytes = Bytes(*graph);
    const std::string text = ToText(GraphProto::kInfo, *graph);
    InThreads([&](int i) {
      for (int round = 0; round < 10; ++round) {
        EXPECT_EQ(Bytes(*graph), bytes);
        EXPECT_EQ(ToText(GraphProto::kInfo, *graph), text);
        Owned<GraphProto> copy;
        Merge(copy.arena(), GraphProto::kInfo, *copy, *graph);
        EXPECT_TRUE(Equal(GraphProto::kInfo, *copy, *graph));
        EXPECT_EQ(copy->initializer()[i]->raw_data().data(),
                  graph->initializer()[i]->raw_data().data());
        const auto segments = Serializer(GraphProto::kInfo, *graph).Gather();
        std::string gathered(bytes.size(), '\0');
        segments.CopyTo(reinterpret_cast<std::byte*>(gathered.data()), 2);
        EXPECT_EQ(gathered, bytes);
        int payloads = 0;
        const Message& root = *graph;
        VisitPayloads(GraphProto::kInfo, root,
                      [&](const auto&, const auto&, const auto&) { ++payloads; });
        EXPECT_EQ(payloads, 8);
      }
      const std::string path = folder / std::to_string(i);
      SerializeOptions options;
      options.raw_data_threshold = 1000;
      SerializeFile(GraphProto::kInfo, *graph, path, options, path + ".data");
      Owned<GraphProto> read;
      ParseFile(read.arena(), GraphProto::kInfo, *read, path, {}, path + ".data");
      EXPECT_TRUE(Equal(GraphProto::kInfo, *read, *graph));
    });
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 8);
}

TEST(MessageThreads, OneBufferInMessagesThatChange) {
  std::atomic<int> released{0};
  auto source = std::make_unique<Owned<GraphProto>>();
  Fill(*source, released);
  std::vector<std::unique_ptr<Owned<GraphProto>>> kept(kThreads);
  InThreads([&](int i) {
    for (int round = 0; round < 50; ++round) {
      auto copy = std::make_unique<Owned<GraphProto>>();
      Arena& arena = copy->arena();
      Merge(arena, GraphProto::kInfo, **copy, **source);
      auto* tensor = static_cast<TensorProto*>((*copy)->initializer()[round % 8]);
      tensor->set_raw_data(arena, "its own");  // lets the shared one go
      (*copy)->clear_node(arena);
      EXPECT_EQ((*copy)->initializer()[(round + 1) % 8]->raw_data(), Content((round + 1) % 8));
      kept[i] = std::move(copy);
    }
  });
  source.reset();
  EXPECT_EQ(released, 1);  // the one that no copy kept
  for (const auto& copy : kept) {
    EXPECT_EQ((*copy)->initializer()[1]->raw_data(), "its own");
    EXPECT_EQ((*copy)->initializer()[5]->raw_data(), Content(5));
  }
  kept.clear();
  EXPECT_EQ(released, 8);
}

// Arenas that share buffers end on other threads than those that made them, in any order.
TEST(MessageThreads, ArenasEndInAnyOrder) {
  std::mt19937 random(7);
  for (int round = 0; round < 10; ++round) {
    std::atomic<int> released{0};
    std::vector<std::unique_ptr<Owned<GraphProto>>> graphs(20);
    graphs[0] = std::make_unique<Owned<GraphProto>>();
    Fill(*graphs[0], released);
    for (size_t i = 1; i < graphs.size(); ++i) {  // copies of copies
      graphs[i] = std::make_unique<Owned<GraphProto>>();
      Merge(graphs[i]->arena(), GraphProto::kInfo, **graphs[i], **graphs[random() % i]);
    }
    std::shuffle(graphs.begin(), graphs.end(), random);
    std::atomic<size_t> next{0};
    InThreads([&](int) {
      for (size_t i; (i = next++) < graphs.size();) {
        EXPECT_EQ((*graphs[i])->initializer()[i % 8]->raw_data(), Content(static_cast<int>(i % 8)));
        graphs[i].reset();
      }
    });
    EXPECT_EQ(released, 8);
  }
}

TEST(MessageThreads, OneInputBorrowedByMany) {
  std::atomic<int> unused{0};
  std::string bytes;
  {
    Owned<GraphProto> graph;
    Fill(graph, unused);
    bytes = Bytes(*graph);
  }
  std::atomic<int> released{0};
  std::vector<std::unique_ptr<Owned<GraphProto>>> graphs(kThreads);
  {
    auto input = std::make_shared<std::string>(bytes);
    const char* const data = input->data();
    const BufferRef owner = BufferRef::Wrap(data, bytes.size(), [input, &released] {
      std::memset(input->data(), '!', input->size());
      ++released;
    });
    InThreads([&](int i) {
      for (int round = 0; round < 20; ++round) {
        ParseOptions options;
        options.no_copy = (i + round) % 2 == 0;
        options.num_threads = 1 + round % 3;
        auto graph = std::make_unique<Owned<GraphProto>>();
        Parse(graph->arena(), GraphProto::kInfo, **graph, {{owner.data(), bytes.size()}, owner},
              options);
        graphs[i] = std::move(graph);  // ends the one before
      }
    });
  }
  InThreads([&](int i) {
    auto graph = std::move(graphs[(i + 1) % kThreads]);
    EXPECT_EQ(Bytes(**graph), bytes);
    graph.reset();
  });
  EXPECT_EQ(released, 1);
}

// Saves by many threads to one path: the file is always one of them, whole.
TEST(MessageThreads, ManyWritersOfOneFile) {
  TestFolder folder;
  const std::string path = folder / "file";
  std::atomic<int> released{0};
  Owned<GraphProto> first, second;
  Fill(first, released);
  second->set_name(second.arena(), "second");
  SerializeFile(GraphProto::kInfo, *first, path);
  InThreads([&](int i) {
    for (int round = 0; round < 5; ++round) {
      if (i < 2) {
        SerializeFile(GraphProto::kInfo, i == 0 ? *first : *second, path);
        continue;
      }
      Owned<GraphProto> read;
      ParseOptions options;
      options.no_copy = true;
      options.file_load_mode = i == 2 ? FileLoadMode::kMmap : FileLoadMode::kStream;
      ParseFile(read.arena(), GraphProto::kInfo, *read, path, options);
      EXPECT_TRUE(Equal(GraphProto::kInfo, *read, *first) ||
                  Equal(GraphProto::kInfo, *read, *second));
    }
  });
  EXPECT_EQ(folder.Names(), std::vector<std::string>{"file"});
}

}  // namespace
}  // namespace onnx_light
