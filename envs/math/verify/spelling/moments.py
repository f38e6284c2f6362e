"""Clock times, dates and hexadecimal numbers in one spelling each."""

from __future__ import annotations

import re

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"(?:the )?(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?:,? (?P<year>\d{4}))?"
_DATES = [
    re.compile(pattern, re.IGNORECASE | re.ASCII)
    for pattern in (
        rf"{_MONTH} {_DAY}{_YEAR}",
        rf"{_DAY}(?: of)? {_MONTH}{_YEAR}",
        r"(?P<year>\d{4})-(?P<number>\d{2})-(?P<day>\d{2})",
    )
]
_WEEKDAY = re.compile(r"(?:on )?(?P<name>(?:mon|tues|wednes|thurs|fri|satur|sun)day), (?=.*\d)", re.IGNORECASE)
_CLOCK = re.compile(r"(?P<hour>\d{1,2})(?:[:.](?P<minute>\d{2}))?\s*(?P<half>[ap])\.?\s?m\.?", re.IGNORECASE | re.ASCII)
_NAMED = {"noon": "12:00", "12 noon": "12:00", "midnight": "00:00", "12 midnight": "00:00"}
_HEXADECIMAL = re.compile(
    r"\(?(?P<based>[0-9a-f]*[a-f][0-9a-f]*)\)?\s*"
    r"(?:_\s*\{?\s*\(?16\)?\s*\}?|\(?(?:in )?(?:base[ -](?:16|sixteen)|hex(?:adecimal)?)\)?)"
    r"|0x(?P<marked>[0-9a-f]+)",
    re.IGNORECASE | re.ASCII,
)
_DIGITS = re.compile(r"(?=\w*[a-f]\d)[0-9a-f]{3,}|(?=\w*[A-F]\d)[0-9A-F]{3,}", re.ASCII)


def clock(hour: str, minute: str) -> str:
    """A time of the day of 24 hours, or '' if it is none.

    >>> clock("6", "30"), clock("30", "6")
    ('06:30', '')
    """
    valid = len(minute) == 2 and int(hour) < 24 and int(minute) < 60
    return f"{int(hour):02d}:{minute}" if valid else ""


def moment(plain: str) -> str:
    """A clock time with "am" or "pm", or a date, in one spelling; '' for other texts.

    >>> moment("2:05 p.m."), moment("5th of March"), moment("Mar. 5, 2024"), moment("Monday")
    ('14:05', '03-05', '2024-03-05', '')
    """
    if time := _CLOCK.fullmatch(plain):
        late = time["half"].lower() == "p"
        hour = int(time["hour"]) % 12 + 12 * late
        if 1 <= int(time["hour"]) <= 12:
            return clock(str(hour), time["minute"] or "00")
        return ""
    weekday = _WEEKDAY.match(plain)
    for pattern in _DATES:
        if date := pattern.fullmatch(plain, weekday.end() if weekday else 0):
            fields = date.groupdict()
            month = fields.get("number") or f"{_MONTHS.index(fields['month'][:3].lower()) + 1:02d}"
            name = weekday["name"].lower() if weekday else ""
            return "-".join(filter(None, (name, fields["year"], month, f"{int(fields['day']):02d}")))
    return _NAMED.get(plain.lower(), "")


def hexadecimal(plain: str) -> str:
    """The digits of a hexadecimal number with its base in lower case, as in ``1a_16``; '' for other texts.

    >>> hexadecimal("1A_{16}"), hexadecimal("0x1a"), hexadecimal("2F3"), hexadecimal("2a"), hexadecimal("46_{16}")
    ('1a_16', '1a_16', '2f3', '', '')
    """
    if match := _HEXADECIMAL.fullmatch(plain):
        return f"{(match['based'] or match['marked']).lower()}_16"
    return plain.lower() if _DIGITS.fullmatch(plain) else ""
