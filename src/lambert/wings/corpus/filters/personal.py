"""Replaces personal data of recognisable form. Only lines with certain digits and marks are searched."""

import ipaddress
import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from lambert.wings.corpus.batch import Booleans, Outcome, TextBatch
from lambert.wings.corpus.characters import Bytes, Integers

_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
EMAIL = re.compile(
    r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9-])"
)
IPV4 = re.compile(rf"(?<![0-9A-Za-z.]){_BYTE}(?:\.{_BYTE}){{3}}(?![0-9A-Za-z]|\.[0-9])")
IPV6 = re.compile(r"(?<![\w:])[23][0-9A-Fa-f]{3}(?::{1,2}[0-9A-Fa-f]{1,4}){2,7}(?!\w|:\w)", re.ASCII)
IBAN = re.compile(r"(?<!\w)[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]){11,30}", re.ASCII)
CARD = re.compile(
    r"(?<![\w.,-])(?:[2-6][0-9]{3}([ -]?)[0-9]{4}\1[0-9]{4}\1[0-9]{1,7}|3[47][0-9]{2}([ -]?)[0-9]{6}\2[0-9]{5})"
    r"(?!\w|[.,-][0-9])",
    re.ASCII,
)
PHONE = re.compile(
    r"(?<![\w+.-])(?:\+[1-9][0-9]{0,2}[ .-]?(?:\([0-9]{1,4}\)[ .-]?)?(?:[0-9][ .-]?){5,13}[0-9]"  # international
    r"|(?:1[ .-])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[.-])[2-9][0-9]{2}[.-][0-9]{4})(?!\w|[.-][0-9])",  # US
    re.ASCII,
)
IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BR": 29, "BY": 28,
    "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18,
    "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22,
    "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LI": 21, "LT": 20, "LU": 20,
    "LV": 21, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MT": 31, "NL": 18, "NO": 15, "PK": 24, "PL": 28, "PS": 29,
    "PT": 25, "QA": 29, "RO": 24, "RS": 22, "SA": 24, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "TN": 24, "TR": 26,
    "UA": 29, "VA": 22, "XK": 20,
}  # fmt: skip
"""Number of characters of an IBAN by country. Source: SWIFT IBAN registry."""
FORMS = {
    "e-mail addresses": "email@example.com",
    "IP addresses": "192.0.2.1",
    "bank accounts": "GB00 0000 0000 0000 0000 00",
    "credit cards": "0000 0000 0000 0000",
    "phone numbers": "555-0100",
}
"""Replacements by kind. They are not recognised again and belong to nobody: example.com (RFC 2606), 192.0.2.1 (RFC
5737) and 555-0100 (North American Numbering Plan) are reserved for documentation, and the others have wrong check
digits or prefixes."""


def personal_data(batch: TextBatch) -> Outcome:
    """Replaces e-mail addresses, public IP addresses, IBANs, credit-card numbers with a valid check digit, and phone
    numbers with + or in the US forms, by fixed forms."""
    outcome = Outcome()
    breaks = batch.find(b"\n")
    lines = np.unique(np.searchsorted(breaks, _candidates(batch)) - 1)
    changes: dict[int, list[tuple[int, int, bytes]]] = {}
    for begin, end in zip((breaks[lines] + 1).tolist(), breaks[lines + 1].tolist(), strict=True):
        line = batch.data[begin:end].decode()
        masked, found = mask(line)
        if masked != line:
            document = int(batch.document_of(np.array([begin]))[0])
            changes.setdefault(document, []).append((begin, end, masked.encode()))
            outcome.found.setdefault(document, Counter()).update(found)
    for document, places in changes.items():
        outcome.texts[document] = batch.replace(batch.starts_D[document], batch.ends_D[document], places)
    return outcome


