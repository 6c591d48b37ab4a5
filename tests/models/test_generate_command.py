"""``onnx-light generate``: answers against the oracle, prompt caches across processes, refusals."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from gguf_samples import SMALL, random_weights, write_model
from llama_oracle import Oracle

pytest.importorskip("typer")
from typer.testing import CliRunner

from onnx_light import ModelIdentity, PagedCache, snapshot
from onnx_light.cli.app import app
from onnx_light.models import cached_model, render_chat, tokenizer_from_gguf

TEXT = "the thing, the other 12 things"
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
MAIN = "from onnx_light.cli import main; main()"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    return write_model(path, extra={"tokenizer.chat_template": TEMPLATE})


def greedy(model: Path, ids: list[int], count: int) -> list[int]:
    oracle, ids, first = Oracle(model), list(ids), len(ids)
    for _ in range(count):
        logits = oracle.logits(ids)[-1]
        top = np.sort(logits)[-2:]
        assert top[1] - top[0] > 1e-3
        ids.append(int(logits.argmax()))
    return ids[first:]


def invoke(*arguments: str | Path, stdin: bytes | None = None) -> Any:
    return CliRunner().invoke(app, ["generate", *map(str, arguments)], input=stdin)


def command(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-c", MAIN, "generate", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, timeout=120, **options)


def answer_of(result: Any) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    (answer,) = json.loads(result.stdout)["answers"]
    return dict(answer)


def refusal(result: Any) -> str:
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line]
    assert len(lines) == 1
    return str(lines[0])


def test_an_answer_equals_the_oracle(model: Path) -> None:
    tokenizer = tokenizer_from_gguf(model)
    ids = tokenizer.encode(TEXT).ids
    expected = greedy(model, ids, 9)
    assert 0 not in expected  # the end
    answer = answer_of(invoke(model, "--prompt", TEXT, "-n", "9", "--json"))
    assert answer["tokens"] == expected
    assert answer["text"] == tokenizer.decode(expected)
    assert (answer["prompt_tokens"], answer["reused_tokens"]) == (len(ids), 0)
    assert answer["finish"] == "length"
    assert 0 < answer["first_token_seconds"] <= answer["seconds"]
    result = invoke(model, "--prompt", TEXT, "-n", "9")
    assert result.stdout == tokenizer.decode(expected) + "\n"
    assert f"prompt of {len(ids)} tokens: 0 reused" in result.stderr


def test_quiet_prints_the_answer_alone(model: Path) -> None:
    loud = CliRunner().invoke(app, ["generate", str(model), "-p", TEXT, "-n", "4"])
    quiet = CliRunner().invoke(app, ["-q", "generate", str(model), "-p", TEXT, "-n", "4"])
    assert quiet.stdout == loud.stdout != ""
    assert quiet.stderr == ""


@pytest.mark.parametrize("form", ["file", "stdin"])
def test_a_prompt_from_elsewhere(model: Path, form: str, tmp_path: Path) -> None:
    direct = answer_of(invoke(model, "--prompt", TEXT, "-n", "5", "--json"))
    (tmp_path / "prompt").write_text(TEXT)
    place = "-" if form == "stdin" else str(tmp_path / "prompt")
    stdin = TEXT.encode() if form == "stdin" else None
    other = answer_of(invoke(model, "--prompt-file", place, "-n", "5", "--json", stdin=stdin))
    assert other["tokens"] == direct["tokens"]


def test_a_prompt_cache_outlives_its_process(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "p.kvcache"
    ids = tokenizer_from_gguf(model).encode(TEXT).ids
    read = command(model, "-p", TEXT, "-n", "0", "--prompt-cache", cache, "--json")
    assert read.returncode == 0, read.stderr
    report = json.loads(read.stdout)
    assert (report["loaded_tokens"], report["saved_tokens"]) == (0, len(ids))
    assert report["saved_bytes"] == cache.stat().st_size
    assert report["answers"][0]["tokens"] == []
    with snapshot.open(cache, expect=ModelIdentity.from_gguf(model)) as opened:
        assert np.asarray(opened.tokens).tolist() == ids
        assert opened.identity.weights
    longer = f"{TEXT}, and 3 more"
    ids = tokenizer_from_gguf(model).encode(longer).ids
    resumed = command(model, "-p", longer, "-n", "7", "--prompt-cache", cache, "--json")
    assert resumed.returncode == 0, resumed.stderr
    (answer,) = json.loads(resumed.stdout)["answers"]
    assert answer["tokens"] == greedy(model, ids, 7)
    assert answer["reused_tokens"] == report["saved_tokens"]
    with snapshot.open(cache) as opened:
        assert np.asarray(opened.tokens).tolist() == ids + answer["tokens"][:-1]
    assert list(tmp_path.iterdir()) == [cache]


def test_read_only_leaves_the_file(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "p.kvcache"
    invoke(model, "-p", TEXT, "-n", "0", "--prompt-cache", cache)
    before, status = cache.read_bytes(), cache.stat()
    arguments = (model, "-p", TEXT, "-n", "5", "--prompt-cache", cache, "--prompt-cache-ro")
    answer = answer_of(invoke(*arguments, "--json"))
    assert answer["reused_tokens"] == answer["prompt_tokens"] - 1
    assert cache.read_bytes() == before
    assert (cache.stat().st_mtime_ns, cache.stat().st_ino) == (status.st_mtime_ns, status.st_ino)
    cache.unlink()
    assert "No such file" in refusal(invoke(*arguments))
    assert list(tmp_path.iterdir()) == []


def test_the_users_metadata_stay(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "p.kvcache"
    invoke(model, "-p", TEXT, "-n", "0", "--prompt-cache", cache)
    with snapshot.open(cache) as opened:
        content = dict(opened.caches), opened.tokens, opened.identity
    snapshot.save(content[0], cache, tokens=content[1], identity=content[2], metadata={"who": "me"})
    assert invoke(model, "-p", TEXT, "-n", "3", "--prompt-cache", cache).exit_code == 0
    with snapshot.open(cache) as opened:
        assert opened.metadata == {"who": "me"}


def formats(cache: PagedCache) -> list[tuple[str, str]]:
    return [(page.key.format.name, page.value.format.name) for page in cache.pages]


def test_a_policy_stores_full_pages_in_fewer_bits(model: Path, tmp_path: Path) -> None:
    plain, small = tmp_path / "plain.kvcache", tmp_path / "small.kvcache"
    fill = ("-p", "x" * 70, "-n", "0", "--json", "--prompt-cache")
    assert invoke(model, *fill, plain).exit_code == 0
    result = invoke(model, *fill, small, "--policy", "int8")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["policy"] == "key=int8/channel value=int8/token"
    assert small.stat().st_size < plain.stat().st_size
    with snapshot.open(plain) as wide, snapshot.open(small) as narrow:
        for name, cache in narrow.caches.items():
            assert formats(cache) == [("int8", "int8"), ("float32", "float32")]
            # A prompt is attended on before its pages are encoded: each row differs by rounding.
            for side, axis in (("key", 2), ("value", 3)):
                expected, found = (
                    getattr(c, f"{side}_array")("float32").astype(np.float64)
                    for c in (wide.caches[name], cache)
                )
                first, rest = expected[:, :, :64], expected[:, :, 64:]
                bound = np.abs(first).max(axis, keepdims=True) / 127 * (0.5 + 0.07)
                assert (np.abs(found[:, :, :64] - first) <= bound).all()
                assert (found[:, :, 64:] == rest).all()


def test_weights_in_the_bits_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_LIGHT_CACHE", str(tmp_path / "cache"))
    types = {"ffn_up": "Q8_0", "ffn_down": "Q4_0"}
    weights = random_weights(SMALL)
    model = write_model(tmp_path / "coded.gguf", weights=weights, types=types)
    ids = tokenizer_from_gguf(model).encode(TEXT).ids
    arguments = (model, "-p", TEXT, "-n", "5", "--json", "--weights", "native")
    assert answer_of(invoke(*arguments))["tokens"] == greedy(model, ids, 5)
    (converted,) = (tmp_path / "cache").rglob("model.onnx")
    graph = onnx.load(converted, load_external_data=False).graph
    assert any(node.op_type == "MatMulNBits" for node in graph.node)


def test_a_state_goes_on_in_the_formats_that_it_has(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "p.kvcache"
    fill = ("--json", "--prompt-cache", cache)
    assert invoke(model, "-p", "x" * 70, "-n", "0", "--policy", "int4", *fill).exit_code == 0
    for policy in (("--policy", "int4"), ()):
        answer = answer_of(invoke(model, "-p", "x" * 70, "-n", "5", *policy, *fill))
        assert answer["reused_tokens"] == 69
        with snapshot.open(cache) as opened:
            assert all(formats(c)[0] == ("uint4", "uint4") for c in opened.caches.values())


def test_a_prompt_cache_in_other_formats_is_refused(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "p q.kvcache"
    assert invoke(model, "-p", "x" * 70, "-n", "0", "--prompt-cache", cache).exit_code == 0
    before = cache.read_bytes()
    line = refusal(invoke(model, "-p", "x" * 70, "--prompt-cache", cache, "--policy", "int8"))
    for word in ("[cli.policy]", "layers.0.pages[0].key", "float32", "int8/channel"):
        assert word in line
    assert cache.read_bytes() == before
    # The command that the refusal names makes the file one that is taken.
    words = shlex.split(line[line.index("onnx-light quantize") : line.index("; or leave")])
    assert CliRunner().invoke(app, words[1:]).exit_code == 0
    again = invoke(model, "-p", "x" * 70, "-n", "1", "--prompt-cache", cache, "--policy", "int8")
    assert again.exit_code == 0, again.stderr
    line = refusal(invoke(model, "-p", "x" * 70, "--prompt-cache", cache, "--policy", "q8_0"))
    assert "[cli.policy]" in line


def test_a_policy_that_is_none(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNX_LIGHT_CACHE", str(tmp_path / "cache"))
    for text, word in (("int9", "int9"), ("key=foo", "foo"), ("", "empty")):
        line = refusal(invoke(model, "-p", TEXT, "--policy", text))
        assert "--policy" in line
        assert word in line
        assert "presets are int8, k8v8, k8v4, int4" in line
    assert not (tmp_path / "cache").exists()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def without_tokens(path: Path) -> None:
    with snapshot.open(path) as opened:
        caches, identity = dict(opened.caches), opened.identity
    snapshot.save(caches, path, identity=identity)


def of_two_sequences(path: Path) -> None:
    rows = np.zeros((2, SMALL["kv_heads"], 5, SMALL["width"]), np.float32)
    snapshot.save([PagedCache.from_arrays(rows, rows)] * 2, path, tokens=np.zeros((2, 5), int))


def of_another_shape(path: Path) -> None:
    rows = np.zeros((1, SMALL["kv_heads"] + 1, 5, SMALL["width"]), np.float32)
    snapshot.save([PagedCache.from_arrays(rows, rows)] * 2, path, tokens=np.zeros(5, int))


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (flip, "snapshot.corrupt", "byte "),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "snapshot.", "p.kvcache"),
        (lambda path: path.write_text("some text\n" * 9), "snapshot.kind", "text"),
        (lambda path: path.write_bytes(b""), "snapshot.corrupt", "empty"),
        (without_tokens, "cli.prompt_cache", "no token ids"),
        (of_two_sequences, "cli.prompt_cache", "2 sequences"),
    ],
)
def test_a_bad_prompt_cache_is_refused_before_the_model_is_made(
    model: Path,
    change: Callable[[Path], object],
    code: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = tmp_path / "p.kvcache"
    invoke(model, "-p", TEXT, "-n", "0", "--prompt-cache", cache)
    change(cache)
    before = cache.read_bytes()
    monkeypatch.setenv("ONNX_LIGHT_CACHE", str(tmp_path / "cache"))
    line = refusal(invoke(model, "-p", TEXT, "--prompt-cache", cache))
    assert f"[{code}" in line
    assert words in line
    assert str(cache) in line
    assert cache.read_bytes() == before
    assert not (tmp_path / "cache" / "models").exists()


def test_a_prompt_cache_of_another_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "p.kvcache"
    invoke(model, "-p", TEXT, "-n", "0", "--prompt-cache", cache)
    before = cache.read_bytes()
    other = write_model(tmp_path / "other.gguf", weights=random_weights(SMALL, seed=7))
    monkeypatch.setenv("ONNX_LIGHT_CACHE", str(tmp_path / "cache"))
    line = refusal(invoke(other, "-p", TEXT, "--prompt-cache", cache))
    for word in ("[snapshot.identity]", "weights", str(cache), "another model"):
        assert word in line
    assert cache.read_bytes() == before
    assert not (tmp_path / "cache" / "models").exists()
    of_another_shape(cache)  # says no identity
    line = refusal(invoke(model, "-p", TEXT, "--prompt-cache", cache))
    assert f"{cache}: layers.0: " in line


def test_a_prompt_longer_than_the_context(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNX_LIGHT_CACHE", str(tmp_path / "cache"))
    line = refusal(invoke(model, "-p", "x" * (SMALL["context"] + 1)))
    assert "97 tokens" in line
    assert "context 96" in line
    assert not (tmp_path / "cache" / "models").exists()


def test_an_answer_ends_with_the_context(model: Path) -> None:
    answer = answer_of(invoke(model, "-p", "x" * (SMALL["context"] - 3), "--json"))
    assert len(answer["tokens"]) == 4  # the last of them is not read any more
    assert answer["finish"] == "context"
    full = answer_of(invoke(model, "-p", "x" * SMALL["context"], "--json"))
    assert (len(full["tokens"]), full["finish"]) == (1, "context")


def test_end_tokens_and_stop_texts(model: Path, tmp_path: Path) -> None:
    tokenizer = tokenizer_from_gguf(model)
    expected = greedy(model, tokenizer.encode(TEXT).ids, 6)
    third = next(i for i in range(2, 6) if expected[i] not in expected[:i])
    ending = write_model(
        tmp_path / "ending.gguf", extra={"tokenizer.ggml.eot_token_id": expected[third]}
    )
    answer = answer_of(invoke(ending, "-p", TEXT, "--json"))
    assert (answer["tokens"], answer["finish"]) == (expected[:third], "stop")
    text = tokenizer.decode(expected)
    cut = len(text) // 2
    stop = text[cut : cut + 2]
    answer = answer_of(invoke(model, "-p", TEXT, "--stop", "never", "--stop", stop, "--json"))
    assert answer["text"] == text[: text.index(stop)]
    assert answer["finish"] == "stop"
    assert len(answer["tokens"]) <= 6


def test_seeds_draw_equally(model: Path) -> None:
    def draw(seed: int, temperature: float) -> list[int]:
        options = ("--seed", str(seed), "--temperature", str(temperature), "--top-p", "0.99")
        return list(answer_of(invoke(model, "-p", TEXT, "-n", "12", "--json", *options))["tokens"])

    assert draw(1, 5.0) == draw(1, 5.0)
    assert len({tuple(draw(seed, 5.0)) for seed in range(4)}) > 1
    assert draw(1, 0.0) == draw(2, 0.0)


def test_one_question_with_the_chat_template(model: Path) -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "the thing"}]
    text = "system: S\nuser: the thing\nassistant: "
    assert render_chat(model, messages) == text
    ids = tokenizer_from_gguf(model).encode(text).ids
    options = ("--chat", "--system", "S", "-n", "5", "--json")
    answer = answer_of(invoke(model, "--prompt", "the thing", *options))
    assert answer["prompt_tokens"] == len(ids)
    assert answer["tokens"] == greedy(model, ids, 5)


def test_a_chat_answers_line_by_line(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "p.kvcache"
    arguments = (model, "--chat", "-n", "4", "--json", "--prompt-cache", cache)
    result = invoke(*arguments, stdin=b"the\n\n12\n")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    first, second = report["answers"]
    tokenizer = tokenizer_from_gguf(model)
    messages = [{"role": "user", "content": "the"}]
    ids = tokenizer.encode(render_chat(model, messages)).ids
    assert first["tokens"] == greedy(model, ids, 4)
    messages += [
        {"role": "assistant", "content": first["text"]},
        {"role": "user", "content": "12"},
    ]
    ids = tokenizer.encode(render_chat(model, messages)).ids
    assert second["prompt_tokens"] == len(ids)
    assert second["reused_tokens"] >= first["prompt_tokens"]
    assert second["tokens"] == greedy(model, ids, 4)
    with snapshot.open(cache) as opened:
        assert np.asarray(opened.tokens).tolist() == ids + second["tokens"][:-1]


def test_an_onnx_decoder_with_the_tokenizer_of_a_gguf(model: Path, tmp_path: Path) -> None:
    expected = answer_of(invoke(model, "-p", TEXT, "-n", "5", "--json"))["tokens"]
    converted = cached_model(model)
    cache = tmp_path / "p.kvcache"
    options = ("-n", "5", "--json", "--prompt-cache", cache)
    answer = answer_of(invoke(converted, "--tokenizer", model, "-p", TEXT, *options))
    assert answer["tokens"] == expected
    assert answer_of(invoke(model, "-p", TEXT, *options))["reused_tokens"] > 0
    assert "--tokenizer" in refusal(invoke(converted, "-p", TEXT))
    line = refusal(invoke(converted, "--tokenizer", model, "-p", TEXT, "--weights", "native"))
    assert "--weights" in line
    line = refusal(invoke(converted, "--tokenizer", model, "-p", TEXT, "--policy", "int8"))
    assert "[cli.policy]" in line


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "--prompt"),
        (("--prompt", "a", "--prompt-file", "b"), "--prompt-file"),
        (("--prompt", "a", "--system", "b"), "--system"),
        (("--prompt", "a", "--prompt-cache-ro"), "--prompt-cache"),
        (("--prompt", "a", "--prompt-cache", "/no/such/folder/c"), "/no/such/folder"),
        (("--prompt", "a", "--temperature", "-1"), "--temperature"),
        (("--prompt", "a", "--temperature", "nan"), "--temperature"),
        (("--prompt", "a", "--top-p", "0"), "--top-p"),
        (("--prompt", "a", "--stop", ""), "--stop"),
        (("--prompt", "a", "--weights", "int8"), "--weights"),
        (("--prompt", ""), "no tokens"),
        (("--prompt", "\udcff"), "UTF-8"),
        (("--prompt-file", "/no/such/file"), "/no/such/file"),
    ],
)
def test_wrong_usage(model: Path, arguments: tuple[str, ...], word: str) -> None:
    assert word in refusal(invoke(model, *arguments))


def test_models_that_are_none(tmp_path: Path, model: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model.read_bytes()[:-100_000])
    assert "[models.cut]" in refusal(invoke(cut, "-p", TEXT))
    other = write_model(tmp_path / "other.gguf", architecture="gemma3")
    assert "'gemma3'" in refusal(invoke(other, "-p", TEXT))
    assert "No such file" in refusal(invoke(tmp_path / "none.gguf", "-p", TEXT))


def one_node(path: Path, kind: str, given: str, made: str, taken: str = "", **more: int) -> Path:
    """A model of one node from `given` to `made`; `taken` is what the node says that it takes."""
    helper = onnx.helper
    whole = onnx.TensorProto.INT64
    types = ((given, whole), (made, more.get("to", whole)))
    ends = [helper.make_tensor_value_info(name, number, [1, None]) for name, number in types]
    node = helper.make_node(kind, [taken or given], [made], **more)
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


def of_words(path: Path) -> Path:
    path.write_text("words and words\n" * 9)
    return path


def a_snapshot(path: Path) -> Path:
    of_another_shape(path)
    return path


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: one_node(path, "Neg", "x", "y"), "no input input_ids"),
        (lambda path: one_node(path, "Neg", "input_ids", "y"), "no output logits"),
        (lambda path: one_node(path, "Neg", "x", "y", "z"), "'z' is not a graph input"),
        (lambda path: one_node(path, "Cast", "input_ids", "logits", to=1), "a KV cache is needed"),
        (of_words, "[wire."),
        (a_snapshot, "a snapshot"),
    ],
)
def test_onnx_models_that_are_no_decoders(
    model: Path, make: Callable[[Path], Path], words: str, tmp_path: Path
) -> None:
    path = make(tmp_path / "other.onnx")
    line = refusal(invoke(path, "--tokenizer", model, "-p", TEXT))
    assert line.startswith(f"onnx-light: {path}: ")
    assert words in line


def test_an_onnx_model_that_fails_while_it_runs(model: Path, tmp_path: Path) -> None:
    small = write_model(tmp_path / "few.gguf", extra={"tokenizer.chat_template": TEMPLATE})
    converted = onnx.load(cached_model(small))
    converted.graph.node.append(
        onnx.helper.make_node("Gather", ["input_ids", "seven"], ["picked"], axis=1)
    )
    converted.graph.initializer.append(onnx.numpy_helper.from_array(np.array([700]), "seven"))
    converted.graph.output.append(onnx.helper.make_tensor_value_info("picked", 7, None))
    path = tmp_path / "fails.onnx"
    onnx.save(converted, path)
    result = command(path, "--tokenizer", model, "-p", TEXT)
    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr.splitlines()[-1].startswith(f"onnx-light: {path}: ".encode())


@pytest.mark.parametrize("missing", ["onnxruntime", "gguf", "tokenizers", "jinja2"])
def test_missing_packages_are_named(
    model: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else find_spec(name)
    )
    for result in (invoke(model, "-p", TEXT), CliRunner().invoke(app, ["demo"])):
        line = refusal(result)
        assert f"{missing} is missing: pip install 'onnx_light[models]'" in line


def test_an_interrupt_while_it_computes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnx_light.runtime import InferenceSession

    cache = tmp_path / "p.kvcache"
    invoke(model, "-p", TEXT, "-n", "0", "--prompt-cache", cache)
    before = cache.read_bytes()
    run, calls = InferenceSession.run, []

    def interrupted(self: InferenceSession, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run(self, *arguments)

    monkeypatch.setattr(InferenceSession, "run", interrupted)
    result = invoke(model, "-p", TEXT, "--prompt-cache", cache)
    assert result.exit_code == 130
    assert len(calls) == 3
    assert result.stdout.endswith("\n")
    assert cache.read_bytes() == before
    assert list(tmp_path.iterdir()) == [cache]


def test_an_interrupt_of_a_chat(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "p.kvcache"
    line = [sys.executable, "-c", MAIN, "generate", model, "--chat", "-n", "2"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*line, "--prompt-cache", cache],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"the\n")
        process.stdin.flush()
        while b"saved" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert snapshot.verify(cache).ok
    assert list(tmp_path.iterdir()) == [cache]


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, *arguments: str | Path, program: str = MAIN) -> None:
        self.seen = b""
        self.pid, self.handle = pty.fork()
        if self.pid == 0:
            line = [sys.executable, "-c", program, "generate", *map(str, arguments)]
            os.execve(sys.executable, line, os.environ | {"TERM": "xterm"})

    def read_until(self, text: bytes, count: int = 1) -> None:
        while self.seen.count(text) < count:
            piece = self._read()
            assert piece, self.seen
            self.seen += piece

    def type(self, text: bytes) -> None:
        os.write(self.handle, text)

    def finish(self) -> int:
        while piece := self._read():
            self.seen += piece
        os.close(self.handle)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self) -> bytes:
        try:
            return os.read(self.handle, 65536)
        except OSError:  # Linux: the other side is closed
            return b""


@pytest.mark.parametrize(
    ("key", "status", "last"), [(b"\x03", 130, b""), (b"\x04", 0, b"> \r\n")], ids=["C", "D"]
)
def test_a_chat_on_a_terminal_and_ctrl(
    key: bytes,
    status: int,
    last: bytes,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ONNX_LIGHT_CACHE", str(tmp_path / "cache"))
    cache = tmp_path / "p.kvcache"
    terminal = Terminal(model, "--chat", "-n", "3", "--prompt-cache", cache, "--policy", "int8")
    terminal.read_until(b"> ")
    terminal.type(b"the\n")
    terminal.read_until(b"> ", 2)
    assert b"tokens, " in terminal.seen
    assert b" saved" in terminal.seen
    terminal.type(key)
    assert terminal.finish() == status
    assert terminal.seen.endswith(last)
    assert b"Traceback" not in terminal.seen
    assert snapshot.verify(cache).ok


# Before each run of the model, a byte from the file that RUNS names.
STEPPED = f"""
import os
from onnx_light.runtime import InferenceSession
run, runs = InferenceSession.run, open(os.environ["RUNS"], "rb", buffering=0)
def stepped(*arguments):
    assert runs.read(1)
    return run(*arguments)
