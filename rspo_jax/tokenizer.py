"""Text to token ids and back: chat turns whose ids never change once they were read or sampled.

A row of tokens is built turn by turn, and each id in it comes from one of two places:

    first_turn(system, user)  sampled ids  next_turn(user, closed)  sampled ids  next_turn(user, closed)  ...
         action mask 0            1                  0                   1                0

Nothing that was sampled is ever decoded and encoded again. Except for the sampled ids, a row equals the chat template of
the whole conversation; `ChatTokenizer.load` checks that before anything else can happen.

`build_small` writes the tokenizer of the embedded default: one token per word, two tokens of overhead per turn.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jinja2
import numpy as np
import transformers

# What an export needs so that its chats are tokenised alike everywhere; copied byte by byte, because a tokenizer that went
# through save_pretrained may lose its normaliser for readers other than transformers.
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)

REMEMBERED = 1 << 16  # texts; about 30 MB of an environment's observations

_SYSTEM, _USER, _REPLY, _NEXT = "sentinel-system", "sentinel-user", "sentinel-reply", "sentinel-next"

# A template piece, or one of its parts: an int is a special token, a str is text in which none is recognised.
_Parts = tuple[int | str, ...]


@dataclasses.dataclass(frozen=True)
class ChatTokenizer:
    """The tokenizer and chat template of one Hugging Face directory. Made by `load`."""

    directory: pathlib.Path
    stop_tokens: tuple[int, ...]  # any of them ends a response: the tokenizer's, generation_config's, the template's
    vocab_size: int  # ids that may be sampled; a model may have more rows than that
    _hf: Any  # the transformers tokenizer
    _ids: Callable[[str], list[int]]  # of bare text; what was encoded lately is remembered, as a group reads the same texts
    _head: _Parts  # before the first user text, without a system text
    _head_system: tuple[_Parts, _Parts]  # before the system text, and between it and the first user text
    _generate: _Parts  # after a user text: closes it and opens the response
    _between: _Parts  # after a response: its end-of-turn token, then whatever opens the next user text
    _strips: bool  # the template strips the texts that it is given

    @classmethod
    def load(cls, directory: str | pathlib.Path) -> "ChatTokenizer":
        """Reads a Hugging Face directory and takes its chat template apart.

        Raises FileNotFoundError if there is no tokenizer, ValueError if the template cannot be continued turn by turn:
        if a later turn changes how an earlier one is written, or if no special token ends a response.
        """
        directory = pathlib.Path(directory)
        if not (directory / "tokenizer_config.json").is_file():
            raise FileNotFoundError(f"{directory} holds no tokenizer_config.json; give a Hugging Face model directory.")
        # tokenizer.json is the whole truth where it is there. AutoTokenizer would go by config.json's model_type instead, and
        # build a Qwen2Tokenizer with rules of its own around the vocabulary of any tokenizer that a Qwen2 model has.
        whole = (directory / "tokenizer.json").is_file()
        loader = transformers.PreTrainedTokenizerFast if whole else transformers.AutoTokenizer
        hf = loader.from_pretrained(directory, local_files_only=True)
        head, generate = _split(directory, _render(directory, hf, (None, _USER)), _USER)
        *head_system, _ = _split(directory, _render(directory, hf, (_SYSTEM, _USER)), _SYSTEM, _USER)
        *_, between, _ = _split(directory, _render(directory, hf, (None, _USER, _REPLY, _NEXT)), _USER, _REPLY, _NEXT)
        special = {token.content: token_id for token_id, token in hf.added_tokens_decoder.items() if token.special}
        between = _parse(between, special)
        if not between or isinstance(between[0], str):
            raise ValueError(f"The chat template of {directory} ends a response with {between!r}, which does not start with a "
                             "special token; the sampler could not tell where a response ends.")
        stop_tokens = _stop_tokens(directory, hf, between[0])
        chat = cls(
            directory=directory,
            stop_tokens=stop_tokens,
            vocab_size=len(hf),
            _hf=hf,
            _ids=functools.lru_cache(REMEMBERED)(
                functools.partial(hf.encode, add_special_tokens=False, split_special_tokens=True)),
            _head=_parse(head, special),
            _head_system=(_parse(head_system[0], special), _parse(head_system[1], special)),
            _generate=_parse(generate, special),
            _between=between,
            _strips=f" {_USER}" not in _render(directory, hf, (None, f" {_USER} ")),
        )
        chat._verify(special)
        return chat

    @property
    def padded_vocab_size(self) -> int:
        """Rows that a new model's embedding should have: a multiple of 64, so that it divides over devices."""
        return -(-self.vocab_size // 64) * 64

    def first_turn(self, system: str | None, user: str) -> np.ndarray:
        """Ids of a row up to and including the generation prompt, [L] int32. None leaves the system text to the template."""
        head = self._head if system is None else (*self._head_system[0], self._text(system), *self._head_system[1])
        return self._encode((*head, self._text(user), *self._generate))

    def next_turn(self, user: str, closed: bool) -> np.ndarray:
        """Ids between a sampled response and the next one, [L] int32.

        `closed` says that the response ends with a sampled stop token. One that was cut has none; its end-of-turn token is
        then part of these ids, where the action mask is False: the policy never sampled it.
        """
        between = self._between[1:] if closed else self._between
        return self._encode((*between, self._text(user), *self._generate))

    def encode(self, text: str) -> np.ndarray:
        """Ids of bare text, [L] int32: what a policy would have sampled to say it. Never holds a special id."""
        return self._encode((text,))

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Text of a response without its special tokens. For reading and parsing only, never to be encoded again."""
        return self._hf.decode(np.asarray(tokens, np.int32).tolist(), skip_special_tokens=True,
                               clean_up_tokenization_spaces=False)

    def save(self, directory: str | pathlib.Path) -> None:
        """Copies tokenizer, chat template and generation config into the directory of an export."""
        directory = pathlib.Path(directory)
        if directory.resolve() == self.directory.resolve():
            raise ValueError(f"{directory} is where this tokenizer was read from; export to another directory.")
        directory.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            if (self.directory / name).is_file():
                shutil.copyfile(self.directory / name, directory / name)

    def _text(self, text: str) -> str:
        return text.strip() if self._strips else text

    def _encode(self, parts: Iterable[int | str]) -> np.ndarray:
        """Neighbouring strings are joined first: the template's newline and the text after it may be one token."""
        tokens = []
        for is_text, run in itertools.groupby(parts, lambda part: isinstance(part, str)):
            run = list(run)
            tokens += self._ids("".join(run)) if is_text else run
        return np.asarray(tokens, np.int32)

    def _verify(self, special: dict[str, int]) -> None:
        """Raises unless turn-by-turn ids equal those of the whole conversation and no text can become a special id."""
        for text, token_id in special.items():
            if not set(special.values()).isdisjoint(self.encode(f"a {text} b").tolist()):
                raise ValueError(f"{self.directory}: the text {text!r} is still encoded as special token {token_id}.")
        for system in (None, "Mind the rules."):
            texts = (system, "You see 12 things:\n- a mug", "go to desk 1", " Nothing happens.\n", "look", "\nYou won. ")
            replies = [np.append(self.encode(self._text(text)), self._between[0]) for text in (texts[2], texts[4])]
            ours = np.concatenate([self.first_turn(system, texts[1]), replies[0], self.next_turn(texts[3], closed=True),
                                   replies[1], self.next_turn(texts[5], closed=True)]).tolist()
            whole = self._hf.encode(_render(self.directory, self._hf, texts), add_special_tokens=False)
            if ours != whole:
                at = next((i for i, (a, b) in enumerate(zip(ours, whole, strict=False)) if a != b), min(len(ours), len(whole)))
                raise ValueError(
                    f"The chat template of {self.directory} cannot be continued turn by turn. At token {at} of a conversation "
                    f"of three turns the template has {self._hf.decode(whole[max(at - 3, 0):at + 5])!r}, the single turns have "
                    f"{self._hf.decode(ours[max(at - 3, 0):at + 5])!r}. Use a template that never rewrites earlier turns.")


def _render(directory: pathlib.Path, hf: Any, texts: Sequence[str | None]) -> str:
    """The template's text for (system or None, user, reply, user, ...), which ends where the next response begins."""
    messages = [] if texts[0] is None else [{"role": "system", "content": texts[0]}]
    messages += [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts[1:])]
    if not hf.chat_template:
        raise ValueError(f"{directory} has no chat template; add a chat_template.jinja, as instruction-tuned models have.")
    try:
        return hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except jinja2.TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise ValueError(f"The chat template of {directory} refuses the turns {roles}: {error}") from error


