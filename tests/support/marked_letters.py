"""A codec of letters of which some ids are special tokens, for tabular targets."""

import re

from specdec.interfaces.text_codec import PLAIN_CHAT, TextCodec

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class MarkedLetters(TextCodec):
    """Token 0 is 'a' and so on, but for the special ones. A conversation is its contents, end to end.

    Attributes:
        formats: The chat formats that were asked for.
    """

    chat_template = None

    def __init__(self, vocab, special):
        self._special = dict(special)
        self._ids = {**{LETTERS[token]: token for token in range(vocab)}, **{text: token for token, text in special.items()}}
        self.formats = []

    def encode(self, text, *, opens=True, escape_control_tokens=False):
        pieces = "|".join(re.escape(piece) for piece in sorted(self._ids, key=len, reverse=True))
        return [self._ids[piece] for piece in re.findall(pieces, text)]

    def decode(self, ids):
        return "".join(LETTERS[token] for token in ids if token not in self._special)

    @property
    def special_tokens(self):
        return self._special

    @property
    def control_tokens(self):
        return tuple(self._special.values())

    def chat(self, messages, chat_format=PLAIN_CHAT):
        self.formats.append(chat_format)
        return self.encode("".join(message["content"] for message in messages))

    def tokenizer_json(self):
        return None

    def vocabulary(self):
        return dict(self._ids)