InferenceSession.run = stepped
{MAIN}
"""


@pytest.mark.parametrize("chat", [True, False])
def test_an_answer_streams_to_a_terminal(
    model: Path, chat: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece of the answer to what is typed shows before the model is run again."""
    runs = tmp_path / "runs"
    os.mkfifo(runs)
    monkeypatch.setenv("RUNS", str(runs))
    form = ("--chat",) if chat else ("--prompt-file", "-")
    terminal = Terminal(model, *form, "-n", "6", program=STEPPED)
    with open(runs, "wb", buffering=0) as permit:
        if chat:
            terminal.read_until(b"> ")
        terminal.type(TEXT.encode() + (b"\n" if chat else b"\x04\x04"))
        terminal.read_until(TEXT.encode())  # the echo
        terminal.seen = b""
        template = f"user: {TEXT}\nassistant: " if chat else TEXT
        tokenizer = tokenizer_from_gguf(model)
        prompt = tokenizer.encode(template, add_special_tokens=not chat).ids
        answer = greedy(model, prompt, 6)
        permit.write(b"x")
        for count in range(1, 7):
            terminal.read_until(tokenizer.decode(answer[:count]).encode())
            permit.write(b"x" if count < 6 else b"")
        if chat:
            terminal.read_until(b"> ")
            terminal.type(b"\x04")
        assert terminal.finish() == 0