def _split(directory: pathlib.Path, text: str, *sentinels: str) -> list[str]:
    """Cuts a rendered conversation at its contents, each of which must occur once and in order."""
    found = re.fullmatch("(.*)".join(["", *map(re.escape, sentinels), ""]), text, re.DOTALL)
    if not found or any(text.count(sentinel) != 1 for sentinel in sentinels):
        raise ValueError(f"The chat template of {directory} does not write {', '.join(sentinels)} once each and in this order: "
                         f"{text!r}. Use a template that writes every turn once.")
    return list(found.groups())


def _parse(text: str, special: dict[str, int]) -> _Parts:
    longest_first = sorted(special, key=len, reverse=True)
    pieces = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text) if special else [text]
    return tuple(special.get(piece, piece) for piece in pieces if piece)


def _stop_tokens(directory: pathlib.Path, hf: Any, end_of_turn: int) -> tuple[int, ...]:
    """The template's end of turn first, then the tokenizer's and generation_config's, each once."""
    path = directory / "generation_config.json"
    listed = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
    listed = listed if isinstance(listed, list) else [listed]
    stops = tuple(dict.fromkeys(token for token in (end_of_turn, hf.eos_token_id, *listed) if token is not None))
    unknown = [token for token in stops if not 0 <= token < len(hf)]
    if unknown:
        raise ValueError(f"{path} stops at token {unknown[0]}, but the tokenizer has only {len(hf)}; correct eos_token_id.")
    return stops


