"""Turn-by-turn ids equal the whole conversation's, whatever the text, for the three families of templates that we meet."""

import json
import re

import hypothesis
import numpy as np
import pytest
import transformers
from hypothesis import strategies

from rspo_jax import tokenizer

WORDS = """You are in the middle of a room Looking quickly around you see cabinet and sinkbasin move mug to coffeemachine On
countertop apple bread user assistant system Nothing happens go desk look <action> </action>""".split()

# Qwen2.5's, without its branches for tools.
CHATML = """{%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant") %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)


def make_directory(directory, template, special, eos, pad=None, eos_ids=None):
    """A directory like Qwen's or Llama's: other special tokens, and a vocabulary that joins newlines as theirs do."""
    tokenizer.build_small(WORDS, (), directory)
    content = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = content["model"]["vocab"]
    vocab |= {"Ċ" * n: len(vocab) + n - 2 for n in (2, 3, 4)}
    content["added_tokens"] = [content["added_tokens"][0] | {"id": len(vocab) + i, "content": token}
                               for i, token in enumerate(special)]
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\n+| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]|\s"
    (directory / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, "bos_token": special[0], "pad_token": pad}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    if eos_ids is not None:
        (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": eos_ids}), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    directory = tmp_path_factory.mktemp("small")
    tokenizer.build_small(WORDS, (), directory)
    return tokenizer.ChatTokenizer.load(directory)


@pytest.fixture(scope="module")
def chatml(tmp_path_factory):
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    directory = make_directory(tmp_path_factory.mktemp("chatml"), CHATML, special, "<|im_end|>", "<|endoftext|>")
    end_of_text = transformers.AutoTokenizer.from_pretrained(directory).convert_tokens_to_ids("<|endoftext|>")
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [end_of_text + 2, end_of_text]}))
    return tokenizer.ChatTokenizer.load(directory)


@pytest.fixture(scope="module")
def llama3(tmp_path_factory):
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    return tokenizer.ChatTokenizer.load(make_directory(tmp_path_factory.mktemp("llama3"), LLAMA3, special, "<|end_of_text|>"))


def whole_conversation(chat, messages):
    hf = transformers.AutoTokenizer.from_pretrained(chat.directory)
    return hf.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]


TEXTS = ("You see 12 things:\n- a mug", "\n\n- look", "go to desk 1\n", "", " Nothing happens. ")


@pytest.mark.parametrize("family", ["small", "chatml", "llama3"])
@pytest.mark.parametrize("system", [None, "\nYou are in a room."])
def test_turns_joined_equal_the_template_of_the_whole_conversation(family, system, request):
    chat = request.getfixturevalue(family)
    messages = [] if system is None else [{"role": "system", "content": system}]
    row = chat.first_turn(system, TEXTS[0])
    messages.append({"role": "user", "content": TEXTS[0]})
    for turn, text in enumerate(TEXTS[1:]):
        response = chat.encode(f"go to desk {turn}")
        # Every second response is cut: the end of its turn then comes from next_turn.
        closed = turn % 2 == 0
        sampled = np.append(response, chat.stop_tokens[0]) if closed else response
        following = chat.next_turn(text, closed)
        assert row.dtype == following.dtype == np.int32
        row = np.concatenate([row, sampled, following], dtype=np.int32)
        messages += [{"role": "assistant", "content": f"go to desk {turn}"}, {"role": "user", "content": text}]
    assert row.tolist() == whole_conversation(chat, messages)


def test_a_cut_response_gets_its_end_of_turn_from_the_next_turn(chatml):
    hf = transformers.AutoTokenizer.from_pretrained(chatml.directory)
    closed, cut = (chatml.next_turn("look", closed) for closed in (True, False))
    assert cut.tolist() == [hf.convert_tokens_to_ids("<|im_end|>"), *closed.tolist()]
    assert hf.decode(closed) == "\n<|im_start|>user\nlook<|im_end|>\n<|im_start|>assistant\n"


def test_chatml_writes_one_system_block(chatml):
    hf = transformers.AutoTokenizer.from_pretrained(chatml.directory)
    assert hf.decode(chatml.first_turn(None, "look")) == (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nlook<|im_end|>\n<|im_start|>assistant\n")
    assert hf.decode(chatml.first_turn("Be brief.", "look")) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nlook<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("family", ["small", "chatml", "llama3"])
def test_special_tokens_in_environment_text_stay_text(family, request):
    chat = request.getfixturevalue(family)
    hf = transformers.AutoTokenizer.from_pretrained(chat.directory)
    special = [token for token_id, token in sorted(hf.added_tokens_decoder.items()) if token.special]
    hostile = "a" + "".join(token.content for token in special) + "b"
    plain, attacked = chat.next_turn("ab", closed=True), chat.next_turn(hostile, closed=True)
    ids = set(hf.all_special_ids) | {hf.convert_tokens_to_ids(token.content) for token in special}
    assert sum(token in ids for token in attacked.tolist()) == sum(token in ids for token in plain.tolist())
    assert hostile in chat.decode(attacked)


def test_stop_tokens_are_united_and_pad_may_be_missing(chatml, llama3):
    names = transformers.AutoTokenizer.from_pretrained(chatml.directory).convert_ids_to_tokens(list(chatml.stop_tokens))
    assert names == ["<|im_end|>", "<|endoftext|>"]
    names = transformers.AutoTokenizer.from_pretrained(llama3.directory).convert_ids_to_tokens(list(llama3.stop_tokens))
    assert names == ["<|eot_id|>", "<|end_of_text|>"]


def test_llama3_texts_are_stripped_as_its_template_does(llama3, chatml):
    assert llama3.next_turn(" look\n", True).tolist() == llama3.next_turn("look", True).tolist()
    assert chatml.next_turn(" look\n", True).tolist() != chatml.next_turn("look", True).tolist()


def test_decode_skips_special_tokens_only(small):
    sampled = np.append(small.encode("go to desk 1 <|end|>"), small.stop_tokens)
    assert small.decode(sampled) == "go to desk 1 <|end|>"
    assert small.decode(np.zeros(0, np.int32)) == ""


def test_ordinary_text_costs_one_token_a_word(small):
    text = "You are in the middle of a room. Looking quickly around you, you see a cabinet 4, a cabinet 3, and a sinkbasin 1."
    assert len(small.encode(text)) == len(re.findall(r"\w+|[^\w\s]", text)) == 29
    assert len(small.encode("move mug 1 to coffeemachine 1")) == 6
    assert len(small.encode("On the countertop 1, you see a apple 2, a bread 1.")) == 15
    assert len(small.encode("<action>look</action>")) == 3
    assert len(small.encode("desk 40")) == 2 and len(small.encode("desk 41")) == 4  # bytes " ", "4" and "1"


def test_small_turns_cost_two_tokens(small):
    text = "You see a mug"
    assert len(small.next_turn(text, closed=True)) == len(small.encode(text)) + 2
    assert len(small.first_turn(None, text)) == len(small.encode(text)) + 2


PARTS = strategies.sampled_from([*WORDS, "<|end|>", " ", "\n", "é", "日", "40", "41"])


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(strategies.text() | strategies.lists(PARTS).map("".join))
def test_small_loses_nothing(small, text):
    tokens = small.encode(text)
    assert small.decode(tokens) == text
    assert tokens.size == 0 or tokens.max() < min(small.stop_tokens)


def test_small_is_the_same_bytes_for_the_same_words(tmp_path):
    tokenizer.build_small(WORDS, (), tmp_path / "a")
    tokenizer.build_small(sorted(WORDS + WORDS), (), tmp_path / "b")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_small_takes_the_longest_phrase_and_no_part_of_a_word(tmp_path):
    phrases = ("go to", ", a", ", and a", "put a", "put a clean")
    tokenizer.build_small(["mug", "go", "a"], phrases, tmp_path)
    chat = tokenizer.ChatTokenizer.load(tmp_path)

    def pieces(text):
        assert chat.decode(chat.encode(text)) == text
        return [chat.decode([token]) for token in chat.encode(text)]

    assert pieces("go to mug 1, and a mug 2, a mug") == ["go to", " mug", " 1", ", and a", " mug", " 2", ", a", " mug"]
    assert pieces("put a clean mug") == ["put a clean", " mug"] and pieces("put a mug") == ["put a", " mug"]
    assert pieces("go too")[0] == "go"  # a phrase does not end inside a longer word
    with pytest.raises(ValueError, match="no phrase"):
        tokenizer.build_small(["mug"], ("go ",), tmp_path)


def test_padded_vocab_size(small):
    assert small.vocab_size == len(transformers.AutoTokenizer.from_pretrained(small.directory))
    assert small.padded_vocab_size % 64 == 0 and 0 <= small.padded_vocab_size - small.vocab_size < 64


@pytest.mark.parametrize("word", ["go to", "mug1", "", " ", "<a b>"])
def test_small_refuses_what_would_never_be_one_token(word, tmp_path):
    with pytest.raises(ValueError, match=re.escape(repr(word))):
        tokenizer.build_small([word], (), tmp_path)


def test_save_copies_every_file_and_loads_alike(chatml, tmp_path):
    chatml.save(tmp_path / "export")
    written = {path.name for path in (tmp_path / "export").iterdir()}
    assert written == {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"}
    again = tokenizer.ChatTokenizer.load(tmp_path / "export")
    assert again.stop_tokens == chatml.stop_tokens
    assert again.first_turn(None, "look").tolist() == chatml.first_turn(None, "look").tolist()
    with pytest.raises(ValueError, match="another directory"):
        chatml.save(chatml.directory)


SPECIAL = ["<s>", "<e>"]
REFUSED = {
    "counts the turns": ("{{ messages|length }}{% for m in messages %}<s>{{ m.content }}<e>{% endfor %}", "turn by turn"),
    "forgets": ("{% for m in messages[-2:] %}<s>{{ m.content }}<e>{% endfor %}", "once each"),
    "system last": ("{% for m in messages[::-1] %}<s>{{ m.content }}<e>{% endfor %}", "in this order"),
    "no end of turn": ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "special token"),
    "no system": ("{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
                  "{% for m in messages %}<s>{{ m.content }}<e>{% endfor %}", "System role not supported"),
    "strips one side": ("{% for m in messages %}<s>{{ m.content.lstrip() }}<e>{% endfor %}", "turn by turn"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_templates_that_cannot_be_continued_are_refused(name, tmp_path):
    template, message = REFUSED[name]
    with pytest.raises(ValueError, match=message) as error:
        tokenizer.ChatTokenizer.load(make_directory(tmp_path, template, SPECIAL, "<e>"))
    assert str(tmp_path) in str(error.value)


def test_directories_that_are_incomplete_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="tokenizer_config.json"):
        tokenizer.ChatTokenizer.load(tmp_path / "missing")
    make_directory(tmp_path, "", SPECIAL, "<e>")
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer.ChatTokenizer.load(tmp_path)
    make_directory(tmp_path, "{% for m in messages %}<s>{{ m.content }}<e>{% endfor %}", SPECIAL, "<e>", eos_ids=[9999])
    with pytest.raises(ValueError, match="9999"):
        tokenizer.ChatTokenizer.load(tmp_path)


def test_the_model_type_beside_the_tokenizer_changes_nothing(tmp_path):
    tokenizer.build_small(["put", "a", "mug"], (), tmp_path)
    alone = tokenizer.ChatTokenizer.load(tmp_path).encode("put a mug").tolist()
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    assert tokenizer.ChatTokenizer.load(tmp_path).encode("put a mug").tolist() == alone
    assert len(alone) == 3