def mask(line: str) -> tuple[str, Counter[str]]:
    """Returns a text with personal data replaced, and the number of replacements of each kind."""
    found: Counter[str] = Counter()

    def by(kind: str, valid: Callable[[str], int]) -> Callable[[re.Match[str]], str]:
        """`valid` returns how many characters of a match are replaced."""

        def replacement(match: re.Match[str]) -> str:
            length = valid(match[0])
            if not length or match[0] == FORMS[kind]:
                return match[0]
            found[kind] += 1
            return FORMS[kind] + match[0][length:]

        return replacement

    line = EMAIL.sub(by("e-mail addresses", len), line)
    for pattern in (IPV4, IPV6):
        line = pattern.sub(by("IP addresses", _public), line)
    line = IBAN.sub(by("bank accounts", _iban), line)
    line = CARD.sub(by("credit cards", _card), line)
    line = PHONE.sub(by("phone numbers", _phone), line)
    return line, found


def _public(address: str) -> int:
    try:
        return len(address) if ipaddress.ip_address(address).is_global else 0
    except ValueError:
        return 0


def _iban(found: str) -> int:
    """Returns the length, with spaces, of the valid IBAN at the beginning of a text. Source: ISO 13616, ISO 7064."""
    needed = IBAN_LENGTHS.get(found[:2], 99)
    at = [place for place, character in enumerate(found) if character != " "]
    if len(at) < needed or (len(found) > at[needed - 1] + 1 and found[at[needed - 1] + 1] != " "):
        return 0
    length = at[needed - 1] + 1
    digits = found[:length].replace(" ", "")
    number = "".join(str(int(character, 36)) for character in digits[4:] + digits[:4])
    return length if int(number) % 97 == 1 else 0


def _card(found: str) -> int:
    """Returns the length of a card number with a valid check digit, or 0. Source: ISO/IEC 7812-1, Luhn's algorithm."""
    digits = [int(character) for character in found if character.isdigit()]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return len(found) if 13 <= len(digits) <= 19 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0 else 0


def _phone(found: str) -> int:
    """Returns the length of a phone number, or 0. Source: ITU-T E.164, at most 15 digits."""
    return len(found) if 8 <= sum(character.isdigit() for character in found) <= 15 else 0


def _candidates(batch: TextBatch) -> Integers:
    """Returns positions in all lines that may contain personal data."""
    data_B = batch.data_B
    digit_B = (data_B - ord("0")) < 10  # bytes below "0" wrap around
    edges = np.flatnonzero(digit_B[1:] != digit_B[:-1]) + 1
    begin, end = edges[::2], edges[1::2]  # of each run of digits
    found = [batch.find(b"@")]
    if len(begin):
        lengths, gaps = end - begin, np.append(begin[1:] - end[:-1], 1 << 30)
        before = data_B[begin - 1]
        capitals = _between(before, "A", "Z") & _between(data_B[begin - 2], "A", "Z")
        found.append(begin[(before == ord("+")) | (capitals & (lengths >= 2))])
        dots = (gaps == 1) & (data_B[end] == ord("."))
        found.append(begin[:-2][dots[:-2] & dots[1:-1] & dots[2:]])
        threes = (lengths == 3) & (gaps <= 2)
        found.append(begin[:-2][threes[:-2] & threes[1:-1] & (lengths[2:] == 4)])
        apart = (gaps > 1) | (data_B[end] == ord("\n"))  # the last run is always apart
        chains = np.append(0, np.flatnonzero(apart)[:-1] + 1)
        found.append(begin[chains[np.add.reduceat(lengths, chains) >= 13]])
    colons = batch.find(b":")
    if len(colons):
        colons = colons[_hexadecimal(data_B[colons - 1]) & _hexadecimal(data_B[colons + 1])]
        pairs = np.diff(colons, append=1 << 60) <= 5
        found.append(colons[pairs])
    return np.concatenate(found)


def _between(values: npt.NDArray[np.integer], low: str, high: str) -> Booleans:
    return (values >= ord(low)) & (values <= ord(high))


def _hexadecimal(values: Bytes) -> Booleans:
    """Returns which of these bytes may be beside a colon in an IPv6 address."""
    lower = values | 0x20
    return _between(values, "0", ":") | _between(lower, "a", "f")
