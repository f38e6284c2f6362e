"""Units and nouns after a number in Chinese, Japanese, Korean and Russian, as English words."""

from __future__ import annotations

import re

_EASTERN = """
厘米 公分 センチメートル センチ 센티미터=cm 毫米 ミリメートル ミリ=mm 分米=dm 千米 公里 キロメートル 킬로미터=km
微米=micron 米 公尺 メートル 미터=m 海里=nmi 英里=mi 英尺=ft 英寸=in 里=half_km
平方厘米=sq_cm 平方毫米=sq_mm 平方分米=sq_dm 平方千米 平方公里=sq_km 平方米 平方メートル 平米 제곱미터=sq_m 公顷=ha
立方厘米=cubic_cm 立方毫米=cubic_mm 立方分米=cubic_dm 立方米 立方メートル=cubic_m
千克 公斤 キログラム キロ 킬로그램=kg 毫克=mg 克 グラム 그램=g 吨 トン 톤=t 斤=jin 两=liang
毫升 ミリリットル=mL 升 リットル 리터=L 秒 秒钟 秒間 초=s 分钟 分鐘 分間=min 小时 小時 时 時間 시간=h 天 日 日間 일=day
星期 周 週間 주=week 个月 個月 ヶ月 か月 개월=month 年 年間 년=year 度=degrees 弧度=rad 摄氏度=degrees_Celsius
元 块 块钱 圆 元钱 人民币=yuan 角=jiao 美元=dollars 欧元=euro 英镑=gbp 円 日元=jpy 원=won 美分=cents
米每秒=m/s 千米每小时 公里每小时 千米/时 千米/小时=km/h 米/秒=m/s
万 만 萬=wan 亿 億 억=yi 千 천=qian 百 백=hundreds 百万 百萬=millions 十=tens 打=dozens
"""
_RUSSIAN = """
см сантиметр сантиметра сантиметров=cm мм миллиметр миллиметра миллиметров=mm дм=dm м метр метра метров=m
км километр километра километров=km кг килограмм килограмма килограммов=kg
г грамм грамма граммов=g мг=mg т тонн тонна тонны=t
л литр литра литров=L мл=mL с сек секунд секунды секунда=s мин минут минуты минута=min ч час часа часов=h
день дня дней сутки суток=day недель неделя недели=week месяц месяца месяцев=month год года лет=year
градус градуса градусов=degrees руб рубль рубля рублей=rubles доллар доллара долларов=dollars евро=euro
тыс тысяча тысячи тысяч=thousands млн миллион миллиона миллионов=millions млрд миллиард миллиарда миллиардов=billions
кв=sq куб=cubic
"""
_NO_NOUNS = re.compile(
    "[成折半多余餘多阶階方根幂進进制模倍倒负負零一二三四五六七八九十百千万萬亿億제진법배]|階乗|계승|个半|小数|分之"
)
"""Characters that change the number: fractions, powers, bases, multiples."""


def _table(rows: str) -> dict[str, str]:
    entries = (entry.partition("=") for entry in re.findall(r"[^=]+=\S+", rows))
    return {word: english.replace("_", " ") for names, _, english in entries for word in names.split()}


_EASTERN_WORDS = _table(_EASTERN)
_RUSSIAN_WORDS = _table(_RUSSIAN)
_EASTERN_SCRIPT = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_EASTERN_TEXT = re.compile(rf"[{_EASTERN_SCRIPT}/\s]+")
_TOKEN = re.compile("|".join(sorted(map(re.escape, _EASTERN_WORDS), key=len, reverse=True)))
_RUSSIAN_TOKEN = re.compile(r"[а-яё]+\.?", re.IGNORECASE)
_MULTIPLES = ("wan", "yi", "qian", "hundreds", "millions", "tens", "dozens")
_PERCENT = re.compile(r"^百分之\s*(?=-?\d)|(?<=\d)\s*(?:个?百分点|パーセント|퍼센트|процент(?:а|ов)?)$")


def percent(text: str) -> str:
    """``text`` with a percent sign for its name in other languages.

    >>> percent("百分之30"), percent("30 процентов")
    ('30%', '30%')
    """
    match = None if text.isascii() else _PERCENT.search(text)
    if match is None:
        return text
    return f"{text[: match.start()]}{text[match.end() :]}%"


def to_english(text: str) -> str:
    """The text after a number with its units and multiples in English; other nouns become ``objects``.

    >>> to_english("万元"), to_english(" 平方厘米"), to_english(" рублей"), to_english("个苹果"), to_english("阶乘")
    (' wan yuan', ' sq cm', ' rubles', ' objects', '阶乘')
    """
    if text.isascii():
        return text
    if _EASTERN_TEXT.fullmatch(text):
        return _eastern(text.strip()) or text
    return _RUSSIAN_TOKEN.sub(lambda word: _RUSSIAN_WORDS.get(word[0].lower().rstrip("."), word[0]), text)


def _eastern(text: str) -> str:
    """Multiples and a unit, or a noun of at most six characters; empty if it may change the number."""
    tokens: list[str] = []
    position = 0
    while match := _TOKEN.match(text, position):
        english = _EASTERN_WORDS[match[0]]
        tokens.append(english)
        position = match.end()
        if english not in _MULTIPLES:
            break
    noun = text[position:]
    if noun and tokens and tokens[-1] not in _MULTIPLES:  # 年级 is not 年
        tokens = []
        noun = text
    if len(noun) > 6 or _NO_NOUNS.search(noun):
        return ""
    return f" {' '.join([*tokens, *(['objects'] if noun else [])])}"