def test_progress_is_for_terminals(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old.gguf"
    old.write_bytes(model.read_bytes())
    os.utime(old, (1e9, 1e9))  # the digests of a file that may still be written are not kept
    arguments = (old, "-p", TEXT, "-n", "4")
    monkeypatch.setenv("ONNX_LIGHT_CACHE", str(tmp_path / "one"))
    terminal = Terminal(*arguments)
    assert terminal.finish() == 0
    again = Terminal(*arguments)
    assert again.finish() == 0
    assert b"converting the model" not in again.seen
    monkeypatch.setenv("ONNX_LIGHT_CACHE", str(tmp_path / "two"))
    piped = command(*arguments)
    assert piped.returncode == 0
    assert b"converting the model" in terminal.seen
    assert b"converting the model" not in piped.stdout + piped.stderr
    assert b"\x1b" not in piped.stdout + piped.stderr
    assert piped.stdout.strip() in terminal.seen


def test_real_model(smollm: Path, tmp_path: Path) -> None:
    cache = tmp_path / "p.kvcache"
    question = "What is the capital of France?"
    for turn in range(2):
        answer = answer_of(
            invoke(smollm, "--chat", "-p", question, "--json", "--prompt-cache", cache)
        )
        assert answer["text"] == "The capital of France is Paris."
        assert answer["finish"] == "stop"
        assert answer["reused_tokens"] == (answer["prompt_tokens"] - 1 if turn else 0)
