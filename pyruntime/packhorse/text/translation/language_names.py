"""Codes of languages, as callers write them and as a model has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packhorse_weights.languages import Languages

    from packhorse.text.tokenization.tokenizer import TextTokenizer

# ISO 639-1 -> the code of FLORES-200 without its script, or with the script that is meant where a
# language has several; the codes of NLLB.
_PAIRS = (
    "af:afr am:amh ar:arb as:asm ay:ayr az:azj ba:bak be:bel bg:bul bm:bam bn:ben bo:bod bs:bos "
    "ca:cat cs:ces cy:cym da:dan de:deu dz:dzo ee:ewe el:ell en:eng eo:epo es:spa et:est eu:eus "
    "fa:pes fi:fin fj:fij fo:fao fr:fra ga:gle gd:gla gl:glg gn:grn gu:guj ha:hau he:heb hi:hin "
    "hr:hrv ht:hat hu:hun hy:hye id:ind ig:ibo is:isl it:ita ja:jpn jv:jav ka:kat kg:kon ki:kik "
    "kk:kaz km:khm kn:kan ko:kor ku:kmr ky:kir lb:ltz lg:lug li:lim ln:lin lo:lao lt:lit lv:lvs "
    "mg:plt mi:mri mk:mkd ml:mal mn:khk mr:mar ms:zsm mt:mlt my:mya nb:nob ne:npi nl:nld nn:nno "
    "no:nob ny:nya oc:oci om:gaz or:ory pa:pan pl:pol ps:pbt pt:por qu:quy rn:run ro:ron ru:rus "
    "rw:kin sa:san sc:srd sd:snd sg:sag si:sin sk:slk sl:slv sm:smo sn:sna so:som sq:als sr:srp "
    "ss:ssw st:sot su:sun sv:swe sw:swh ta:tam te:tel tg:tgk th:tha ti:tir tk:tuk tl:tgl tn:tsn "
    "tr:tur ts:tso tt:tat tw:twi ug:uig uk:ukr ur:urd uz:uzn vi:vie wo:wol xh:xho yi:ydd yo:yor "
    "zh:zho_Hans zu:zul"
)
_FLORES = dict(pair.split(":") for pair in _PAIRS.split())


class LanguageNames:
    """Finds the token of a language for one model.

    A code is taken as the model has it ("fra_Latn", "fr_XX", "fr"), or by its first part where one
    language of the model has that ("fr" for "fr_XX"), or by ISO 639-1 ("fr" for "fra_Latn").
    """

    def __init__(self, languages: Languages, tokenizer: TextTokenizer) -> None:
        self._languages = languages
        before, after = languages.token.split("{}")
        vocabulary: Iterable[str] = languages.codes
        if not vocabulary:
            numbers = tokenizer.config.pieces.numbers if tokenizer.config.pieces else {}
            vocabulary = [
                token[len(before) : len(token) - len(after)]
                for token in numbers
                if token.startswith(before) and token.endswith(after)
            ]
        found = ((code, tokenizer.id_of(languages.token.format(code))) for code in vocabulary)
        self.ids: Mapping[str, int] = {code: i for code, i in found if i is not None}
        self._short: dict[str, list[str]] = {}
        for code in self.ids:
            self._short.setdefault(code.partition("_")[0].lower(), []).append(code)

    def find(self, code: str, name: str) -> str:
        """The model's own code. `name`: of the argument, for messages. Raises ValueError."""
        if code in self.ids:
            return code
        lower = code.lower().replace("-", "_")
        three = _FLORES.get(lower, lower)
        choices = [one for one in self.ids if one.lower() in (lower, three.lower())]
        for short in (lower, three):
            choices = choices or self._short.get(short, [])
        if len(choices) == 1:
            return choices[0]
        from difflib import get_close_matches

        near = choices or get_close_matches(code, self.ids, 6, 0.3) or sorted(self.ids)[:6]
        known = f"{len(self.ids)} languages, such as {', '.join(near)}" if near else "no others"
        raise ValueError(
            f"{name} is {code!r:.40}, which is no language of this model; it has {known}"
        )
