"""Suggestions for an unknown name of a format."""

from __future__ import annotations

from difflib import get_close_matches

from fewbits.formats.catalogue import CATALOGUE

# Names in other libraries for formats of the catalogue, and how to write the constructors.
_SYNONYMS = {
    "bfloat16": "bf16",
    "brain_float": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float4_e2m1fn_x2": "fp4_e2m1",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fnuz": "fp8_e4m3fnuz",
    "float8_e5m2": "fp8_e5m2",
    "float8_e5m2fnuz": "fp8_e5m2fnuz",
    "float8_e8m0fnu": "e8m0",
    "half": "fp16",
    "single": "fp32",
}
_CONSTRUCTORS = {
    "bdr": "bdr(m=4)",
    "block": "block(element=fp4_e2m1,scale=e8m0,size=32)",
    "exponent": "exponent(8,bias=127)",
    "fixed": "fixed(8,frac=6)",
    "float": "float(e=4,m=3)",
    "int": "int(8)",
    "lookup": "lookup(-1,0,1)",
    "posit": "posit(8,es=1)",
}
_MOST = 4


def nearest(name: str) -> list[str]:
    """Return up to four formats that an unknown name may mean, the likeliest first."""
    plain = name.lower().replace("-", "_").removeprefix("torch.")
    loose = plain.replace("_", "").replace("float", "fp")
    names = {n: n.replace("_", "") for n in CATALOGUE}
    same = [_SYNONYMS[plain]] if plain in _SYNONYMS else [n for n, short in names.items() if short == loose]
    if same:
        return same
    candidates = [_CONSTRUCTORS[plain]] if plain in _CONSTRUCTORS else []
    if len(loose) > 1:
        candidates += [n for n, short in names.items() if short.startswith(loose)]
        candidates += [n for n, short in names.items() if loose in short]
    candidates += get_close_matches(plain, [*CATALOGUE, *_CONSTRUCTORS], n=_MOST, cutoff=0.4)
    return list(dict.fromkeys(_CONSTRUCTORS.get(n, n) for n in candidates))[:_MOST]