_SMALL_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'system' -%}{{ message.content }}"
    "{%- elif message.role == 'user' -%}{{ '<|user|>' + message.content }}"
    "{%- elif message.role == 'assistant' -%}{{ '<|assistant|>' + message.content + '<|end|>' }}"
    "{%- else -%}{{ raise_exception('unknown role ' + message.role) }}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)

# One tag, word, number or other character, each with the space before it: what may become one token.
_SMALL_PIECE = r" ?</?\p{L}+>| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]|\s"


def build_small(words: Sequence[str], phrases: Sequence[str], directory: str | pathlib.Path) -> None:
    """Writes a small tokenizer in Hugging Face format: bytes, words, phrases, the numbers 0 to 40, four special tokens.

    Byte-level BPE without merges: a piece of text that is in the vocabulary is one token, any other is one token a byte,
    so every text is encoded without loss. Of the phrases that stand at a place the longest is taken, before any word. Each
    word is there with and without a space before it, each phrase as it is given. The same words and phrases in any order
    give the same bytes. Chats read `{system}<|user|>{user}<|assistant|>{response}<|end|>`.

    Raises ValueError for a word that is neither letters, digits, one visible character, nor a tag such as `<action>`, and
    for a phrase that ends with white space.
    """
    for word in words:
        tag = re.fullmatch("</?(.+)>", word)
        letters = tag[1] if tag else word
        if not (letters.isalpha() or word.isdecimal() or (len(word) == 1 and not word.isspace())):
            raise ValueError(f"{word!r} would never be one token of the small tokenizer; give words of letters, of digits, "
                             "single characters or tags such as '<action>'.")
    for phrase in phrases:
        if not phrase or phrase != phrase.rstrip():
            raise ValueError(f"{phrase!r} is no phrase for the small tokenizer; give a text without white space at its end.")
    byte_letters = _byte_letters()
    pieces = sorted({*phrases, *(space + word for word in {*words, *map(str, range(41))} for space in ("", " "))})
    spelled = ("".join(byte_letters[byte] for byte in piece.encode()) for piece in pieces)
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys([*byte_letters, *spelled]))}
    special = ["<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"]
    added = [{"id": len(vocab) + i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, token in enumerate(special)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    # A phrase ends with its last word, not in the middle of a longer one.
    longest_first = sorted(set(phrases), key=lambda phrase: (-len(phrase), phrase))
    pattern = "|".join([rf"{re.escape(phrase)}(?![\p{{L}}\p{{N}}])" for phrase in longest_first] + [_SMALL_PIECE])
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                  "vocab": vocab, "merges": []},
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "pad_token": "<|pad|>",
                "clean_up_tokenization_spaces": False}
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", settings)):
        (directory / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    (directory / "chat_template.jinja").write_text(_SMALL_TEMPLATE, encoding="utf-8")


def _byte_letters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = {byte: 256 + i for i, byte in enumerate(b for b in range(256) if b not in printable)}
    return [chr(shifted.get(byte, byte)) for byte in range(256)]
