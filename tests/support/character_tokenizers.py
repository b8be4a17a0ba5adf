"""Tokenizers for which every character is a token, written out: fakes that are fast and that a test can bend."""


class Characters:
    """Texts of characters; a turn is its role's mark, its words, `end`, and `between`.

    Attributes:
        marks: A character for each role.
        ids: Character -> id; what is not there has an id of its own.
        special: Characters that are special tokens.
    """

    is_fast = True
    chat_template = "characters"
    eos_token = None

    def __init__(self, marks, *, end, between="", note="", ids=None, special=None):
        self.marks, self.end, self.between, self.note = marks, end, between, note
        self._ids = ids or {}
        self._texts = {token: text for text, token in self._ids.items()}
        self._special = [*marks.values(), end] if special is None else list(special)

    @property
    def all_special_ids(self):
        return [self.id_of(text) for text in self._special if text]

    def id_of(self, text):
        return self._ids.get(text, 10 + ord(text))

    def convert_ids_to_tokens(self, ids):
        return [self.decode([token]) for token in ids]

    def get_chat_template(self):
        return self.chat_template

    def apply_chat_template(self, conversation, *, add_generation_prompt, return_dict, tokenize=True):
        turns = (self.marks[turn["role"]] + turn["content"] + self.end + self.between for turn in conversation)
        text = "".join(turns) + (self.marks["assistant"] if add_generation_prompt else self.note)
        return self(text) if tokenize else text

    def __call__(self, text, *, add_special_tokens=False, return_offsets_mapping=False):
        offsets = [(place, place + 1) for place in range(len(text))]
        return {"input_ids": [self.id_of(letter) for letter in text], "offset_mapping": offsets}

    def decode(self, ids, **options):
        return "".join(self._texts.get(token) or chr(token - 10) for token in ids)
